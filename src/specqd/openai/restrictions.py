"""vLLM's fields that restrict a text, as a schema or as a pattern of the whole text. Knows no
grammars. Errors name the field."""

import re
from dataclasses import dataclass
from typing import Any

from specqd.config.fields import Fields
from specqd.errors import SpecqdError
from specqd.openai.json_text import read_json

_OLDER = ("json", "regex", "choice", "grammar")  # behind guided_
_KINDS = (*_OLDER, "json_object", "structural_tag")
FIELDS = {"structured_outputs", *(f"guided_{kind}" for kind in _OLDER)}
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}&~#/-]")  # in patterns of llguidance


@dataclass(frozen=True, slots=True)
class Restriction:
    """What the text must follow: a JSON schema or a pattern."""

    field: str  # in which it was given
    schema: dict[str, Any] | None = None
    pattern: str | None = None


def restrictions_of(fields: Fields) -> list[Restriction]:
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
        return Restriction(field, pattern=_either(fields, name))
    raise _unread(fields, name, prefix)


def _unread(fields: Fields, name: str, prefix: str) -> SpecqdError:
    others = f"a schema in response_format, or a regular expression in {fields.within}{prefix}regex"
    return fields.error(name, f"is not supported; give {others}")


def _schema(fields: Fields, name: str) -> dict[str, Any]:
    """An object, or its JSON."""
    value = fields.get(name)
    if isinstance(value, str):
        try:
            value = read_json(value.encode())
        except (ValueError, RecursionError) as error:
            raise fields.wrong(name, "a JSON schema") from error
    if not isinstance(value, dict):
        raise fields.wrong(name, "a JSON schema")
    return value


def _either(fields: Fields, name: str) -> str:
    texts = fields.get(name)
    if not isinstance(texts, list) or not texts:
        raise fields.wrong(name, "a list of texts that are not empty")
    if not all(isinstance(text, str) and text for text in texts):
        raise fields.wrong(name, "a list of texts that are not empty")
    return "|".join(_SPECIAL.sub(r"\\\g<0>", text) for text in texts)
