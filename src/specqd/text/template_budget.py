"""Bounds the time, text and depth that one rendering of an untrusted template may use.

Knows nothing of Jinja. One unit is about the work of copying one character: the same template and
input are then refused or rendered on every machine alike. The clock is a second safeguard.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, ValuesView
from typing import Any

ITEM_COST = 16  # units for one item of a container
CHECK_EVERY = 1 << 13  # units between two reads of the clock
LONGEST_INTEGER_BITS = 4096
LARGEST_WIDTH = 9999  # of a padded field, an indentation, a batch; four digits in a format
DEEPEST_VALUE = 100  # containers inside containers
PERCENT_FIELD = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d+)?(?:\.(\*|\d+))?")
CONTAINERS = (Sequence, Mapping, Set, ValuesView)  # the views of keys and items are sets


class TemplateLimitError(Exception):
    """A template exceeds a limit. The message continues a sentence that ends in "because"."""


class Budget:
    """The units left to one rendering. `input_size` is the size of its variables in characters."""

    def __init__(
        self, input_size: int, clock: Callable[[], float], *, seconds: float = 2.0
    ) -> None:
        self.largest_value = (1 << 20) + 8 * input_size  # characters
        self._units = (1 << 26) + 64 * input_size
        self._clock = clock
        self._deadline = clock() + seconds
        self._next_check = self._units - CHECK_EVERY

    def spend(self, units: int) -> None:
        self._units -= units
        if self._units < self._next_check:
            if self._units < 0 or self._clock() > self._deadline:
                raise TemplateLimitError("it takes too long")
            self._next_check = self._units - CHECK_EVERY

    def admit(self, size: int) -> None:
        """Raises TemplateLimitError if no value may have `size` characters."""
        if size > self.largest_value:
            raise TemplateLimitError("it makes a value that is too large")

    def weigh(self, value: object) -> int:
        """The size of `value` when printed: a shared part counts each time it is reached.

        Twenty lists that each hold the next one twice are small in memory and huge in print. A
        value is safe to print, compare or hash only after this check.
        """
        if isinstance(value, str):
            return len(value)
        total, level = 0, [value]
        for _ in range(DEEPEST_VALUE):
            self.spend(len(level))
            deeper: list[object] = []
            for item in level:
                total += len(item) if isinstance(item, str) else ITEM_COST * (1 + length(item))
                self.admit(total)
                if isinstance(item, Mapping):
                    deeper += item.keys()
                    deeper += item.values()
                elif isinstance(item, CONTAINERS) and not isinstance(item, str | bytes | range):
                    deeper += item
            if not deeper:
                return total
            level = deeper
        raise TemplateLimitError("it nests values too deeply")

    def made(self, value: Any) -> Any:
        """Spends the cost of the new `value` and returns it; a generator becomes a list."""
        if isinstance(value, types.GeneratorType):
            value = list(self._counted(value))
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, list | tuple | dict):
            self.spend(4 * ITEM_COST * len(value))
        elif isinstance(value, int) and value.bit_length() > LONGEST_INTEGER_BITS:
            raise TemplateLimitError("it makes an integer that is too long")
        return value

    def _counted(self, items: Iterable[Any]) -> Iterable[Any]:
        for item in items:
            self.spend(ITEM_COST)
            yield item


def length(value: object) -> int:
    """The number of items of a container, 0 for anything else."""
    return len(value) if isinstance(value, CONTAINERS) else 0


def bound_product(budget: Budget, left: object, right: object) -> None:
    """Bounds a repeated text or list; `made` bounds numbers."""
    for items, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(items, Sequence):
            budget.admit(length(items) * max(times, 0))


def bound_power(base: object, exponent: object) -> None:
    if (
        isinstance(base, int)
        and isinstance(exponent, int)
        and base.bit_length() * exponent > LONGEST_INTEGER_BITS
    ):
        raise TemplateLimitError("it makes an integer that is too long")


def bound_percent(budget: Budget, text: str, values: object) -> None:
    """Bounds the width and number of the fields of `text % values`."""
    size = len(text) + text.count("%") * budget.weigh(values)
    for width in (group for field in PERCENT_FIELD.findall(text) for group in field if group):
        if width == "*" or len(width) > 4:
            raise TemplateLimitError("it formats a field wider than it may")
        size += int(width)
    budget.admit(size)


def bound_replace(budget: Budget, text: object, old: object, new: object) -> None:
    size = budget.weigh(text)
    budget.admit(size + (size // max(budget.weigh(old), 1) + 1) * budget.weigh(new))


def bound_join(budget: Budget, items: object, separator: object) -> None:
    budget.admit(budget.weigh(items) + length(items) * budget.weigh(separator))


def bound_indent(budget: Budget, text: object, width: object) -> None:
    step = width if isinstance(width, int) else length(width)
    lines = len(str(text).splitlines()) + 1
    budget.admit(budget.weigh(text) + lines * max(step, 0))
