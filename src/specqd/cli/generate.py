"""`specqd generate`: continues a prompt."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specqd.cli import explain
from specqd.cli.answers import ChanneledAnswer, RawAnswer, write_answer
from specqd.cli.opening import open_llm
from specqd.cli.options import (
    OUT_FILE,
    context_option,
    draft_option,
    machine_options,
    model_argument,
    precision_option,
    prompt_options,
    sampling_options,
)
from specqd.cli.terminal import aligned, has_colour, one_line
from specqd.errors import RequestError
from specqd.text.channels import has_channels

if TYPE_CHECKING:
    from specqd.engine.reports import LevelReport, Stats
    from specqd.llm import LLM, Prompt, Result
    from specqd.sampling import SamplingParams

_EPILOG = """\b
Examples:
  specqd generate -p "def fibonacci(n):"
  specqd generate ./my-model -p "Once upon a time" -n 200 --temperature 0.8 --seed 7
  specqd generate Qwen/Qwen3-0.6B --chat -p "Why is the sky blue?" --stop "\\n\\n"
  specqd generate ./my-model -p "Hello" --draft fp4 --draft ./smaller --draft ngram
  cat notes.txt | specqd generate --json | jq .stats
"""


@click.command(epilog=_EPILOG)
@model_argument
@prompt_options
@sampling_options
@draft_option
@click.option("--chat", "is_chat", is_flag=True, help="Apply the chat template.")
@precision_option
@context_option
@machine_options
@click.option("--json", "is_json", is_flag=True, help="Print text and statistics as JSON.")
@click.option(
    "--logprobs", type=int, metavar="K", help="With --json: log-probabilities, and the K likeliest."
)
@click.option("--stats", "has_stats", is_flag=True, help="Print a table of each level's work.")
@click.option("--explain", "is_explained", is_flag=True, help="Colour tokens by who drafted them.")
@click.option("--explain-html", "page", type=OUT_FILE, help="Write it as an HTML page.")
def generate(
    model: str | None,
    prompt: str | None,
    file: str | None,
    draft: tuple[str, ...],
    is_chat: bool,
    precision: str,
    context: int | None,
    threads: int | None,
    isa: str | None,
    is_json: bool,
    has_stats: bool,
    is_explained: bool,
    page: Path | None,
    **sampling: Any,
) -> None:
    """Continue a text: the new text to stdout, a summary to stderr.

    Without -p and -f, the text is read from standard input. One newline at the end of a file or of
    standard input is dropped. Sampling options default to the model's generation_config.json.
    """
    if sampling["logprobs"] is not None and not is_json:
        raise click.UsageError("--logprobs needs JSON; add --json")
    text = read_prompt(prompt, file)

    from specqd.sampling import SamplingParams

    params = SamplingParams(**sampling)
    llm = open_llm(model, draft, threads, isa, precision=precision, context=context)
    ids = prompt_ids(llm, text, is_chat)
    if is_json or is_explained:
        result = llm.generate([ids], params)[0]
    else:
        result = write_stream(llm, ids, params, is_chat=is_chat)
    if is_json:
        print(json.dumps(described(result, has_origins=is_explained)))
    elif is_explained:
        write_explained(llm, result)
    if page is not None:
        write_page(llm, text, result, page)
    if not is_json:
        print(summary(result, params.resolved(llm.defaults).temperature), file=sys.stderr)
    if has_stats:
        print("\n".join(level_table(result.stats)), file=sys.stderr)


def write_stream(
    llm: "LLM", prompt: "Prompt", params: "SamplingParams", *, is_chat: bool
) -> "Result":
    """Streams a completion; of a chat with channels, the answer alone."""
    if is_chat and has_channels(llm.tokenizer):
        params = replace(params, skip_special_tokens=False)
        answer = ChanneledAnswer(shows_thoughts=sys.stderr.isatty())
        return write_answer(llm.stream(prompt, params), answer)
    return write_answer(llm.stream(prompt, params), RawAnswer())


def write_explained(llm: "LLM", result: "Result") -> None:
    """Writes the coloured text to standard output and the legend to standard error."""
    spans = explain.explained(result.completions[0], llm.tokenizer)
    text, chain = explain.for_terminal(spans, has_colour=has_colour(sys.stdout)), result.stats.chain
    print(text, end="" if result.text.endswith("\n") else "\n", flush=True)
    print(explain.legend(spans, chain, has_colour=has_colour(sys.stderr)), file=sys.stderr)


def write_page(llm: "LLM", prompt: str, result: "Result", page: Path) -> None:
    spans = explain.explained(result.completions[0], llm.tokenizer)
    heading = f"Who drafted what: {llm.directory.name}"
    content = explain.as_html(prompt, spans, result.stats.chain, heading)
    page.write_text(content, encoding="utf-8")


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The prompt of -p or -f, else all of standard input."""
    if prompt is not None and file is not None:
        raise click.UsageError("-p and -f both name a prompt; give one of them")
    if prompt is not None and prompt != "-":
        return prompt
    if file is None and prompt is None and sys.stdin.isatty():
        raise click.UsageError("no prompt: give -p TEXT, -f FILE or standard input")
    data = sys.stdin.buffer.read() if file is None else Path(file).read_bytes()
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        name = file or "standard input"
        raise RequestError(
            f"{one_line(name)}: byte {error.start} is not UTF-8; convert the text first"
        ) from error


def prompt_ids(llm: "LLM", text: str, is_chat: bool) -> "Prompt":
    if is_chat:
        return llm.tokenizer.chat([{"role": "user", "content": text}])
    return llm.encode(text)


def described(result: "Result", *, has_origins: bool = False) -> dict[str, Any]:
    """The object that --json prints."""
    completion = result.completions[0]
    entry: dict[str, Any] = {"text": completion.text, "tokens": completion.tokens}
    if completion.logprobs is not None:
        entry["logprobs"] = [
            {
                "token": each.token,
                "logprob": _number(each.logprob),
                "top": [{"token": token, "logprob": _number(x)} for token, x in each.top],
            }
            for each in completion.logprobs
        ]
    if has_origins:
        entry["origins"] = [
            {
                "depth": origin.depth,
                "level": result.stats.chain[origin.depth],
                "probability": _number(origin.probability),
            }
            for origin in completion.origins
        ]
    return entry | {
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "stats": result.stats.described(),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no infinity


def summary(result: "Result", temperature: float | None) -> str:
    """One line: tokens, tokens/s, each level's forwards and acceptance, the seed of sampling."""
    stats = result.stats
    head = f"{stats.new_tokens} tokens, {stats.tokens_per_s:.1f} tokens/s"
    seed = [f"seed {result.completions[0].seed}"] if temperature else []
    return "specqd: " + "; ".join([head, *map(_level_summary, stats.levels), *seed])


def _level_summary(level: "LevelReport") -> str:
    text = f"{level.name}: {level.forwards} forwards at {level.gb_per_s:.1f} GB/s"
    if level.acceptance is not None:
        text += f", {level.acceptance:.0%} of {level.drafted} drafted tokens accepted"
    return text


def level_table(stats: "Stats") -> list[str]:
    """A row per level, outermost first; then acceptance by position in the proposal."""
    rows = [
        [
            *("level", "forwards", "rows", "ms/forward", "GB/s", "pick ms"),
            *("token value ms", "drafted", "accepted", "", "mean length"),
        ]
    ]
    for level in stats.levels:
        rows.append(
            [
                level.name,
                str(level.forwards),
                str(level.rows),
                f"{1e3 * level.seconds / max(level.forwards, 1):.2f}",
                f"{level.gb_per_s:.1f}",
                f"{1e3 * level.pick_seconds:.1f}",
                "-" if level.token_value_s is None else f"{1e3 * level.token_value_s:.2f}",
                *_acceptance_cells(level),
            ]
        )
    positions = []
    for level in stats.levels:
        if level.drafted:
            shares = " ".join(f"{share:.2f}" for share in level.acceptance_at)
            positions.append(f"{level.name}: accepted by position {shares}")
    return [*aligned(rows), *positions]


def _acceptance_cells(level: "LevelReport") -> list[str]:
    if level.acceptance is None or level.mean_accepted_length is None:
        return ["-"] * 4
    return [
        str(level.drafted),
        str(level.accepted),
        f"{level.acceptance:.0%}",
        f"{level.mean_accepted_length:.2f}",
    ]
