"""`specqd generate`: continues a prompt."""

import json
import math
import os
import select
import stat
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specqd.cli import explain
from specqd.cli.answers import PlainAnswer, ReasonedAnswer, reading_bar, write_answer
from specqd.cli.command import Command
from specqd.cli.conversation import thinking
from specqd.cli.draft_options import Drafting, draft_options
from specqd.cli.opening import open_llm
from specqd.cli.options import (
    OUT_FILE,
    MachineChoice,
    PromptCacheChoice,
    chat_options,
    context_option,
    machine_options,
    model_argument,
    option,
    precision_option,
    prompt_cache_options,
    prompt_of,
    prompt_options,
    quiet_option,
    template_option,
    text_argument,
)
from specqd.cli.sampling_options import sampling_of, sampling_options
from specqd.cli.screens import Dimmed, Streamed, Unchanged
from specqd.cli.summary import level_table, prompt_speed, summary
from specqd.cli.terminal import inform, is_quiet, one_line
from specqd.errors import RequestError

if TYPE_CHECKING:
    from specqd.llm import LLM, Prompt, Result
    from specqd.sampling import SamplingParams

_EPILOG = """\b
Examples:
  specqd generate smollm2:135m --chat -p "Why is the sky blue?" -n -1
  specqd generate ./my-model -p "Once upon a time" -n 200 --temperature 0.8 --seed 7
  specqd generate ./model.gguf -p "Hello" --draft fp4 --draft ./smaller --draft ngram
  cat notes.txt | specqd generate qwen3:0.6b --chat -p "Summarise this text."
  cat notes.txt | specqd generate --json | jq .stats
"""


_PATIENCE = 1.0  # seconds without standard input before a note says so


@click.command(cls=Command, epilog=_EPILOG)
@model_argument
@text_argument
@prompt_options
@option("--chat", "is_chat", is_flag=True, help="Apply the chat template.")
@chat_options("System message; with --chat.", needs="is_chat")
@template_option("is_chat")
@sampling_options
@draft_options
@precision_option
@context_option
@prompt_cache_options
@machine_options
@quiet_option("has_stats", "is_explained")
@option("--json", "is_json", is_flag=True, help="Print text and statistics as JSON.")
@option(
    "--logprobs",
    also=("--n-probs",),
    needs="is_json",
    type=int,
    metavar="K",
    help="With --json: log-probabilities of the tokens, and of the K likeliest at each place.",
)
@option(
    "--stats",
    "has_stats",
    also=("--verbose", "-v"),
    is_flag=True,
    help="Print a table of each level's work.",
)
@option(
    "--explain",
    "is_explained",
    is_flag=True,
    help="Colour each token by the level that drafted it.",
)
@option("--explain-html", "page", type=OUT_FILE, help="Write the coloured text as an HTML page.")
def generate(
    model: str | None,
    words: tuple[str, ...],
    prompt: str | None,
    file: str | None,
    is_chat: bool,
    system: str | None,
    thinks: bool | None,
    chat_template: Path | None,
    draft: Drafting,
    precision: str,
    context: int | None,
    prompt_cache: PromptCacheChoice,
    machine: MachineChoice,
    is_json: bool,
    has_stats: bool,
    is_explained: bool,
    page: Path | None,
    **sampling: Any,
) -> None:
    """Continue a text: the new text to stdout, a summary to stderr.

    The text is TEXT, or that of -p or -f, or else standard input. A pipe or file on standard input
    is put before TEXT or the text of -p. One newline at the end of a file or of standard input is
    dropped. Sampling options default to the model's generation_config.json.
    """
    text = read_prompt(prompt_of(words, prompt), file)

    from specqd.sampling import SamplingParams

    params = SamplingParams(**sampling_of(sampling))
    llm = open_llm(
        model,
        draft,
        machine,
        precision=precision,
        context=context,
        prompt_cache=prompt_cache,
        chat_template=chat_template,
    )
    ids = prompt_ids(llm, text, is_chat, system, thinks)
    if is_json or is_explained:
        result = whole_result(llm, ids, params, is_chat=is_chat)
    else:
        result = write_stream(llm, ids, params, is_chat=is_chat)
    if is_json:
        print(json.dumps(described(result, has_origins=is_explained)))
    elif is_explained:
        explain.show(result, llm.tokenizer, sys.stdout)
    if page is not None:
        write_page(llm, text, result, page)
    if not is_json:
        inform(summary(llm, result, params, has_seed=has_stats))
    if has_stats:
        lines = [f"prompt: {prompt_speed(result.stats)}", *level_table(result.stats)]
        print("\n".join(lines), file=sys.stderr)


def write_stream(
    llm: "LLM", prompt: "Prompt", params: "SamplingParams", *, is_chat: bool
) -> "Result":
    """Streams a completion; for a chat, only the answer without its reasoning."""
    from specqd.text.reasoning import reasoning_of

    ids = llm.encode(prompt)
    reasoning = reasoning_of(llm.tokenizer, ids) if is_chat else None
    answer = PlainAnswer(Unchanged())
    if reasoning is not None:
        params = replace(params, skip_special_tokens=not reasoning.has_special_marks)
        thoughts = Dimmed if sys.stderr.isatty() and not is_quiet() else None
        answer = ReasonedAnswer(reasoning, Streamed(), thoughts)
    with reading_bar() as bar:
        stream = llm.stream(prompt, params, on_prompt=bar, is_answer=is_chat)
        return write_answer(stream, answer, bar)


def whole_result(
    llm: "LLM", prompt: "Prompt", params: "SamplingParams", *, is_chat: bool
) -> "Result":
    """Completes a prompt without showing the text."""
    with reading_bar() as bar:
        stream = llm.stream(prompt, params, on_prompt=bar, is_answer=is_chat)
        for _ in stream:
            bar.finish()
    assert stream.result is not None
    return stream.result


def write_page(llm: "LLM", prompt: str, result: "Result", page: Path) -> None:
    from specqd.hub import model_name

    spans = explain.explained(result.completions[0], llm.tokenizer, result.continued)
    heading = f"Who drafted what: {model_name(llm.directory)}"
    content = explain.as_html(prompt, spans, result.stats.chain, heading)
    page.write_text(content, encoding="utf-8")


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The prompt of -p or -f, else all of standard input. Piped text comes before that of -p."""
    if file is not None and file != "-":
        return _decoded(Path(file).read_bytes(), file)
    if prompt is None and file is None and sys.stdin.isatty():
        raise click.UsageError("no prompt: give -p TEXT, -f FILE or standard input")
    if prompt is None or prompt == "-":
        return _read_whole_input()
    piped = _read_input() if _is_piped() else ""
    return f"{piped}\n{prompt}" if piped else prompt


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file, not a terminal or /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # closed, or a stand-in without a descriptor
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_input() -> str:
    # A test's stand-in has no descriptor and never waits. Windows can wait for sockets only.
    with suppress(OSError, ValueError):
        if not select.select([sys.stdin], [], [], _PATIENCE)[0]:
            inform(
                "waiting for standard input, which is part of the prompt; </dev/null leaves it out"
            )
    return _decoded(sys.stdin.buffer.read(), "standard input")


def _read_whole_input() -> str:
    """Standard input as the whole prompt."""
    if not (text := _read_input()):
        raise RequestError(
            "no prompt: standard input is empty; give TEXT after MODEL, -p TEXT or -f FILE"
        )
    return text


def _decoded(data: bytes, origin: str) -> str:
    try:
        return data.decode("utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{one_line(origin)}: byte {error.start} is not UTF-8; convert the text first"
        ) from error


def prompt_ids(
    llm: "LLM", text: str, is_chat: bool, system: str | None, thinks: bool | None
) -> "Prompt":
    if not is_chat:
        return llm.encode(text)
    first = [] if system is None else [{"role": "system", "content": system}]
    variables = thinking(llm.tokenizer, thinks)
    return llm.tokenizer.chat([*first, {"role": "user", "content": text}], **variables)


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
