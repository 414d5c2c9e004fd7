"""JSON of requests, with text that UTF-8 can hold. JSON can spell halves of characters (lone
surrogates), which no tokenizer, digest or answer can encode."""

import json
import re
from collections.abc import Callable
from typing import Any

from specqd.errors import RequestError

ObjectOf = Callable[[dict[str, Any]], object]
_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_json(body: bytes | str, object_of: ObjectOf | None = None) -> object:
    """Raises ValueError or RecursionError for what is not JSON in UTF-8.

    object_of: makes each object of its members.
    """
    text = body if isinstance(body, str) else body.decode("utf-8-sig")
    return json.loads(text, object_hook=object_of)


def place_of(error: Exception) -> str:
    """The place where JSON is wrong, to go behind a message; empty where that is not known."""
    if not isinstance(error, json.JSONDecodeError):
        return ""
    return f" (line {error.lineno}, column {error.colno})"


def check_characters(value: object, written: bytes | str) -> None:
    """Raises RequestError where a text in JSON's value has a lone surrogate. written: the JSON."""
    text = written if isinstance(written, str) else written.decode()
    if _ESCAPE.search(text) and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise RequestError(
            "the body is not valid Unicode: it has half a character (a lone surrogate such as "
            "\\ud83d); send whole characters"
        )


def escaped(text: str) -> str:
    """JSON with its lone surrogates, which stand in strings only, written as escapes."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
