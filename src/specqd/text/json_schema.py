"""Prepares a JSON schema for a grammar. Knows schemas. Knows no grammars."""

from collections.abc import Mapping
from typing import Any

# Small models may write white space without end where it is allowed: a space, or a new line and its
# indentation, are enough for every usual layout. `x-guidance` is llguidance's member for options.
_WHITE_SPACE = {"x-guidance": {"whitespace_pattern": r"[ ]?|\n[ \t]{0,20}"}}
# The formats of strings that llguidance enforces. It refuses others, which JSON Schema lets ignore.
_FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
    "unknown",
}
_DATA = ("enum", "const", "default", "examples")  # members that hold values
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LEAST_INTEGER = -(2**63) + 512  # as a double it is -2^63, below which llguidance has no integers


def prepared(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema with a bound on the white space between the tokens of its JSON.

    Leaves out formats that cannot be enforced, and minima that no 64-bit integer is below.
    """
    return {**_enforceable(schema), **_WHITE_SPACE}


def _enforceable(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_enforceable(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {}
    for name, value in schema.items():
        if name in _BY_NAME and isinstance(value, Mapping):
            kept[name] = {each: _enforceable(inner) for each, inner in value.items()}
        elif name in _DATA:
            kept[name] = value
        elif not _is_left_out(name, value):
            kept[name] = _enforceable(value)
    return kept


def _is_left_out(name: str, value: Any) -> bool:
    if name == "format":
        return isinstance(value, str) and value not in _FORMATS
    is_minimum = name in ("minimum", "exclusiveMinimum") and isinstance(value, int | float)
    return is_minimum and value <= _LEAST_INTEGER
