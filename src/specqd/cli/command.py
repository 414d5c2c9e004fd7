"""Click's commands and options, with hidden further names and more sources of values.

A value comes from the command line, else from the variable that is named `SPECQD_` and the option's
name, else from the configuration file.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specqd.cli.peers import COMMANDS, refused_commands, refused_options
from specqd.cli.settings import all_names, settings_file
from specqd.errors import SpecqdError, SpecqdWarning

if TYPE_CHECKING:
    from click.parser import _OptionParser

ENVIRONMENT_PREFIX = "SPECQD"
_MODEL_GIVEN = "specqd.model"  # key of the context's meta: MODEL, given as an option


class Option(click.Option):
    """An option with further names, which neither the help nor the completion shows."""

    def __init__(self, names: Sequence[str], also: Sequence[str] = (), **settings: Any) -> None:
        longest = max(names, key=lambda name: len(name) - len(name.lstrip("-")))
        settings.setdefault("envvar", _variable(longest))
        super().__init__(names, **settings)
        self.also = also

    def add_to_parser(self, parser: "_OptionParser", ctx: click.Context) -> None:
        shown = self.opts
        self.opts = [*shown, *self.also]
        super().add_to_parser(parser, ctx)
        self.opts = shown


class Model(click.Argument):
    """The argument MODEL, which the hidden option -m, --model sets too."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        by_option = ctx.meta.pop(_MODEL_GIVEN, None)
        if by_option is None:
            if isinstance(value, str) and " " in value and not os.path.exists(value):
                problem = f"{value!r} is not a model; name one first, such as qwen3:0.6b, then the"
                raise click.UsageError(f"{problem} text", ctx)
            return super().process_value(ctx, value)
        if ctx.get_parameter_source(self.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"MODEL is given twice: {value} and -m {by_option}", ctx)
        return by_option


def keep_model(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """The callback of -m, --model."""
    if value is not None:
        ctx.meta[_MODEL_GIVEN] = value


class Command(click.Command):
    """A command that reads SPECQD_* variables, and answers options of other programs with ours."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.context_settings.setdefault("auto_envvar_prefix", ENVIRONMENT_PREFIX)
        self.context_settings.setdefault("token_normalize_func", _dashed)  # --top_p is --top-p

    @cached_property
    def _refused(self) -> list[click.Option]:
        return refused_options({name for each in self.params for name in all_names(each)})

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *self._refused]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:  # suggests none of the refused options
            names = [name for each in super().get_params(ctx) for name in all_names(each)]
            raise click.NoSuchOption(error.option_name, possibilities=names, ctx=ctx) from error
        except click.BadParameter as error:
            if origin := _origin(ctx, error.param):
                problem = f"{error.message} It is set in {origin}."
                raise click.BadParameter(problem, error.ctx, error.param) from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SpecqdError as error:
            name_option(error)
            raise


class Group(click.Group):
    """A group of commands, with hidden further names for some."""

    command_class = Command
    group_class = type

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if hint := refused_commands().get(args[0]):
            raise click.UsageError(f"No such command: {args[0]}. {hint}", ctx)
        return super().resolve_command(ctx, [COMMANDS.get(args[0], args[0]), *args[1:]])


def name_option(problem: SpecqdError | SpecqdWarning) -> None:
    """Lets a message name an option of the running command in place of the parameter that the
    option sets: `--cache-positions 0: ...`, not `cache_positions 0: ...`."""
    context = click.get_current_context(silent=True)
    option = f"--{problem.parameter}".replace("_", "-")
    if context is not None and any(option in each.opts for each in context.command.params):
        problem.parameter = option


def _variable(name: str) -> str:
    return f"{ENVIRONMENT_PREFIX}_{name.lstrip('-').replace('-', '_').upper()}"


def _dashed(token: str) -> str:
    return token.replace("_", "-")


def _origin(ctx: click.Context, parameter: click.Parameter | None) -> str | None:
    """Where a wrong value came from, if not from the command line."""
    if parameter is None:
        return None
    source = ctx.get_parameter_source(parameter.name)
    if source is ParameterSource.ENVIRONMENT:
        named = parameter.envvar if isinstance(parameter.envvar, str) else None
        return named or _variable(parameter.name)
    if source is ParameterSource.DEFAULT_MAP:
        return str(settings_file())
    return None
