"""`specqd batch`: a file of OpenAI requests in, a file of answers out."""

import sys
from pathlib import Path

import click

from specqd.cli.opening import open_llm
from specqd.cli.options import draft_option, machine_options, model_argument
from specqd.cli.terminal import ProgressBar, one_line


@click.command()
@click.argument("requests", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@model_argument
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The answers, a line each, in the order in which they are done.",
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
) -> None:
    """Answer a file of OpenAI batch requests.

    A line of REQUESTS is {"custom_id", "method": "POST", "url", "body"} with /v1/completions or
    /v1/chat/completions. A bad line is refused before any work; what only the model can refuse
    becomes an answer of status 400. After a kill the same command goes on where it ended: no answer
    is lost or written twice. MODEL answers whatever model a body names.

    \b
    Examples:
      specqd batch requests.jsonl -o answers.jsonl
      specqd batch requests.jsonl -o answers.jsonl Qwen/Qwen3-0.6B --draft mxfp4
    """
    from specqd.engine.reports import Stats
    from specqd.hub import shipped_model
    from specqd.openai.batch import answer_batch, open_answers, read_batch

    asked = read_batch(requests, _name(model or str(shipped_model())))
    with open_answers(out, asked) as answers:
        before = len(answers.done)
        if before == len(asked.requests):
            print(one_line(f"specqd: {out}: all are answered already ({before})"), file=sys.stderr)
            return
        llm = open_llm(model, draft, threads, isa)
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
    """The name that answers give the model, the same from wherever it is run."""
    path = Path(model)
    return path.resolve().name if path.is_dir() else model
