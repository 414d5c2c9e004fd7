"""How answers spell single tokens, as OpenAI does, and where in a text each begins."""

from dataclasses import dataclass

from specqd.text.stream import TextStream, is_byte_token, token_bytes
from specqd.text.tokenizer import Tokenizer

_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"


def spelled(tokenizer: Tokenizer, token: int) -> str:
    """What a token adds to a text; where that is a part of a character, `bytes:` and its bytes."""
    text = tokenizer.text_within(token)
    if _NO_CHARACTER not in text:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in bytes_of(tokenizer, token))


def bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    text = tokenizer.text_within(token)
    if _NO_CHARACTER not in text:
        return text.encode()
    name = tokenizer.token_text(token)
    return bytes([int(name[3:5], 16)]) if is_byte_token(name) else token_bytes(name)


@dataclass(slots=True)
class Places:
    """Where in a text its tokens begin, in characters."""

    stream: TextStream
    length: int = 0  # of the text so far

    def next(self, token: int) -> int:
        place = self.length
        self.length += len(self.stream.feed([token]))
        return place
