"""Texts in channels, as gpt-oss writes them (Harmony): what is said where. Knows no models.

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
    """Whether the model's texts are in channels."""
    return tokenizer.is_special(_CHANNEL) and tokenizer.is_special(_MESSAGE)


class ChannelReader:
    """Cuts a text whose special tokens are spelled out into what each channel says.

    No piece ends within a mark. A text without any mark is an answer, told at its end.
    """

    def __init__(self) -> None:
        self._header = ""  # what stands between a mark and the next message
        self._channel: str | None = None  # of the message that is being read
        self._has_marks = False

    def feed(self, piece: str) -> Iterator[tuple[str, str]]:
        """Channels, and what is new in them."""
        for index, part in enumerate(_MARK.split(piece)):
            if index % 2:
                self._pass(part)
            elif self._channel is None:
                self._header += part
            elif part:
                yield self._channel, part

    def finish(self) -> Iterator[tuple[str, str]]:
        if self._header and not self._has_marks:
            yield ANSWER, self._header

    def told_apart(self, piece: str, *, is_last: bool) -> tuple[str, str]:
        """What is new of the answer, and of the thoughts before it."""
        said = [*self.feed(piece), *(self.finish() if is_last else ())]
        answer = "".join(text for channel, text in said if channel == ANSWER)
        return answer, "".join(text for channel, text in said if channel != ANSWER)

    def _pass(self, mark: str) -> None:
        self._has_marks = True
        if mark == "message":  # the header is a channel, then perhaps whom it is for
            self._channel = (self._header.split() or [ANSWER])[0]
        elif mark == "constrain":
            self._header += " "
        else:
            self._header, self._channel = "", None
