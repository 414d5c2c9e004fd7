"""Reads the JSON of requests; rejects lone surrogates and numbers that are not finite.

JSON can spell these halves of characters, but no tokenizer, digest or answer can encode them.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Any

from specqd.errors import RequestError

ObjectOf = Callable[[dict[str, Any]], object]
_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_json(body: bytes | str, object_of: ObjectOf | None = None) -> object:
    """Parses JSON in UTF-8. Raises ValueError or RecursionError for anything else.

    object_of: turns the members of each object into its value.
    """
    text = body if isinstance(body, str) else body.decode("utf-8-sig")
    return json.loads(text, object_hook=object_of, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    """The number; Python also reads NaN, Infinity and 1e999, which no answer can repeat."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def place_of(error: Exception) -> str:
    """Returns where the JSON is wrong, as the end of a message, or "" if that is not known."""
    if not isinstance(error, json.JSONDecodeError):
        return ""
    return f" (line {error.lineno}, column {error.colno})"


def check_characters(value: object, written: bytes | str) -> None:
    """Raises RequestError if a string in `value` has a lone surrogate. written: the JSON text."""
    text = written if isinstance(written, str) else written.decode()
    if _ESCAPE.search(text) and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise RequestError(
            "the body is not valid Unicode: it has half a character (a lone surrogate such as "
            "\\ud83d); send complete characters"
        )
