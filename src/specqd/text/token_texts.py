"""Which part of a text each of its tokens is. Knows pieces of text; knows no tokenizer."""

from collections import deque
from collections.abc import Iterable
from typing import Protocol


class Stream(Protocol):
    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that becomes certain with these tokens."""
        ...


class TokenTexts:
    """Which token each part of a text belongs to, as the text is released.

    A character that several tokens make belongs to the last of them. What is held back, for it
    may begin a stop string, belongs to nobody yet; what a stop string cut never does.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pieces: deque[str] = deque()  # of tokens whose text is not released yet
        self._text = ""  # released, and shorter than the first of them

    def feed(self, tokens: Iterable[int], text: str, *, is_last: bool) -> list[str]:
        """The texts of the next tokens that have all of theirs, perhaps empty ones; at the end, of
        all that are left. Together they are the text."""
        self._pieces.extend(self._stream.feed([token]) for token in tokens)
        self._text += text
        texts = []
        while self._pieces and len(self._pieces[0]) <= len(self._text):
            texts.append(self._take(len(self._pieces.popleft())))
        if is_last:
            for _ in self._pieces:
                texts.append(self._take(len(self._text)))
            if texts:
                texts[-1] += self._take(len(self._text))
            self._pieces.clear()
        return texts

    def _take(self, length: int) -> str:
        taken, self._text = self._text[:length], self._text[length:]
        return taken
