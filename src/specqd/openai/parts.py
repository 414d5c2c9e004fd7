"""Splits a chat's answer into reasoning, content and tool calls, in the order of the model's text.

Knows the text of updates. Does not know in which form parts are sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from specqd.engine.updates import Update
from specqd.openai.requests import Prepared
from specqd.text.parts import Part, PartReader, Thought
from specqd.text.tool_reader import CallPiece

Kind = Literal["thought", "text", "call"]
Step = Literal["begin", "more", "end", "cut"]  # cut: max_tokens ends the text within the block


def reader_of(prepared: Prepared) -> PartReader:
    """Returns the reader of one sample of a request."""
    use = prepared.tool_use
    names = [tool.name for tool in use.callable] if use is not None else []
    return PartReader(prepared.reasoning, prepared.call_form, names)


@dataclass(slots=True)
class Block:
    """Adjacent parts of one kind. Each call is a block of its own."""

    index: int
    kind: Kind
    name: str = ""  # the function of a call
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The block's text so far; for a call, its arguments."""
        return "".join(self.pieces)


class BlockReader:
    """Reads one sample as consecutive blocks. An answer has at least one block."""

    def __init__(self, prepared: Prepared) -> None:
        self._reader = reader_of(prepared)
        self._open: tuple[Block, int] | None = None  # with the call's index, or -1
        self._count = 0

    @property
    def has_calls(self) -> bool:
        return self._reader.has_calls

    def read(self, update: Update) -> Iterator[tuple[Step, Block, str]]:
        """Yields steps with their blocks and, for "more", the new text."""
        for part in self._reader.read(update.text, is_last=update.finish_reason is not None):
            kind, name, text, number = _members_of(part)
            if self._open is None or (self._open[0].kind, self._open[1]) != (kind, number):
                yield from self._end()
                yield from self._begin(kind, name, number)
            if text and self._open is not None:
                self._open[0].pieces.append(text)
                yield "more", self._open[0], text
        if update.finish_reason is not None:
            if not self._count:
                yield from self._begin("text", "", -1)
            is_cut = update.finish_reason == "length" and not self._is_whole_call()
            yield from self._end("cut" if is_cut else "end")

    def _is_whole_call(self) -> bool:
        """Returns whether the open block is a call that is complete."""
        return self._open is not None and -1 < self._open[1] < self._reader.num_calls

    def _begin(self, kind: Kind, name: str, number: int) -> Iterator[tuple[Step, Block, str]]:
        block = Block(self._count, kind, name)
        self._open, self._count = (block, number), self._count + 1
        yield "begin", block, ""

    def _end(self, step: Step = "end") -> Iterator[tuple[Step, Block, str]]:
        if self._open is not None:
            block, self._open = self._open[0], None
            yield step, block, ""


def _members_of(part: Part) -> tuple[Kind, str, str, int]:
    """Returns the kind, the function's name, the text and the call's index, or -1."""
    if isinstance(part, CallPiece):
        return "call", part.name or "", part.arguments, part.index
    if isinstance(part, Thought):
        return "thought", "", part.text, -1
    return "text", "", part, -1


def id_of(prefix: str, key: str, *places: int) -> str:
    """Returns the id of a part of the answer that has this key."""
    digest = sha256(".".join([key, *map(str, places)]).encode()).hexdigest()
    return prefix + digest[:24]
