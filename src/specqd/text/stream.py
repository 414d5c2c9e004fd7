"""Streams the text of tokens. Never splits a character; the total is exactly the text of `decode`.

Owns the rules for when text is final. Knows nothing of models; a token is an id and a text.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable
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


class Pieces(Protocol):
    """Returns text as soon as it is final, for one kind of decoder."""

    def feed(self, token_id: int, token: str) -> str: ...
    def finish(self) -> str: ...


class TextStream:
    """Takes token ids and returns the text that no later token can change.

    All pieces and `finish()`, joined, equal `decode` of all ids without special tokens.
    """

    def __init__(
        self,
        pieces: Pieces,
        token_of: Callable[[int], str | None],
        special_ids: frozenset[int],
        *,
        clean_up: bool,
    ) -> None:
        self._pieces = pieces
        self._token_of = token_of
        self._special_ids = special_ids
        self._tidy = TidySpaces() if clean_up else None

    def feed(self, token_ids: Iterable[int]) -> str:
        """Returns the text that these tokens made final, often "".

        Takes constant amortised time per token.
        """
        texts = []
        for token_id in token_ids:
            token = self._token_of(token_id)
            if token is not None and token_id not in self._special_ids:
                text = self._pieces.feed(token_id, token)
                texts.append(self._tidy.feed(text) if self._tidy else text)
        return "".join(texts)

    def finish(self) -> str:
        """Returns the text held back, and ends the stream."""
        text = self._pieces.finish()
        return self._tidy.feed(text) + self._tidy.finish() if self._tidy else text


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
        # The number of held tokens at which to decode again. It doubles whenever no text becomes
        # final, so that a decoder without any text takes linear time.
        self._least = 1

    def feed(self, token_id: int, token: str) -> str:
        self._held.append(token_id)
        if self._falls_back_to_bytes and is_byte_token(token):
            return ""
        return self._release() if len(self._held) >= self._least else ""

    def finish(self) -> str:
        return self._release()

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


def is_byte_token(token: str) -> bool:
    """Returns whether the token is `<0x..>`, one byte for a byte-fallback decoder."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return False
    try:
        return int(token[3:5], 16) >= 0
    except ValueError:
        return False


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
