"""Bounds the white space of JSON that a grammar allows. Knows schemas. Knows no grammars."""

from collections.abc import Mapping
from typing import Any

# Small models may write white space without end where it is allowed: a space, or a new line and its
# indentation, are enough for every usual layout. `x-guidance` is llguidance's member for options.
_WHITE_SPACE = {"x-guidance": {"whitespace_pattern": r"[ ]?|\n[ \t]{0,20}"}}


def with_bounded_space(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema with a bound on the white space between the tokens of its JSON."""
    return {**schema, **_WHITE_SPACE}
