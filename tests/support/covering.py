"""Covering arrays: a few combinations of the factors' values that contain every pair of values."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Pair = tuple[tuple[str, Any], tuple[str, Any]]  # (factor, value) twice, in the factors' order


def covering_array(
    factors: Mapping[str, Sequence[Any]],
    is_allowed: Callable[[Pair], bool],
    given: Iterable[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Returns rows that, with the given ones, contain every allowed pair of values of two factors.

    Deterministic. A row starts with the first missing pair. Each other factor takes the value that
    adds the most missing pairs; among equals, the one used least so far.
    """
    held = {pair for row in given for pair in combinations(row.items(), 2)}
    missing = dict.fromkeys(p for p in _pairs_of(factors) if is_allowed(p) and p not in held)
    used = {(name, value): 0 for name, values in factors.items() for value in values}
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name, values in factors.items():
            if name not in row:
                choices = [
                    v for v in values if all(map(is_allowed, _new_pairs(factors, row, name, v)))
                ]
                row[name] = min(
                    choices,
                    key=lambda value: (
                        -sum(pair in missing for pair in _new_pairs(factors, row, name, value)),
                        used[name, value],
                    ),
                )
        for pair in combinations(((name, row[name]) for name in factors), 2):
            missing.pop(pair, None)
        for item in row.items():
            used[item] += 1
        rows.append(row)
    return rows


def _pairs_of(factors: Mapping[str, Sequence[Any]]) -> Iterator[Pair]:
    for (a, a_values), (b, b_values) in combinations(factors.items(), 2):
        for x, y in product(a_values, b_values):
            yield (a, x), (b, y)


def _new_pairs(
    factors: Mapping[str, Sequence[Any]], row: Mapping[str, Any], name: str, value: Any
) -> list[Pair]:
    """Returns the pairs of `name=value` with the row's values, in the factors' order."""
    order = list(factors)
    added = (name, value)
    return [
        (added, held) if order.index(name) < order.index(held[0]) else (held, added)
        for held in row.items()
    ]
