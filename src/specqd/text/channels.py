"""Splits text into the channels that gpt-oss writes (Harmony format). Knows nothing of models.

<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specqd.text.tokenizer import Tokenizer

ANSWER = "final"  # the channel that a user reads
_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"
_MARK = re.compile(r"<\|(start|channel|message|constrain|end|return|call)\|>")


def has_channels(tokenizer: "Tokenizer") -> bool:
    """Returns whether the tokenizer has the special tokens of channels."""
    return tokenizer.is_special(_CHANNEL) and tokenizer.is_special(_MESSAGE)


class ChannelReader:
    """Splits one text, in which special tokens are spelled out, into its channels.

    A piece must not end within a special token. A text without any is an answer, returned at the
    end.
    """

    def __init__(self) -> None:
        self._header = ""  # text before the next <|message|>
        self._channel: str | None = None  # of the current message
        self._has_marks = False

    def feed(self, piece: str) -> Iterator[tuple[str, str]]:
        """Yields channels with their new text."""
        for index, part in enumerate(_MARK.split(piece)):
            if index % 2:
                self._pass(part)
            elif self._channel is None:
                self._header += part
            elif part:
                yield self._channel, part

    def finish(self) -> Iterator[tuple[str, str]]:
        """Yields the text held back; ends the text."""
        if self._header and not self._has_marks:
            yield ANSWER, self._header

    def split(self, piece: str, *, is_last: bool) -> tuple[str, str]:
        """Returns the new text of the answer, and that of all other channels (the reasoning)."""
        parts = [*self.feed(piece), *(self.finish() if is_last else ())]
        answer = "".join(text for channel, text in parts if channel == ANSWER)
        return answer, "".join(text for channel, text in parts if channel != ANSWER)

    def _pass(self, mark: str) -> None:
        self._has_marks = True
        if mark == "message":  # the header is a channel and perhaps a recipient
            self._channel = (self._header.split() or [ANSWER])[0]
        elif mark == "constrain":
            self._header += " "
        else:
            self._header, self._channel = "", None
