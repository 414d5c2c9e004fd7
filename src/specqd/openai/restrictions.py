"""Reads vLLM's fields that restrict text, as a schema or as a pattern for the whole text.

Knows nothing of grammars. Errors name the field.
"""

import re
from dataclasses import dataclass
from typing import Any

from specqd.config.fields import Fields
from specqd.errors import SpecqdError
from specqd.text.json_text import read_json

_OLDER = ("json", "regex", "choice", "grammar")  # with the prefix guided_
_KINDS = (*_OLDER, "json_object", "structural_tag")
FIELDS = {"structured_outputs", *(f"guided_{kind}" for kind in _OLDER)}
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}&~#/-]")  # characters that patterns must escape


@dataclass(frozen=True, slots=True)
class Restriction:
    """The JSON schema or the pattern that a text must follow."""

    field: str  # the request's field that gave it
    schema: dict[str, Any] | None = None
    pattern: str | None = None


def restrictions_of(fields: Fields) -> list[Restriction]:
    """Returns all restrictions of a request. Raises FieldError."""
    found = [_restriction(fields, kind, "guided_") for kind in _OLDER]
    if (newer := fields.nested("structured_outputs", _KINDS)) is not None:
        found += [_restriction(newer, kind, "") for kind in _KINDS]
    return [each for each in found if each is not None]


def _restriction(fields: Fields, kind: str, prefix: str) -> Restriction | None:
    name = prefix + kind
    value, field = fields.get(name), fields.within + name
    if value is None:
        return None
    if kind == "json":
        return Restriction(field, schema=_schema(fields, name))
    if kind == "json_object":
        return Restriction(field, schema={"type": "object"}) if fields.flag(name) else None
    if kind == "regex":
        return Restriction(field, pattern=fields.text(name))
    if kind == "choice":
        return Restriction(field, pattern=_pattern_of_choices(fields, name))
    raise _unsupported(fields, name, prefix)


def _unsupported(fields: Fields, name: str, prefix: str) -> SpecqdError:
    others = f"a schema in response_format, or a regular expression in {fields.within}{prefix}regex"
    return fields.error(name, f"is not supported; give {others}")


def _schema(fields: Fields, name: str) -> dict[str, Any]:
    """Returns a schema, given as an object or as a string of JSON."""
    value = fields.get(name)
    if isinstance(value, str):
        try:
            value = read_json(value.encode())
        except (ValueError, RecursionError) as error:
            raise fields.wrong(name, "a JSON schema") from error
    if not isinstance(value, dict):
        raise fields.wrong(name, "a JSON schema")
    return value


def _pattern_of_choices(fields: Fields, name: str) -> str:
    texts = fields.get(name)
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
        raise fields.wrong(name, "a list of strings that are not empty")
    return "|".join(_SPECIAL.sub(r"\\\g<0>", text) for text in texts)
