"""The members of a JSON object, read with their types checked. Knows nothing of what they mean."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from specqd.errors import ConfigError, FieldError, SpecqdError, shown
from specqd.formats.small_file import MOST_JSON_BYTES, read_small

T = TypeVar("T")

POSITIVE = (1e-30, 1e30)  # finite in fp32, and so is the inverse
_LEAST_LIKENESS = 0.8  # of a field's name to the one that was probably meant
_LONGEST_NAME = 64  # of a field that is repeated in a message as it is


class LenientObject(dict[str, Any]):
    """A JSON object whose unknown members are dropped. `report` gets the name of each."""

    def __init__(self, members: Mapping[str, Any], report: Callable[[str], None]) -> None:
        super().__init__(members)
        self.report = report


@dataclass(frozen=True, slots=True)
class Fields:
    """The members of a JSON object, in a file or in a request's body. A null counts as absent.

    A member that is wrong raises ConfigError for a file, FieldError for a body. Values are taken as
    they are written: a string is no number.
    """

    path: Path | None  # of the file; None for a body
    values: Mapping[str, object]
    within: str = ""  # the names of the objects around it, each with a dot

    @classmethod
    def read(cls, path: Path) -> "Fields":
        """The object in a file; raises ConfigError."""
        if not path.is_file():
            what = "is not a file" if path.exists() else "is missing"
            raise ConfigError(f"{path}: {what}; a model directory in Hugging Face layout is needed")
        try:
            values = json.loads(read_small(path, MOST_JSON_BYTES).decode("utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: is not valid JSON; fetch the model again") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: is not a JSON object; fetch the model again")
        return cls(path, values)

    @classmethod
    def of(cls, body: object, known: Iterable[str], name: str = "") -> "Fields":
        """A body, or the object `name` in one. Raises FieldError for a field that is not `known`,
        but in a LenientObject: an ignored field would seem to have had an effect."""
        if not isinstance(body, Mapping):
            raise FieldError(name or "body", f"{shown(body)} is not an object of fields")
        within = f"{name}." if name else ""
        values = {field: value for field, value in body.items() if value is not None}
        for field in [field for field in values if field not in known]:
            if not isinstance(body, LenientObject):
                near = get_close_matches(field[:_LONGEST_NAME], known, 1, _LEAST_LIKENESS)
                remedy = f"did you mean {near[0]}?" if near else "leave it out"
                raise FieldError(within + _named(field), f"this field is not known; {remedy}")
            body.report(within + _named(field))
            del values[field]
        return cls(None, values, within)

    def error(self, name: str, problem: str) -> SpecqdError:
        """The error to raise for a member; `problem` goes on after its name."""
        if self.path is None:
            return FieldError(self.within + name, problem)
        return ConfigError(f"{self.path}: {self.within}{name} {problem}")

    def wrong(self, name: str, expected: str) -> SpecqdError:
        value = self.get(name)
        found = "is missing" if value is None else f"is {shown(value)}"
        return self.error(name, f"{found}; {expected} is needed")

    def get(self, name: str) -> object:
        return self.values.get(name)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._typed(name, bool, "true or false")
        return default if value is None else value

    def text(self, name: str) -> str | None:
        return self._typed(name, str, "a string")

    def needed_text(self, name: str) -> str:
        text = self.text(name)
        if text is None:
            raise self.wrong(name, "a string")
        return text

    def object(self, name: str) -> dict[str, Any] | None:
        return self._typed(name, dict, "an object")

    def whole(self, name: str, least: int, most: int) -> int | None:
        return self._integer(name, least, most, f"a whole number from {least} to {most}")

    def integer(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = 2**31 - 1
    ) -> int:
        expected = f"an integer from {least} to {most}"
        value = self._integer(name, least, most, expected)
        value = default if value is None else value
        if value is None:
            raise self.wrong(name, expected)
        return value

    def optional_number(self, name: str, least: float, most: float) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        # Python compares an integer of any size exactly, so a huge one cannot overflow here.
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(name, "a number")
        if not least <= value <= most:
            raise self.wrong(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """A number that is above 0 and finite in fp32, and so is its inverse."""
        value = self.optional_number(name, *POSITIVE)
        value = default if value is None else value
        if value is None:
            raise self.wrong(name, "a number above 0")
        return value

    def part(self, name: str) -> "Fields":
        """The object `name`, empty where it is absent."""
        return Fields(self.path, self.object(name) or {}, f"{self.within}{name}.")

    def with_defaults(self, **values: Any) -> "Fields":
        """The same object with these members where it has none; a null of its own remains."""
        return Fields(self.path, {**values, **self.values}, self.within)

    def with_values(self, **values: Any) -> "Fields":
        """The same object with these members in place of its own."""
        return Fields(self.path, {**self.values, **values}, self.within)

    def nested(self, name: str, known: Iterable[str]) -> "Fields | None":
        """The object `name` in a body; raises FieldError for a field that is not `known`."""
        value = self.object(name)
        return None if value is None else Fields.of(value, known, self.within + name)

    def kinds(
        self, name: str, count: int, known: Sequence[str], older: Sequence[str] = ()
    ) -> list[str]:
        """A list of `count` names out of the known and, for these, older ones."""
        kinds = self.get(name)
        if not isinstance(kinds, list) or len(kinds) != count:
            raise self.wrong(name, f"a list of {count} names")
        for kind in kinds:
            if kind not in (*known, *older):
                raise self.error(name, f"has {shown(kind)}; known: {', '.join(known)}")
        return kinds

    def id_or_ids(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """One token id, a list of them, or null for none (which is not the same as absent)."""
        if name not in self.values:
            return default
        value = self.values[name]
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(token) is int and 0 <= token < 2**31 for token in ids):
            raise self.wrong(name, "a token id or a list of them")
        return tuple(ids)

    def token_ids(self, name: str, most: int | None = None) -> tuple[int, ...]:
        """A list of token ids, empty where it is absent."""
        ids: list[int] = self._typed(name, list, "a list of token ids") or []
        if not all(type(token) is int for token in ids):
            raise self.wrong(name, "a list of token ids")
        if most is not None and len(ids) > most:
            raise self.error(name, f"has {len(ids)} token ids; give at most {most}")
        return tuple(ids)

    def _typed(self, name: str, kind: type[T], expected: str) -> T | None:
        value = self.get(name)
        if value is not None and not isinstance(value, kind):
            raise self.wrong(name, expected)
        return value

    def _integer(self, name: str, least: int, most: int, expected: str) -> int | None:
        value = self._typed(name, int, expected)
        if value is not None and (isinstance(value, bool) or not least <= value <= most):
            raise self.wrong(name, expected)
        return value


def token_ids(name: str, value: object) -> tuple[int, ...]:
    """The list of token ids in field `name` of a body; raises FieldError."""
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise FieldError(name, f"{shown(value)} is not a list of token ids")
    return tuple(value)


def _named(field: object) -> str:
    """A field's name, fit for one line of a terminal."""
    is_plain = isinstance(field, str) and field.isascii() and field.isidentifier()
    return str(field) if is_plain and len(str(field)) <= _LONGEST_NAME else shown(field)
