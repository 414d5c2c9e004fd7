"""Counts the characters that code reads or copies, so that tests of speed need no clock."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Work:
    characters: int = 0


class Counted(str):
    """A string whose methods add to `work`, as do those of the strings that they return."""

    work: Work

    def __new__(cls, text: str, work: Work) -> "Counted":
        counted = super().__new__(cls, text)
        counted.work = work
        return counted

    def _made(self, text: str, cost: int) -> "Counted":
        self.work.characters += cost
        return Counted(text, self.work)

    def __add__(self, other: str) -> "Counted":
        return self._made(str(self) + str(other), len(self) + len(other))

    def __radd__(self, other: str) -> "Counted":
        return self._made(str(other) + str(self), len(self) + len(other))

    def __getitem__(self, at: Any) -> "Counted":
        part = str(self)[at]
        return self._made(part, len(part))

    def __iter__(self) -> Iterator[str]:
        for character in str(self):
            self.work.characters += 1
            yield character

    def find(self, text: str, begin: int = 0, *_: Any) -> int:
        found = str(self).find(text, begin)
        self.work.characters += (len(self) if found < 0 else found + len(text)) - begin
        return found

    def startswith(self, text: Any, *bounds: Any) -> bool:
        self.work.characters += len(text)
        return str(self).startswith(text, *bounds)

    def endswith(self, text: Any, *bounds: Any) -> bool:
        self.work.characters += len(text)
        return str(self).endswith(text, *bounds)

    def strip(self, characters: str | None = None, /) -> "Counted":
        return self._made(str(self).strip(characters), len(self))

    def lstrip(self, characters: str | None = None, /) -> "Counted":
        return self._made(str(self).lstrip(characters), len(self))

    def rstrip(self, characters: str | None = None, /) -> "Counted":
        return self._made(str(self).rstrip(characters), len(self))

    def removeprefix(self, prefix: str, /) -> "Counted":
        return self._made(str(self).removeprefix(prefix), len(self))


@dataclass
class CountedPattern:
    """A pattern that counts what it reads: up to its match, or everything."""

    pattern: "re.Pattern[str]"
    work: Work

    def match(self, text: str, begin: int, end: int | None = None) -> "re.Match[str] | None":
        return self._counted(self.pattern.match, text, begin, end)

    def search(self, text: str, begin: int, end: int | None = None) -> "re.Match[str] | None":
        return self._counted(self.pattern.search, text, begin, end)

    def _counted(self, look: Any, text: str, begin: int, end: int | None) -> Any:
        last = len(text) if end is None else min(end, len(text))
        found = look(str(text), begin, last)
        self.work.characters += (found.end() if found else last) - begin
        return found
