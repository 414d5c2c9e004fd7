"""Measures memory bandwidth once at the start, and computes which share of it forwards use."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from specqd.engine.engine import Engine
from specqd.engine.reports import LevelReport, models_of
from specqd.model.bandwidth import MEGABYTE, measure

_LARGEST_WORKING_SET = 512 * MEGABYTE  # caches hold almost nothing of this size or a larger one
_RECENT_SECONDS = 10.0
_LEAST_STEP_SECONDS = 1.0  # between two stored reports


def measure_limits(engine: Engine) -> dict[str, float]:
    """Measures memory bandwidth, in GB/s by level name, at the size of the weights a level reads.

    Uses all cores for less than 0.5 s. Omits levels whose size does not fit into free memory.
    """
    levels = models_of(engine.level)
    sizes = {
        level.name: min(level.model.bytes_per_forward, _LARGEST_WORKING_SET) for level in levels
    }
    machine = engine.level.model.machine
    speeds = {
        each.working_set_bytes: each.gb_per_s
        for each in measure(machine, sorted(set(sizes.values())))
    }
    return {name: speeds[size] for name, size in sizes.items() if size in speeds}


@dataclass(frozen=True, slots=True)
class Shares:
    """Bandwidth utilisation: how long memory needs to move the bytes that forwards read, divided
    by how long the forwards took.
    """

    by_level: Mapping[str, float]  # without levels that ran no forwards
    of_all: float | None  # over all levels; None without forwards


class RecentShares:
    """Computes the shares over the last ten seconds, or since the last report if it is older."""

    def __init__(
        self,
        limits: Mapping[str, float],
        levels: Sequence[LevelReport],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._reports = deque([(clock(), levels)])  # the next report is compared with the first

    def shares(self, levels: Sequence[LevelReport]) -> Shares:
        """Returns the recent shares. levels: their work since the start."""
        now = self._clock()
        while len(self._reports) > 1 and now - self._reports[1][0] >= _RECENT_SECONDS:
            self._reports.popleft()
        before = self._reports[0][1]
        if now - self._reports[-1][0] >= _LEAST_STEP_SECONDS:
            self._reports.append((now, levels))
        pairs = zip(levels, before, strict=True)
        return shares_of([level.since(then) for level, then in pairs], self._limits)


def shares_of(levels: Sequence[LevelReport], limits: Mapping[str, float]) -> Shares:
    """Computes the shares. levels: their work in the period; limits: GB/s by level name."""
    needed = {
        level.name: (level.gigabytes + level.cache_gigabytes) / limits[level.name]
        for level in levels
        if level.name in limits and level.seconds > 0.0
    }
    seconds = {level.name: level.seconds for level in levels if level.name in needed}
    by_level = {name: needed[name] / seconds[name] for name in needed}
    of_all = sum(needed.values()) / sum(seconds.values()) if needed else None
    return Shares(by_level, of_all)
