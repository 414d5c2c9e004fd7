"""Options of sampling, named like the fields of SamplingParams."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from specqd.cli.options import Command, option
from specqd.errors import shown

_LONGEST_SCHEMA = 1 << 20  # characters that are read of a file


class SchemaFile(click.ParamType[dict[str, Any]]):
    """A JSON schema: a file, or the JSON itself."""

    name = "schema"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        text = value if value.lstrip().startswith("{") else self._text_of(value, param, ctx)
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.fail(f"{shown(value)} is not JSON: {error}.", param, ctx)
        if not isinstance(schema, dict):
            self.fail(f"{shown(value)} is not a JSON schema, which is an object.", param, ctx)
        return schema

    def _text_of(self, path: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            with open(path, encoding="utf-8-sig") as file:
                return file.read(_LONGEST_SCHEMA)
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or "is not a text in UTF-8"
            self.fail(f"{shown(path)}: {cause}; name a file with a JSON schema.", param, ctx)


def recommended_options(command: Command) -> Command:
    """The options of sampling that a model's authors may recommend."""
    options = [
        option(
            "--temperature",
            also=("--temp",),
            type=float,
            help="Sampling temperature; 0: greedy.",
        ),
        option("--top-p", type=float, help="Nucleus sampling: cumulative probability to keep."),
        option("--top-k", type=int, help="Sample from the K likeliest tokens; 0: all."),
        option("--min-p", type=float, help="Least probability, relative to the likeliest token's."),
        option(
            "--repetition-penalty",
            also=("--repeat-penalty",),
            type=float,
            help="Divide the logits of tokens that are in the prompt or the text by this; 1: off.",
        ),
    ]
    return _with(command, options)


def sampling_options(command: Command, *, max_tokens: int | None = 128) -> Command:
    """Adds options named like the fields of SamplingParams, with this default of --max-tokens."""
    most = "-1: until the context is full."
    options = [
        option(
            *("-n", "--max-tokens"),
            also=("--predict", "--n-predict", "--num-predict", "--max-new-tokens"),
            type=int,
            default=max_tokens,
            show_default=max_tokens is not None,
            callback=_count,
            help=f"Maximum of new tokens; {most}",
        ),
        recommended_options,
        option(
            "--presence-penalty",
            type=float,
            help="Subtract this from the logits of tokens that are in the new text. Default: 0.",
        ),
        option(
            "--frequency-penalty",
            type=float,
            help="Subtract this for each time that a token is in the new text. Default: 0.",
        ),
        option(
            "--seed", also=("-s",), type=int, help="Makes sampling repeatable. Default: random."
        ),
        option(
            "--stop",
            also=("-r", "--reverse-prompt"),
            multiple=True,
            metavar="TEXT",
            help="Stop before TEXT. May repeat.",
        ),
        option("--ignore-eos", is_flag=True, help="Continue after the model's end-of-text tokens."),
        option(
            "--thinking-token-budget",
            also=("--reasoning-budget", "--think-budget"),
            type=int,
            metavar="N",
            help="Most tokens of the reasoning before an answer; then the answer begins.",
        ),
        option(
            "--schema",
            also=("-j", "--json-schema", "-jf", "--json-schema-file", "--guided-json"),
            excludes=("pattern", "ignore_eos"),
            type=SchemaFile(),
            metavar="FILE",
            help="Write JSON that follows the JSON schema in FILE. FILE may be the JSON itself.",
        ),
        option(
            "--pattern",
            also=("--guided-regex",),
            excludes=("ignore_eos",),
            metavar="REGEX",
            help="Write a text that matches this regular expression as a whole.",
        ),
    ]
    return _with(command, options)


def _with(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    """The command with these options, in this order."""
    for each in reversed(options):
        command = each(command)
    return command


def _count(context: click.Context, parameter: click.Parameter, count: int | None) -> int | None:
    """-1 means no limit, as in llama.cpp and Ollama."""
    if count is not None and count < 1 and count != -1:
        raise click.BadParameter(f"{count} is not a number from 1, or -1 for as many as fit.")
    return None if count == -1 else count


def sampling_of(sampling: dict[str, Any]) -> dict[str, Any]:
    """The fields of SamplingParams that were given, and max_tokens."""
    return {
        name: value for name, value in sampling.items() if value is not None or name == "max_tokens"
    }
