"""Changes of a conversation's sampling by `/set`."""

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from specqd.cli.command import Option
from specqd.cli.settings import all_names
from specqd.errors import RequestError

if TYPE_CHECKING:
    from specqd.sampling import SamplingParams

_LONGEST = 60  # characters of a schema


class Settings:
    """The parameters that `/set` changes, with the names and types of the options."""

    def __init__(self, context: click.Context, params: "SamplingParams") -> None:
        known = {each.name for each in fields(params)}
        self._context = context
        self._options = {
            name.lstrip("-"): option
            for option in context.command.params
            if isinstance(option, Option) and option.name in known
            for name in all_names(option)
        }
        self._first = params

    @property
    def names(self) -> list[str]:
        """The long names, as the help shows them."""
        shown = {option.name: option.opts[-1].lstrip("-") for option in self._options.values()}
        return list(shown.values())

    def changed(self, params: "SamplingParams", name: str, text: str) -> "SamplingParams":
        """The parameters with another value; `-` stands for the first one."""
        option = self._options.get(name.replace("_", "-"))
        if option is None:
            raise RequestError(f"{name} cannot be set; known: {', '.join(self.names)}")
        field = str(option.name)
        if text == "-":
            return replace(params, **{field: getattr(self._first, field)})
        return replace(params, **{field: self._value(option, name, text)})

    def _value(self, option: Option, name: str, text: str) -> Any:
        try:
            return option.process_value(self._context, [text] if option.multiple else text)
        except click.BadParameter as error:
            raise RequestError(f"{name}: {error.message}") from error

    def described(self, params: "SamplingParams") -> str:
        """One line with all values."""
        values = {each: getattr(params, each.replace("-", "_")) for each in self.names}
        return ", ".join(f"{name} {_shown(value)}" for name, value in values.items())


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return " ".join(map(repr, value)) or "-" if isinstance(value, tuple) else str(value)
