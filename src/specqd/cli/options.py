"""Arguments and options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

IN_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUT_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
_ISAS = ("amx", "avx512bf16", "avx512", "avx2vnni", "avx2", "portable")


def model_argument(command: Command) -> Command:
    return click.argument("model", required=False)(command)


def machine_options(command: Command) -> Command:
    threads = click.option(
        "--threads", type=int, metavar="N", help="Threads. Default: all usable cores."
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
        help="auto (default: fp4|ngram), none, or a chain, outermost first, one option per level: "
        "fp4 (the model's own weights in 4 bits), mxfp4 (the same in MXFP4), "
        "MODEL[:bf16|:fp4|:mxfp4], head:DIR[:bf16|:fp4] (a trained EAGLE-3 head), ngram[:FILE]; "
        "A|B for two side by side; :k=N at the end fixes the draft length. "
        "Changes the speed, never the text.",
    )(command)


def context_option(command: Command) -> Command:
    return _context_option("--context")(command)


def served_context_option(command: Command) -> Command:
    """Accepts --max-context too."""
    return _context_option("--context", "--max-context")(command)


def _context_option(*names: str) -> Callable[[Command], Command]:
    return click.option(
        *names,
        "context",
        type=click.IntRange(1),
        metavar="N",
        help="Context length in tokens, prompt included. A shorter one needs less memory, and lets "
        "longrope models use their short factors. Default: the model's.",
    )


def precision_option(command: Command) -> Command:
    return click.option(
        "--precision",
        "--reading",
        type=click.Choice(["exact", "fp4", "draft"]),
        metavar="[exact|fp4]",
        default="exact",
        callback=_precision,
        help="fp4: generate from the 4-bit weights only (not lossless).",
    )(command)


def _precision(context: click.Context, parameter: click.Parameter, word: str) -> str:
    """Accepts `draft`, the old spelling of fp4."""
    if word == "draft":
        click.echo("note: --reading draft is now --precision fp4", err=True)
        return "fp4"
    return word


def prompt_options(command: Command) -> Command:
    prompt = click.option(
        "-p", "--prompt", metavar="TEXT", help="Text to continue; - reads standard input."
    )
    file = click.option(
        *("-f", "--file"),
        type=click.Path(exists=True, dir_okay=False),
        help="File with the text to continue.",
    )
    return prompt(file(command))


def sampling_options(command: Command, *, max_tokens: int | None = 128) -> Command:
    """Adds options with the names of SamplingParams' fields, and this default for --max-tokens."""
    options = [
        click.option(
            *("-n", "--max-tokens"),
            type=int,
            default=max_tokens,
            show_default=max_tokens is not None,
            help="Maximum of new tokens.",
        ),
        click.option("--temperature", type=float, help="Sampling temperature; 0: greedy."),
        click.option("--top-p", type=float, help="Keep the likeliest tokens up to this share."),
        click.option("--top-k", type=int, help="Keep the K likeliest tokens; 0: all."),
        click.option("--min-p", type=float, help="Least probability, relative to the likeliest."),
        click.option("--seed", type=int, help="Makes sampling repeatable. Default: random."),
        click.option("--stop", multiple=True, metavar="TEXT", help="Stop before TEXT. May repeat."),
    ]
    for option in reversed(options):
        command = option(command)
    return command
