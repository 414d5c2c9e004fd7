"""The arguments that several commands share. Knows nothing of what they do with them."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_ISAS = ("amx", "avx512bf16", "avx512", "avx2vnni", "avx2", "portable")


def model_argument(command: Command) -> Command:
    return click.argument("model", required=False)(command)


def machine_options(command: Command) -> Command:
    threads = click.option(
        "--threads", type=int, metavar="N", help="Threads. Default: the usable cores."
    )
    isa = click.option(
        "--isa", type=click.Choice(_ISAS), help="Instruction set. Default: the fastest."
    )
    return threads(isa(command))


def draft_option(command: Command) -> Command:
    return click.option(
        "--draft",
        multiple=True,
        metavar="DRAFT",
        help="auto (default), none, or a chain from the outermost in, one --draft a level: mxfp4 "
        "(the model's own precision), MODEL[:bf16|:mxfp4], ngram[:FILE]; each may end in :k=N, its "
        "tokens at a time. Changes the speed, never the text.",
    )(command)


def context_option(command: Command) -> Command:
    return _context_option("--context")(command)


def served_context_option(command: Command) -> Command:
    """With the name that servers have for it too."""
    return _context_option("--context", "--max-context")(command)


def _context_option(*names: str) -> Callable[[Command], Command]:
    return click.option(
        *names,
        "context",
        type=click.IntRange(1),
        metavar="N",
        help="Longest text, prompt included, in tokens: less memory; ropes with factors for long "
        "texts take those for short ones where N allows. Default: the model's.",
    )


def precision_option(command: Command) -> Command:
    return click.option(
        "--precision",
        "--reading",
        type=click.Choice(["exact", "fp4", "draft"]),
        metavar="[exact|fp4]",
        default="exact",
        callback=_precision,
        help="fp4: generate from the MXFP4 weights only (not lossless).",
    )(command)


def _precision(context: click.Context, parameter: click.Parameter, word: str) -> str:
    """`--reading` and `draft` are the old spellings."""
    if word == "draft":
        click.echo("note: --reading draft is now --precision fp4", err=True)
        return "fp4"
    return word


def prompt_options(command: Command) -> Command:
    prompt = click.option(
        "-p", "--prompt", metavar="TEXT", help="The text to continue; - reads standard input."
    )
    file = click.option(
        "-f",
        "--file",
        type=click.Path(exists=True, dir_okay=False),
        help="A file with the text to continue.",
    )
    return prompt(file(command))


def sampling_options(command: Command, *, max_tokens: int | None = 128) -> Command:
    """Options that bear the names of SamplingParams' fields, with this default for --max-tokens."""
    options = [
        click.option(
            "-n",
            "--max-tokens",
            type=int,
            default=max_tokens,
            show_default=max_tokens is not None,
            help="New tokens at most.",
        ),
        click.option("--temperature", type=float, help="0 takes the likeliest token."),
        click.option("--top-p", type=float, help="Sample from this share of the probability."),
        click.option("--top-k", type=int, help="Sample from so many tokens; 0: all."),
        click.option("--min-p", type=float, help="Least probability, relative to the likeliest's."),
        click.option("--seed", type=int, help="Repeats a sampled text. Default: a random one."),
        click.option("--stop", multiple=True, metavar="TEXT", help="End before it. May repeat."),
    ]
    for option in reversed(options):
        command = option(command)
    return command
