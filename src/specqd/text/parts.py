"""Splits a chat's answer into reasoning, content and tool calls, in the order of the model's text.

Knows texts. Does not know in which form parts are sent.
"""

from collections.abc import Collection
from dataclasses import dataclass

from specqd.text.reasoning import Reasoning
from specqd.text.tool_calls import CallForm
from specqd.text.tool_reader import CallPiece, ToolReader


@dataclass(frozen=True, slots=True)
class Thought:
    """New text of the reasoning."""

    text: str


Part = Thought | str | CallPiece


class PartReader:
    """Reads one sample. names: of the functions that it may call; form: how it writes calls."""

    def __init__(
        self, reasoning: Reasoning | None, form: CallForm | None, names: Collection[str]
    ) -> None:
        self._splitter = reasoning.splitter() if reasoning else None
        self._tools: ToolReader | None = None
        if names and form is not None:
            self._tools = ToolReader(set(names), is_tagged=form.is_tagged, opener=form.opener)

    @property
    def num_calls(self) -> int:
        """The number of complete calls in the text so far."""
        return 0 if self._tools is None else self._tools.num_calls

    @property
    def has_calls(self) -> bool:
        """Whether the text so far has a complete call."""
        return self.num_calls > 0

    def read(self, text: str, *, is_last: bool) -> list[Part]:
        """Returns the parts that this text made final. is_last: no text follows."""
        parts: list[Part] = []
        if self._splitter is not None:
            text, thought = self._splitter.split(text, is_last=is_last)
            parts += [Thought(thought)] if thought else []
        if self._tools is None:
            return [*parts, text] if text else parts
        parts += self._tools.feed(text)
        if is_last:
            parts += self._tools.finish()
        return parts
