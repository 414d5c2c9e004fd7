"""Streams the text of tokens. Never splits a character; the total is exactly the text of `decode`.

Owns the rules for when text is final. Knows nothing of models; a token is an id and a text.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import dropwhile, islice
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import tokenizers

# The replacements of `clean_up_tokenization_spaces` in transformers, in its order.
CLEAN_UPS = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
CLEANED_CHARACTERS = frozenset("".join(untidy for untidy, _ in CLEAN_UPS))
# The last tokens of a text that is continued: those of a character, and some before them.
_MOST_PRECEDING = 16


class Pieces(Protocol):
    """Returns text as soon as it is final, for one kind of decoder."""

    def feed(self, token_id: int, token: str) -> str: ...
    def finish(self) -> str: ...

    def settle(self) -> str:
        """Ends a text that the next tokens continue; returns what of it is held back."""
        ...


class TextStream:
    """Takes token ids and returns the text that no later token can change.

    All pieces and `finish()`, joined, equal `decode` of all ids without special tokens. If the ids
    continue a text, they equal what the ids add to it: `decode` of both without that of the text.
    """

    def __init__(
        self,
        pieces: Pieces,
        token_of: Callable[[int], str | None],
        special_ids: frozenset[int],
        *,
        clean_up: bool,
        after: Sequence[int] = (),
    ) -> None:
        """after: the ids of the text that is continued."""
        self._pieces = pieces
        self._token_of = token_of
        self._special_ids = special_ids
        self._tidy = TidySpaces() if clean_up else None
        self._after = after
        self._known = ""  # text that the pieces will return, but which is of the text before

    def feed(self, token_ids: Iterable[int]) -> str:
        """Returns the text that these tokens made final, often "".

        Takes constant amortised time per token.
        """
        self._begin()
        texts = []
        for token_id, token in self._visible(token_ids):
            text = self._new(self._pieces.feed(token_id, token))
            texts.append(self._tidy.feed(text) if self._tidy else text)
        return "".join(texts)

    def finish(self) -> str:
        """Returns the text held back, and ends the stream."""
        self._begin()
        text = self._new(self._pieces.finish())
        return self._tidy.feed(text) + self._tidy.finish() if self._tidy else text

    def _visible(self, token_ids: Iterable[int]) -> Iterable[tuple[int, str]]:
        """Yields the ids that have text, with their tokens."""
        for token_id in token_ids:
            token = self._token_of(token_id)
            if token is not None and token_id not in self._special_ids:
                yield token_id, token

    def _begin(self) -> None:
        """Reads the end of the text that is continued."""
        if not self._after:
            return
        last = [*islice(self._visible(reversed(self._after)), _MOST_PRECEDING)][::-1]
        self._after = ()
        if len(last) == _MOST_PRECEDING:  # they may begin within a character
            last = [*dropwhile(lambda each: is_byte_token(each[1], 0x80, 0xC0), last)]
        for token_id, token in last:
            self._pieces.feed(token_id, token)
        self._known = self._pieces.settle()

    def _new(self, text: str) -> str:
        """Returns a piece without the text that was known before the first token."""
        if self._known and text:
            text, self._known = text[_common(text, self._known) :], ""
        return text


class BytePieces:
    """Streams for byte-level decoders, where a token is a run of UTF-8 bytes.

    Bytes become U+FFFD as soon as no later byte can make them valid.
    """

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int, token: str) -> str:
        return self._utf8.decode(token_bytes(token))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)

    def settle(self) -> str:
        pending, _ = self._utf8.getstate()
        return pending.decode("utf-8", errors="replace")


class WindowPieces:
    """Streams for any other decoder: decodes a window of tokens and removes the text before it.

    Decoders treat the start of a text specially (they strip its space), and some join neighbours.
    Each window therefore starts with `anchor`, a plain word, and the token before the window. A run
    of `<0x..>` tokens is held back: only its end shows whether it is valid UTF-8 or all U+FFFD.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], anchor: int | None, *, falls_back_to_bytes: bool
    ) -> None:
        self._decode = decode
        self._anchor = [] if anchor is None else [anchor]
        self._falls_back_to_bytes = falls_back_to_bytes
        self._before: list[int] = []  # empty until there is text: the start is decoded as a whole
        self._held: list[int] = []
        self._bytes = bytearray()  # of the last held tokens, if they are bytes
        # The number of held tokens at which to decode again. It doubles whenever no text becomes
        # final, so that a decoder without any text takes linear time.
        self._least = 1

    def feed(self, token_id: int, token: str) -> str:
        self._held.append(token_id)
        if self._falls_back_to_bytes and is_byte_token(token):
            self._bytes.append(int(token[3:5], 16))
            return ""
        self._bytes.clear()
        return self._release() if len(self._held) >= self._least else ""

    def finish(self) -> str:
        return self._release()

    def settle(self) -> str:
        """Lets a run of whole characters end here: wrong bytes that follow must not change them."""
        size = _unfinished(bytes(self._bytes))
        if size < len(self._bytes) and self._anchor:
            first = len(self._held) - size
            unfinished = self._held[first:]
            del self._held[first:]
            self._release()
            if not self._held:
                self._before = [*self._anchor]
            self._held += unfinished
        if not self._held:
            return ""
        text = self._decode(self._before + self._held)
        return text[len(self._decode(self._before)) if self._before else 0 :]

    def _release(self) -> str:
        if not self._held:
            return ""
        before = self._decode(self._before) if self._before else ""
        text = self._decode(self._before + self._held)
        if not text.startswith(before) or (not self._before and not text):
            self._least = 2 * len(self._held)
            return ""  # not final yet
        self._least = 1
        self._before = [*self._anchor, self._held[-1]]
        self._held = []
        return text[len(before) :]


class HeldPieces:
    """Streams for decoders that look back from the end of the text: only the end makes it final."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._held: list[int] = []

    def feed(self, token_id: int, token: str) -> str:
        self._held.append(token_id)
        return ""

    def finish(self) -> str:
        held, self._held = self._held, []
        return self._decode(held)

    def settle(self) -> str:
        return self._decode(self._held)


class TidySpaces:
    """Applies `tidied` to pieces: text is final up to a character that no clean-up contains."""

    def __init__(self) -> None:
        self._held: list[str] = []

    def feed(self, text: str) -> str:
        end = next((i for i in range(len(text), 0, -1) if text[i - 1] not in CLEANED_CHARACTERS), 0)
        if not end:
            self._held.append(text)
            return ""
        certain = "".join((*self._held, text[:end]))
        self._held = [text[end:]]
        return tidied(certain)

    def finish(self) -> str:
        text, self._held = "".join(self._held), []
        return tidied(text)


def tidied(text: str) -> str:
    """Removes the spaces that word tokenizers leave before English punctuation."""
    for untidy, tidy in CLEAN_UPS:
        text = text.replace(untidy, tidy)
    return text


class PieceMaker:
    """Chooses how to stream a tokenizer's text, from the decoder that its file describes."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        decode: Callable[[list[int]], str],
        special_ids: frozenset[int],
    ) -> None:
        """`decode` must keep special tokens."""
        steps = list(decoder_steps(json.loads(backend.to_str())["decoder"]))
        kinds = {step["type"] for step in steps}
        self._decode = decode
        self._is_byte_level = "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}
        self._looks_back = "CTC" in kinds or ("ByteLevel" in kinds and not self._is_byte_level)
        self._looks_back |= any(step["type"] == "Strip" and step["stop"] for step in steps)
        self._falls_back_to_bytes = "ByteFallback" in kinds
        self._anchor = _find_anchor(backend, special_ids)

    def __call__(self) -> Pieces:
        if self._is_byte_level:
            return BytePieces()
        if self._looks_back:
            return HeldPieces(self._decode)
        return WindowPieces(
            self._decode, self._anchor, falls_back_to_bytes=self._falls_back_to_bytes
        )


def _common(text: str, other: str) -> int:
    """Returns the length of the two texts' common beginning."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((at for at, (one, two) in pairs if one != two), min(len(text), len(other)))


def _find_anchor(backend: tokenizers.Tokenizer, special_ids: frozenset[int]) -> int | None:
    words = ((token, i) for token, i in backend.get_vocab().items() if token.isalnum())
    return next((i for _, i in sorted(words) if i not in special_ids), None)


def decoder_steps(decoder: dict[str, Any] | None) -> Iterable[dict[str, Any]]:
    """Yields the decoders of a sequence, which may be nested, in order."""
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for part in decoder["decoders"]:
            yield from decoder_steps(part)
    else:
        yield decoder


def overlap(text: str, mark: str) -> int:
    """Returns the length of the longest suffix of `text` that is a proper prefix of `mark`."""
    lengths = range(min(len(text), len(mark) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)


def is_byte_token(token: str, least: int = 0, end: int = 0x100) -> bool:
    """Returns whether the token is `<0x..>`, one byte for a byte-fallback decoder, in a range."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return False
    try:
        return least <= int(token[3:5], 16) < end
    except ValueError:
        return False


def _unfinished(run: bytes) -> int:
    """Returns how many of the bytes, at their end, begin a character; all of them if others are not
    valid UTF-8."""
    utf8 = codecs.getincrementaldecoder("utf-8")()
    try:
        utf8.decode(run)
    except UnicodeDecodeError:
        return len(run)
    return len(utf8.getstate()[0])


def byte_alphabet() -> dict[str, int]:
    """Maps the characters of byte-level vocabularies to their bytes, as GPT-2 defined them.

    A printable byte is its own character. The other bytes are U+0100 and up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(hidden)
    }


BYTE_OF = byte_alphabet()


def token_bytes(token: str) -> bytes:
    """Returns the bytes of a byte-level token. Added tokens with other characters are UTF-8."""
    try:
        return bytes([BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()
