"""Runs arms in interleaved rounds, so that a machine that slows down slows all of them.

Owns the order of turns, medians with intervals, and the bandwidth around each round. Does not know
what an arm does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Generic, TypeVar

import numpy as np

from specqd.bench.resampling import draw_sets, limits
from specqd.model.bandwidth import bandwidth_at
from specqd.model.model import Machine

LARGEST_READ = 10**9  # bytes: no cache holds a working set of this size

R = TypeVar("R")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its bootstrapped 95 % interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        medians = np.median(np.asarray(values)[draw_sets(len(values))], axis=1)
        return cls(float(median(values)), *limits(medians))


@dataclass(frozen=True, slots=True)
class Rounds(Generic[R, K]):
    """What each arm returned, and the gauge's readings: one item per round."""

    runs: dict[str, list[R]]
    gauged: dict[K, list[float]]  # the mean of the readings before and after the round

    def figures(self, arm: str, figure: Callable[[R], float]) -> list[float]:
        return [figure(run) for run in self.runs[arm]]

    def ratios(self, arm: str, base: str, figure: Callable[[R], float]) -> list[float]:
        """The arm's figure over that of `base`, within each round."""
        return quotients(self.figures(arm, figure), self.figures(base, figure))


def quotients(ours: Iterable[float], theirs: Iterable[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def turns(number: int, count: int) -> list[int]:
    """The order of `count` arms in a round: with two arms 01 10 10 01, and so on.

    Each order is followed by its reverse, and another arm begins after both.
    """
    first = number // 2
    order = [(first + turn) % count for turn in range(count)]
    return order[::-1] if number % 2 else order


def interleaved(
    arms: Mapping[str, Callable[[int], R]],
    rounds: int,
    gauge: Callable[[], Mapping[K, float]] = dict,
) -> Rounds[R, K]:
    """Runs every arm once in each round; an arm gets the number of the round.

    `gauge` measures something of the machine, such as its bandwidth, before each round and after
    the last one.
    """
    names = list(arms)
    runs: dict[str, list[R]] = {name: [] for name in names}
    readings = [gauge()]
    for number in range(rounds):
        for turn in turns(number, len(names)):
            runs[names[turn]].append(arms[names[turn]](number))
        readings.append(gauge())
    around = [{key: mean((a[key], b[key])) for key in a} for a, b in pairwise(readings)]
    return Rounds(runs, {key: [each[key] for each in around] for key in readings[0]})


def bandwidths(machine: Machine, sizes: Iterable[int]) -> dict[int, float]:
    """GB/s of plain reads by working set in bytes. Sizes above LARGEST_READ share one reading."""
    reads = {size: min(size, LARGEST_READ) for size in sizes}
    measured = {read: bandwidth_at(machine, read) for read in set(reads.values())}
    return {size: measured[read] for size, read in reads.items()}
