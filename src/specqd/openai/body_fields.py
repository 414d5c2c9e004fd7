"""The fields of a request's body, read with their types checked. Knows nothing of their meaning."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specqd.errors import FieldError, shown

_LONGEST_NAME = 64  # of a field that is repeated in a message as it is


@dataclass(frozen=True, slots=True)
class BodyFields:
    """The members of one JSON object. A null counts as absent. Types are not converted: a string
    is no number."""

    values: Mapping[str, object]
    within: str = ""  # the names of the objects around it, each with a dot

    @classmethod
    def of(cls, body: object, known: Iterable[str], name: str = "") -> "BodyFields":
        """Refuses unknown fields, since they would have no effect. Raises FieldError, as all
        methods that read fields do."""
        if not isinstance(body, Mapping):
            raise FieldError(name or "body", f"{shown(body)} is not an object of fields")
        within = f"{name}." if name else ""
        values = {field: value for field, value in body.items() if value is not None}
        for field in values:
            if field not in known:
                raise FieldError(within + _named(field), "this field is not known; leave it out")
        return cls(values, within)

    def get(self, name: str) -> object:
        return self.values.get(name)

    def wrong(self, name: str, expected: str) -> FieldError:
        value = self.get(name)
        found = "is missing" if value is None else f"is {shown(value)}"
        return self.error(name, f"{found}; {expected} is needed")

    def error(self, name: str, problem: str) -> FieldError:
        return FieldError(self.within + name, problem)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value

    def whole(self, name: str, least: int, most: int) -> int | None:
        value = self.get(name)
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise self.wrong(name, f"a whole number from {least} to {most}")
        return value

    def object(self, name: str) -> dict[str, Any] | None:
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return value

    def nested(self, name: str, known: Iterable[str]) -> "BodyFields | None":
        value = self.object(name)
        return None if value is None else BodyFields.of(value, known, self.within + name)

    def token_ids(self, name: str, most: int | None = None) -> tuple[int, ...]:
        """An empty tuple where the field is absent."""
        ids = token_ids(self.within + name, self.values.get(name, []))
        if most is not None and len(ids) > most:
            raise self.error(name, f"{len(ids)} token ids; {most} are the most")
        return ids


def token_ids(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise FieldError(name, f"{shown(value)} is not a list of token ids")
    return tuple(value)


def _named(field: object) -> str:
    """A field's name, fit for one line of a terminal."""
    is_plain = isinstance(field, str) and field.isascii() and field.isidentifier()
    return str(field) if is_plain and len(str(field)) <= _LONGEST_NAME else shown(field)
