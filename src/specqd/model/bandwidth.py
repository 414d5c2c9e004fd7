"""Measures the memory bandwidth of this machine, with which every speed is compared.

It depends on the size of the working set: a small one fits into the processor's caches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from specqd import _native
from specqd.model.model import Machine

MEGABYTE = 10**6
SIZES = tuple(size * MEGABYTE for size in (1, 4, 16, 64, 256, 1024))

_READ_IN_ALL = 2 * 10**9  # bytes; a small working set is read more often than a large one
_FEWEST, _MOST = 9, 400  # repeats
_WARM_UP = 2  # repeats that are not counted


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Gigabytes (10**9 bytes) per second over all threads: the median and the quartiles."""

    working_set_bytes: int
    gb_per_s: float
    lower_quartile: float
    upper_quartile: float
    repeats: int


def measure(machine: Machine, sizes: Sequence[int]) -> Iterator[Bandwidth]:
    """Measures repeated reads of each of `sizes`, in bytes; yields each as it is known.

    Skips sizes above half of the free memory.
    """
    available = _native.usable_memory()
    for size in sizes:
        if 0 <= available < 2 * size:
            continue
        repeats = max(_FEWEST, min(_MOST, _READ_IN_ALL // size))
        speeds = _read_speeds(machine, size, repeats)
        lower, middle, upper = quantiles(speeds, n=4, method="inclusive")
        yield Bandwidth(size, middle, lower, upper, repeats)


def plain_reads(machine: Machine, working_set_bytes: int) -> _native.PlainReads:
    """A working set of this size that can be read repeatedly; it has been read before."""
    reads = _native.PlainReads(machine.pool, machine.isa, working_set_bytes)
    for _ in range(_WARM_UP):
        reads.read_seconds()
    return reads


def bandwidth_at(machine: Machine, working_set_bytes: int, repeats: int = _FEWEST) -> float:
    """The median GB/s of repeated plain reads of `working_set_bytes`."""
    return median(_read_speeds(machine, working_set_bytes, repeats))


def _read_speeds(machine: Machine, size: int, repeats: int) -> list[float]:
    reads = plain_reads(machine, size)
    return [size / reads.read_seconds() / 1e9 for _ in range(repeats)]
