"""How near the levels' forwards come to what memory gives, which is measured once, at the start."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from specqd._native import Level
from specqd.engine.engine import Engine
from specqd.engine.reports import LevelReport
from specqd.model.bandwidth import MEGABYTE, measure

_LARGEST_WORKING_SET = 512 * MEGABYTE  # larger ones hardly lie in a cache either
_LATELY_SECONDS = 10.0
_LEAST_STEP_SECONDS = 1.0  # between two looks that are kept


def measure_limits(engine: Engine) -> dict[str, float]:
    """GB/s of memory, by the level's name, at the size of the weights that it reads.

    Takes the cores for less than half a second. Levels for whose size memory is short are left out.
    """
    levels = [each for each in engine.level.levels if isinstance(each, Level)]
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
    """Of the bandwidth, what forwards used: the time in which it moves the bytes that they read,
    over the time that they took. Without those that took none."""

    by_level: Mapping[str, float]
    of_all: float | None


class RecentShares:
    """The shares of the last ten seconds, or since the last look where that was longer ago."""

    def __init__(
        self,
        limits: Mapping[str, float],
        levels: Sequence[LevelReport],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._looks = deque([(clock(), levels)])  # the first is what the next is compared with

    def look(self, levels: Sequence[LevelReport]) -> Shares:
        now = self._clock()
        while len(self._looks) > 1 and now - self._looks[1][0] >= _LATELY_SECONDS:
            self._looks.popleft()
        before = self._looks[0][1]
        if now - self._looks[-1][0] >= _LEAST_STEP_SECONDS:
            self._looks.append((now, levels))
        pairs = zip(levels, before, strict=True)
        return shares_of([level.since(then) for level, then in pairs], self._limits)


def shares_of(levels: Sequence[LevelReport], limits: Mapping[str, float]) -> Shares:
    """Of what the levels did; limits: GB/s by their names."""
    needed = {
        level.name: (level.gigabytes + level.cache_gigabytes) / limits[level.name]
        for level in levels
        if level.name in limits and level.seconds > 0.0
    }
    seconds = {level.name: level.seconds for level in levels if level.name in needed}
    by_level = {name: needed[name] / seconds[name] for name in needed}
    of_all = sum(needed.values()) / sum(seconds.values()) if needed else None
    return Shares(by_level, of_all)
