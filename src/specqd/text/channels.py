"""Splits text into the channels that gpt-oss writes (Harmony format). Knows nothing of models.

<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specqd.text.stream import overlap

if TYPE_CHECKING:
    from specqd.text.tokenizer import Tokenizer

ANSWER = "final"  # the channel that a user reads
_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"
_NAMES = ("start", "channel", "message", "constrain", "end", "return", "call")
_MARKS = tuple(f"<|{name}|>" for name in _NAMES)
_MARK = re.compile(rf"<\|({'|'.join(_NAMES)})\|>")


def has_channels(tokenizer: "Tokenizer") -> bool:
    """Returns whether the tokenizer has the special tokens of channels."""
    return tokenizer.is_special(_CHANNEL) and tokenizer.is_special(_MESSAGE)


class HeaderTokens:
    """Finds the tokens of one text that are not in a message: marks, and headers that name
    channels. A text is in a message until its first mark."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._marks = {tokenizer.id_of(mark) for mark in _MARKS}
        self._message = tokenizer.id_of(_MESSAGE)
        self._is_header = False

    def has_next(self, token: int) -> bool:
        """Returns whether the text's next token, `token`, is one of them."""
        if token in self._marks:
            self._is_header = token != self._message
            return True
        return self._is_header


class ChannelReader:
    """Splits one text, in which special tokens are spelled out, into its channels.

    The end of a piece that may begin a mark is held back. A text without marks is an answer,
    returned at the end.
    """

    def __init__(self) -> None:
        self._held = ""  # text that may begin a mark
        self._header = ""  # text before the next <|message|>
        self._channel: str | None = None  # of the current message
        self._has_marks = False

    def feed(self, piece: str) -> Iterator[tuple[str, str]]:
        """Yields channels with their new text."""
        text = self._held + piece
        end = len(text) - max(overlap(text, mark) for mark in _MARKS)
        self._held = text[end:]
        for index, part in enumerate(_MARK.split(text[:end])):
            if index % 2:
                self._pass(part)
            else:
                yield from self._take(part)

    def finish(self) -> Iterator[tuple[str, str]]:
        """Yields the text held back; ends the text."""
        yield from self._take(self._held)
        if self._header and not self._has_marks:
            yield ANSWER, self._header

    def split(self, piece: str, *, is_last: bool) -> tuple[str, str]:
        """Returns the new text of the answer, and that of all other channels (the reasoning)."""
        parts = [*self.feed(piece), *(self.finish() if is_last else ())]
        answer = "".join(text for channel, text in parts if channel == ANSWER)
        return answer, "".join(text for channel, text in parts if channel != ANSWER)

    def _take(self, part: str) -> Iterator[tuple[str, str]]:
        if self._channel is None:
            self._header += part
        elif part:
            yield self._channel, part

    def _pass(self, mark: str) -> None:
        self._has_marks = True
        if mark == "message":  # the header is a channel and perhaps a recipient
            self._channel = (self._header.split() or [ANSWER])[0]
        elif mark == "constrain":
            self._header += " "
        else:
            self._header, self._channel = "", None
