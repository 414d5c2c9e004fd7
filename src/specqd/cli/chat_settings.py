"""A conversation's sampling: the options, the model's own values and the changes by `/set`."""

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import click

from specqd.cli.command import Option
from specqd.cli.settings import all_names
from specqd.errors import RequestError

if TYPE_CHECKING:
    from specqd.llm import LLM
    from specqd.sampling import SamplingParams

_LONGEST = 60  # characters of a schema
_CONTINUED_TOKENS = 128  # at a time, of a model without a chat template


class Settings:
    """The parameters that `/set` changes, with the names and types of the options.

    given: what the command line says.
    """

    def __init__(self, context: click.Context, given: "SamplingParams") -> None:
        known = {each.name for each in fields(given)}
        self._context = context
        self._options = {
            name.lstrip("-"): option
            for option in context.command.params
            if isinstance(option, Option) and option.name in known
            for name in all_names(option)
        }
        self._given = given
        self._changes: dict[str, Any] = {}

    def params(self, llm: "LLM") -> "SamplingParams":
        """The parameters for this model."""
        from specqd.sampling import chat_sampling

        first = chat_sampling(self._given, llm.defaults)
        if not llm.tokenizer.has_chat_template and first.max_tokens is None:
            first = replace(first, max_tokens=_CONTINUED_TOKENS)
        return replace(first, **self._changes)

    def ours(self, llm: "LLM") -> "SamplingParams | None":
        """The parameters, if their temperature is neither given nor the model's own."""
        params = self.params(llm)
        is_given = self._given.temperature is not None or "temperature" in self._changes
        return None if is_given or params.temperature is None else params

    @property
    def names(self) -> list[str]:
        """The long names, as the help shows them."""
        shown = {option.name: option.opts[-1].lstrip("-") for option in self._options.values()}
        return list(shown.values())

    def change(self, name: str, text: str) -> None:
        """Sets another value; `-` stands for the first one."""
        option = self._options.get(name.replace("_", "-"))
        if option is None:
            raise RequestError(f"{name} cannot be set; known: {', '.join(self.names)}")
        others = {field: old for field, old in self._changes.items() if field != option.name}
        new = {} if text == "-" else {str(option.name): self._value(option, name, text)}
        replace(self._given, **others, **new)  # checks the value
        self._changes = others | new

    def _value(self, option: Option, name: str, text: str) -> Any:
        try:
            return option.process_value(self._context, [text] if option.multiple else text)
        except click.BadParameter as error:
            raise RequestError(f"{name}: {error.message}") from error

    def described(self, llm: "LLM") -> str:
        """One line with all values."""
        params = self.params(llm).resolved(llm.defaults)
        values = {each: getattr(params, each.replace("-", "_")) for each in self.names}
        return ", ".join(f"{name} {_shown(value)}" for name, value in values.items())


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return " ".join(map(repr, value)) or "-" if isinstance(value, tuple) else str(value)
