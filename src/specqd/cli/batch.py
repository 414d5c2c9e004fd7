"""`specqd batch`: a file of OpenAI requests in, a file of answers out."""

import sys
from pathlib import Path

import click

from specqd.cli.command import Command
from specqd.cli.opening import open_llm
from specqd.cli.options import IN_FILE, OUT_FILE, draft_option, machine_options, model_argument
from specqd.cli.terminal import ProgressBar, one_line


@click.command(cls=Command)
@click.argument("requests", type=IN_FILE)
@model_argument
@click.option(
    *("-o", "--out"),
    required=True,
    type=OUT_FILE,
    help="File for the answers, one per line, in order of completion.",
)
@draft_option
@machine_options
def batch(
    requests: Path,
    model: str | None,
    out: Path,
    draft: tuple[str, ...],
    threads: int | None,
    isa: str | None,
    numa: str,
) -> None:
    """Answer a file of OpenAI batch requests.

    Each line of REQUESTS is {"custom_id", "method": "POST", "url", "body"} with url /v1/completions
    or /v1/chat/completions. All lines are checked before any work; a request that only the model
    can refuse gets an answer with status 400. After a kill, run the same command again: it
    continues, and no answer is lost or written twice. The name of the model in a body is ignored.

    \b
    Examples:
      specqd batch requests.jsonl -o answers.jsonl
      specqd batch requests.jsonl -o answers.jsonl Qwen/Qwen3-0.6B --draft fp4
    """
    from specqd.engine.reports import Stats
    from specqd.hub import shipped_model
    from specqd.openai.batch import answer_batch, open_answers, read_batch

    asked = read_batch(requests, _name(model or str(shipped_model())))
    with open_answers(out, asked) as answers:
        before = len(answers.done)
        if before == len(asked.requests):
            done = f"specqd: {out}: all {before} requests are answered already"
            print(one_line(done), file=sys.stderr)
            return
        llm = open_llm(model, draft, threads, isa, numa)
        with ProgressBar("Answering") as bar:
            refused = answer_batch(llm, asked, answers, bar)
        new = len(answers.done) - before
    stats = Stats.of(llm.engine)
    parts = [f"{new} {'answer' if new == 1 else 'answers'}", f"{stats.new_tokens} tokens"]
    parts += [f"{stats.tokens_per_s:.1f} tokens/s"]
    parts += [f"{refused} refused with status 400"] if refused else []
    parts += [f"{before} answered before"] if before else []
    print(f"specqd: {', '.join(parts)}", file=sys.stderr)


def _name(model: str) -> str:
    """The model's name in answers. Does not depend on the working directory."""
    path = Path(model)
    return path.resolve().name if path.is_dir() else model
