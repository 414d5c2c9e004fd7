"""The members of a JSON file, read with their types checked. Knows nothing of what they mean."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specqd.errors import ConfigError, shown

POSITIVE = (1e-30, 1e30)  # finite in fp32, and so is the inverse


@dataclass(frozen=True, slots=True)
class Fields:
    """The members of one JSON object, each read with its type checked. A null counts as absent."""

    path: Path
    values: Mapping[str, object]
    within: str = ""  # the name of the object, where it is nested

    @classmethod
    def read(cls, path: Path) -> "Fields":
        if not path.is_file():
            what = "is not a file" if path.exists() else "is missing"
            raise ConfigError(f"{path}: {what}; a model directory in Hugging Face layout is needed")
        try:
            values = json.loads(path.read_bytes().decode("utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: is not valid JSON; fetch the model again") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: is not a JSON object; fetch the model again")
        return cls(path, values)

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.path}: {problem}")

    def wrong(self, name: str, expected: str) -> ConfigError:
        value = self.get(name)
        found = "is missing" if value is None else f"is {shown(value)}"
        return self.error(f"{self.within}{name} {found}; {expected} is needed")

    def get(self, name: str) -> object:
        return self.values.get(name)

    def nested(self, name: str) -> "Fields":
        value = self.get(name)
        if value is None:
            return Fields(self.path, {}, f"{self.within}{name}.")
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(self.path, value, f"{self.within}{name}.")

    def integer(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = 2**31 - 1
    ) -> int:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"an integer from {least} to {most}")
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
        if value is not None:
            return value
        if default is None:
            raise self.wrong(name, "a number above 0")
        return default

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def token_ids(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """One id, a list of ids, or null for none (which is not the same as absent)."""
        if name not in self.values:
            return default
        value = self.values[name]
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(token) is int and 0 <= token < 2**31 for token in ids):
            raise self.wrong(name, "a token id or a list of them")
        return tuple(ids)
