"""Describes single tokens: how answers spell them, where they begin, which text each one makes."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from specqd.text.stream import is_byte_token, token_bytes

if TYPE_CHECKING:
    from specqd.text.tokenizer import Tokenizer

_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class Stream(Protocol):
    def feed(self, token_ids: Iterable[int]) -> str:
        """Returns the text that these tokens make final."""
        ...


def spelled(tokenizer: "Tokenizer", token: int) -> str:
    """Returns the token's text as OpenAI spells it: `bytes:\\x..` for a part of a character."""
    text = tokenizer.text_within(token)
    if _NO_CHARACTER not in text:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in bytes_of(tokenizer, token))


def bytes_of(tokenizer: "Tokenizer", token: int) -> bytes:
    """Returns the token's UTF-8 bytes, which may be a part of a character."""
    text = tokenizer.text_within(token)
    if _NO_CHARACTER not in text:
        return text.encode()
    name = tokenizer.token_text(token)
    return bytes([int(name[3:5], 16)]) if is_byte_token(name) else token_bytes(name)


@dataclass(slots=True)
class Places:
    """Counts where tokens begin in a text, in characters."""

    stream: Stream
    length: int = 0  # of the text so far

    def next(self, token: int) -> int:
        """Returns where the next token, `token`, begins."""
        place = self.length
        self.length += len(self.stream.feed([token]))
        return place


class TokenTexts:
    """Splits a text into the texts of its tokens, as the text is released.

    A character made of several tokens belongs to the last of them. Text that is held back because
    it may begin a stop string belongs to no token yet. Text that a stop string cuts off never does.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pieces: deque[str] = deque()  # of tokens whose text is not released yet
        self._text = ""  # released, but shorter than the first of them

    def feed(self, tokens: Iterable[int], text: str, *, is_last: bool) -> list[str]:
        """Returns the texts, some of them empty, of the next tokens whose text is released.

        With `is_last` these are all remaining tokens. Joined, all results are the whole text.
        """
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
