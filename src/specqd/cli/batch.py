"""`specqd batch`: a file of OpenAI requests in, a file of answers out."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specqd.cli.command import Command
from specqd.cli.draft_options import Drafting, draft_options
from specqd.cli.opening import open_llm
from specqd.cli.options import (
    IN_FILE,
    OUT_FILE,
    MachineChoice,
    machine_options,
    model_argument,
    option,
    quiet_option,
    template_option,
)
from specqd.cli.terminal import ProgressBar, inform
from specqd.errors import RequestError
from specqd.extras import install_command

if TYPE_CHECKING:
    from specqd.llm import LLM
    from specqd.openai.batch import Answers, Batch
    from specqd.ray.worker import Workers


@click.command(cls=Command)
@click.argument("requests", type=IN_FILE)
@model_argument
@click.option(
    *("-o", "--out"),
    required=True,
    type=OUT_FILE,
    callback=lambda context, parameter, path: _file(path),
    help="File for the answers, one per line, in order of completion.",
)
@template_option()
@draft_options
@machine_options
@quiet_option()
@option(
    "--ray",
    excludes=("numa",),
    metavar="ADDRESS",
    help="Use the workers of this Ray cluster; `auto`: the one of this machine. Needs the extra "
    "`ray`.",
)
@option(
    "--workers",
    needs="ray",
    type=click.IntRange(1),
    metavar="N",
    help="Copies of the model in the cluster, of --threads cores each. Default: all that fit.",
)
def batch(
    requests: Path,
    model: str | None,
    out: Path,
    chat_template: Path | None,
    draft: Drafting,
    machine: MachineChoice,
    ray: str | None,
    workers: int | None,
) -> None:
    """Answer a file of OpenAI batch requests.

    Each line of REQUESTS is {"custom_id", "method": "POST", "url", "body"} with url
    /v1/completions, /v1/chat/completions or /v1/responses. All lines are checked before any work; a
    request that only the model can refuse gets an answer with status 400. After a kill, run the
    same command again: it continues, and no answer is lost or written twice. The name of the model
    in a body is ignored.

    \b
    Examples:
      specqd batch requests.jsonl -o answers.jsonl
      specqd batch requests.jsonl -o answers.jsonl Qwen/Qwen3-0.6B --draft fp4
      specqd batch requests.jsonl -o answers.jsonl Qwen/Qwen3-0.6B --ray auto
    """
    from specqd.hub import shipped_model
    from specqd.openai.batch import open_answers, read_batch
    from specqd.text.tokenizer_files import read_template

    if ray is not None and find_spec("ray") is None:
        raise RequestError(f"--ray needs ray; {install_command('ray')}")

    template = "" if chat_template is None else read_template(chat_template)
    asked = read_batch(requests, name_in_answers(model or str(shipped_model())), template)
    with open_answers(out, asked) as answers, _saying_how_to_continue(asked, answers):
        before = len(answers.done)
        if before == len(asked.requests):
            inform(f"{out}: all {before} requests are answered already")
            return
        if ray is None:
            llm = open_llm(model, draft, machine, chat_template=chat_template)
            refused, counts = _answer(asked, answers, llm)
        else:
            made = _workers(model, asked.model, draft, machine, workers, chat_template)
            refused, counts = _answer_by_ray(ray, made, asked, answers), []
        new = len(answers.done) - before
    parts = [f"{new} {'answer' if new == 1 else 'answers'}", *counts]
    parts += [f"{refused} refused with status 400"] if refused else []
    parts += [f"{before} answered before"] if before else []
    inform(", ".join(parts))


def _file(path: Path) -> Path:
    if str(path) == "-":
        raise click.BadParameter("A later run continues the answers; name a file.")
    return path


@contextmanager
def _saying_how_to_continue(asked: "Batch", answers: "Answers") -> Iterator[None]:
    """At Ctrl-C, says how much is done."""
    try:
        yield
    except KeyboardInterrupt:
        done = f"{len(answers.done)} of {len(asked.requests)} requests are answered"
        inform(f"{done}; the same command continues")
        raise


def _answer(asked: "Batch", answers: "Answers", llm: "LLM") -> tuple[int, list[str]]:
    """Answers in this process; returns the number of refused requests, then tokens and speed."""
    from specqd.engine.reports import Stats
    from specqd.openai.batch import answer_batch

    with ProgressBar("Answering") as bar:
        refused = answer_batch(llm, asked, answers, bar)
    stats = Stats.of(llm.engine)
    return refused, [f"{stats.new_tokens} tokens", f"{stats.tokens_per_s:.1f} tokens/s"]


def _workers(
    model: str | None,
    name: str,
    draft: Drafting,
    machine: MachineChoice,
    count: int | None,
    chat_template: Path | None,
) -> "Workers":
    from specqd.ray.options import absolute
    from specqd.ray.worker import Workers

    return Workers(
        absolute(model),
        name,
        tuple(absolute(word) or word for word in draft.chain),
        machine.threads,
        machine.isa,
        count,
        absolute(draft.small),
        None if chat_template is None else absolute(str(chat_template)),
    )


def _answer_by_ray(address: str, workers: "Workers", asked: "Batch", answers: "Answers") -> int:
    from specqd.ray.batch_files import answer_batch

    with ProgressBar("Answering") as bar:
        return answer_batch(address, workers, asked, answers, bar)


def name_in_answers(model: str) -> str:
    """The model's name in answers, as `serve` has it: no path. Fetches nothing."""
    from specqd.hub import SHORT_NAMES, expanded, model_name

    path = expanded(model)
    return model_name(path) if path.exists() else SHORT_NAMES.get(model, model)
