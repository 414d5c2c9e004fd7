"""Click's commands and options, with hidden further names and more sources of values.

A value comes from the command line, else from the variable that is named `SPECQD_` and the option's
name, else from the configuration file. What the command line says also wins where two options
cannot be combined, and an option that lacks the one it needs is refused only on the command line.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specqd.cli.peers import COMMANDS, refused_commands, refused_options
from specqd.cli.settings import all_names, settings_file
from specqd.errors import ConfigError, SpecqdError, SpecqdWarning

if TYPE_CHECKING:
    from click.parser import _OptionParser

MODEL_OPTION = ("-m", "--model", "-hf", "--hf-repo")
_MODEL_GIVEN = "specqd.model"  # key of the context's meta: MODEL, given as an option


class Option(click.Option):
    """An option with further names, which neither the help nor the completion shows.

    needs: the parameter without which this one has no effect. excludes: parameters that cannot be
    combined with it.
    """

    def __init__(
        self,
        names: Sequence[str],
        also: Sequence[str] = (),
        needs: str | None = None,
        excludes: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__(names, **settings)
        self.also = also
        self.needs = needs
        self.excludes = excludes
        empty = () if settings.get("multiple") else False if settings.get("is_flag") else None
        self.absent = settings.get("default", empty)

    def add_to_parser(self, parser: "_OptionParser", ctx: click.Context) -> None:
        shown = self.opts
        self.opts = [*shown, *self.also]
        super().add_to_parser(parser, ctx)
        self.opts = shown


class Model(click.Argument):
    """The argument MODEL, which the hidden option -m, --model sets too."""

    also = MODEL_OPTION

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        by_option = ctx.meta.pop(_MODEL_GIVEN, None)
        if by_option is None:
            if isinstance(value, str) and " " in value and not os.path.exists(value):
                problem = f"{value!r} is not a model; name one first, such as qwen3:0.6b, then the"
                raise click.UsageError(f"{problem} text", ctx)
            return super().process_value(ctx, value)
        if ctx.get_parameter_source(self.name) is ParameterSource.COMMANDLINE:
            given = value if isinstance(value, str) else " ".join(value)
            raise click.UsageError(f"MODEL is given twice: {given} and -m {by_option}", ctx)
        return by_option if self.nargs == 1 else (by_option,)


class ModelName(click.types.StringParamType):
    """The name of a model. A variable or the file names one, as paths may contain spaces; a list in
    the file names several."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


def keep_model(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """The callback of -m, --model."""
    if value is not None:
        ctx.meta[_MODEL_GIVEN] = value


class Command(click.Command):
    """A command that reads SPECQD_* variables, and answers options of other programs with ours."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for each in self.params:
            if isinstance(each, click.Option) and each.expose_value and each.envvar is None:
                each.envvar = _variable(max(each.opts, key=len))
        self.context_settings.setdefault("token_normalize_func", _dashed)  # --top_p is --top-p

    @cached_property
    def _refused(self) -> list[click.Option]:
        return refused_options({name for each in self.params for name in all_names(each)})

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *self._refused]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for value in (ctx.default_map or {}).values():
            if isinstance(value, ConfigError) and not ctx.resilient_parsing:
                raise value
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:  # suggests none of the refused options
            names = [name for each in super().get_params(ctx) for name in all_names(each)]
            raise click.NoSuchOption(error.option_name, possibilities=names, ctx=ctx) from error
        except click.BadParameter as error:
            if origin := _origin(ctx, error.param):
                problem = f"{error.message} It is set in {origin}."
                raise click.BadParameter(problem, error.ctx, error.param) from error
            raise
        if not ctx.resilient_parsing:
            _Combination(ctx).check()
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SpecqdError as error:
            name_option(error)
            raise


class _Combination:
    """The parameters of one command line that depend on each other."""

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx
        self._by_name = {str(each.name): each for each in ctx.command.params}
        self._options = [each for each in ctx.command.params if isinstance(each, Option)]

    def check(self) -> None:
        """Drops options that a better source overrules, or that lack what they need. Raises
        UsageError if the command line itself contradicts itself or lacks it."""
        for option in self._options:
            for other in option.excludes:
                if self._is_given(option.name) and self._is_given(other):
                    self._choose(option, self._by_name[other])
        for option in self._options:
            if option.needs and self._is_given(option.name) and not self._is_given(option.needs):
                if self._source(option) is ParameterSource.COMMANDLINE:
                    needed = _shown(self._by_name[option.needs])
                    self._ctx.fail(f"{_shown(option)} needs {needed}; add it")
                self._drop(option)

    def _is_given(self, name: str) -> bool:
        return self._ctx.params.get(name) not in (None, False, ()) and (
            self._source(self._by_name[name]) is not ParameterSource.DEFAULT
        )

    def _source(self, parameter: click.Parameter) -> ParameterSource:
        source = self._ctx.get_parameter_source(str(parameter.name))
        return source or ParameterSource.DEFAULT

    def _choose(self, *rivals: click.Parameter) -> None:
        better, worse = sorted(rivals, key=self._source)
        if self._source(better) == self._source(worse) or not isinstance(worse, Option):
            places = " and ".join(f"{_shown(each)}{self._place(each)}" for each in rivals)
            self._ctx.fail(f"{places} cannot be combined; give one of them")
        self._drop(worse)

    def _place(self, parameter: click.Parameter) -> str:
        origin = _origin(self._ctx, parameter)
        return f" (set in {origin})" if origin else ""

    def _drop(self, option: Option) -> None:
        self._ctx.params[option.name] = option.absent


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


def _shown(parameter: click.Parameter) -> str:
    """An option's longest name, or an argument's: TEXT."""
    if isinstance(parameter, click.Argument):
        return (parameter.metavar or parameter.name.upper()).strip("[].")
    return max(parameter.opts, key=len)


def _variable(name: str) -> str:
    return f"SPECQD_{name.lstrip('-').replace('-', '_').upper()}"


def _dashed(token: str) -> str:
    return token.replace("_", "-")


def _origin(ctx: click.Context, parameter: click.Parameter | None) -> str | None:
    """Where a wrong value came from, if not from the command line."""
    if parameter is None:
        return None
    source = ctx.get_parameter_source(parameter.name)
    if source is ParameterSource.ENVIRONMENT:
        return str(parameter.envvar)
    if source is ParameterSource.DEFAULT_MAP:
        return str(settings_file())
    return None
