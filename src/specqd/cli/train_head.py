"""`specqd train-head`: trains a small layer that drafts for a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from specqd.cli.command import Command
from specqd.cli.opening import open_llm
from specqd.cli.options import IN_FILE, MODEL_IS, MachineChoice, complete_model, machine_options
from specqd.cli.terminal import ProgressBar, one_line, say

if TYPE_CHECKING:
    from specqd.train.training import Result

_TEXTS_AT_ONCE = 20  # that the KV cache holds


class _Layers(click.ParamType[tuple[int, ...]]):
    """Numbers with commas between them."""

    name = "layers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        words = str(value).split(",")
        if not all(word.isascii() and word.isdecimal() and len(word) < 6 for word in words):
            self.fail(f"{value!r} is no list of numbers such as 2,15,27.", param, ctx)
        return tuple(map(int, words))


@click.command("train-head", cls=Command)
@click.argument("model", shell_complete=complete_model, help=MODEL_IS)
@click.option(
    *("-o", "--out"),
    required=True,
    type=click.Path(path_type=Path),
    help="Directory of the head. One that a stopped run left is continued.",
)
@click.option(
    "--prompts",
    type=IN_FILE,
    help="Prompts that the model answers: JSON lines with `prompt` or `messages`. Default: it "
    "writes the prompts too.",
)
@click.option(
    "--texts",
    type=IN_FILE,
    help="Texts to train on as they are: JSON lines with `text` or `messages`.",
)
@click.option(
    "--tokens",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(1),
    help="Tokens that the model writes.",
)
@click.option(
    "--epochs", default=4, show_default=True, type=click.IntRange(1), help="Times each is read."
)
@click.option(
    "--length",
    default=512,
    show_default=True,
    type=click.IntRange(16),
    help="Tokens of a text at most, prompt included.",
)
@click.option(
    "--batch",
    default=4,
    show_default=True,
    type=click.IntRange(1, 1024),
    help="Texts of one step of the optimiser.",
)
@click.option(
    "--vocabulary",
    type=click.IntRange(2),
    metavar="N",
    help="Tokens that the head knows: the commonest ones of the texts. Default: all, with the "
    "model's own output; 8192 if the model has more than 16384.",
)
@click.option(
    "--layers",
    type=_Layers(),
    metavar="N,N,N",
    help="The head reads the inputs of these layers. Default: 2, the middle one, the third-last.",
)
@click.option("--ffn", type=click.IntRange(1), metavar="N", help="Width. Default: the model's.")
@click.option(
    "--rate",
    default=6e-4,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="The highest learning rate.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**31 - 1))
@click.option(
    "--checkpoint",
    "minutes",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Minutes between checkpoints.",
)
@machine_options
def train_head(
    model: str,
    out: Path,
    prompts: Path | None,
    texts: Path | None,
    minutes: float,
    machine: MachineChoice,
    **settings: Any,
) -> None:
    """Train an EAGLE-3 head: one small layer that drafts for MODEL.

    MODEL writes texts, some of them greedily, and the head learns to foresee them from the model's
    residuals. After a kill or Ctrl-C, run the same command again: it continues. Needs
    specqd[train], and hours on a CPU. Draft with --draft head:OUT, or below the fp4 draft with
    --draft fp4 --draft head:OUT.

    \b
    Examples:
      specqd train-head smollm2:135m -o ./smollm2-head
      specqd train-head ./model --prompts prompts.jsonl -o ./head --tokens 300000 --epochs 2
    """
    from specqd.config import read_config
    from specqd.hub import resolve
    from specqd.train import files, training
    from specqd.train.settings import make_settings

    if prompts is not None and texts is not None:
        raise click.UsageError("--prompts and --texts exclude each other; give one")
    training.require_torch()
    chosen = make_settings(read_config(resolve(model)), **settings)
    sources = training.Sources(texts, prompts)
    course = files.begin_directory(out, chosen, model, sources.described())
    positions = _TEXTS_AT_ONCE * chosen.length
    llm = open_llm(model, "auto", machine, cache_positions=positions)
    with ProgressBar("Writing texts") as bar:
        written = training.make_texts(llm, sources, chosen, out, bar)
    with ProgressBar("Training") as bar, _told_of_checkpoints(out):
        result = training.train(llm, written, chosen, out, 60 * minutes, monotonic, bar)
    files.write_json(out / files.COURSE, course | result.described())
    click.echo(one_line(f"{out}: {_described(result)}"))


@contextmanager
def _told_of_checkpoints(out: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(f"{out}: stopped; the same command goes on from here")
        raise


def _described(result: "Result") -> str:
    agreed = ", ".join(f"{share:.3f}" for share in result.agreement)
    loss = "" if result.loss is None else f", loss {result.loss:.3f}"
    return (
        f"{result.tokens:,} tokens in {result.seconds / 60:.1f} minutes{loss}; agreement by guess "
        f"on {result.held_out} texts held out: {agreed or '-'}"
    )
