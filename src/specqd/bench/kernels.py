"""Times products with random weights, by precision and number of rows. Knows kernels, not models.

Plain reads of as many bytes surround each timing, so that a busy machine slows both. Shares are
relative to that bandwidth.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.bench.rounds import bandwidths, interleaved, quotients
from specqd.errors import MachineError
from specqd.model.bandwidth import MEGABYTE
from specqd.model.model import Machine

PRECISIONS = ("fp4", "exact")
ROWS = (1, 2, 4, 8, 16)
INPUTS = 2048

_PANEL, _BLOCK = 16, 32
_FP4_BYTES = 17 / 32  # per weight: 4 bits and a scale byte for 32
_BF16_BYTES = 2  # per weight
_DISTINCT_PANELS = 64  # repeated at distinct addresses, to save time
_NEEDED = 4 * _BF16_BYTES  # bytes per weight while they are made and packed
_PAIRS = 5  # timings, each with its bandwidth
_LEAST_SECONDS = 0.01  # per timing of a product


@dataclass(frozen=True, slots=True)
class Case:
    """A product of `rows` rows of inputs with the weights in one precision."""

    precision: str
    isa: str
    rows: int


@dataclass(frozen=True, slots=True)
class KernelSpeed:
    """Medians over all threads together; GB are 10**9 bytes.

    `share` is the kernel's GB/s over the plain read's, and `share_range` its least and greatest
    value. `over_bf16_limit` is the kernel's weights/s over those of a perfect BF16 reader.
    """

    case: Case
    gweights_per_s: float
    gb_per_s: float
    bandwidth_gb_per_s: float
    share: float
    share_range: tuple[float, float]
    over_bf16_limit: float


def weights_of(megabytes: float) -> int:
    """The number of weights that take `megabytes` in fp4, and three times as much in exact."""
    return int(megabytes * MEGABYTE / _FP4_BYTES)


def random_weights(count: int, inputs: int = INPUTS) -> _native.Packed:
    """About `count` Gaussian weights [outputs, inputs], packed.

    Raises MachineError if memory is short.
    """
    available = _native.usable_memory()
    if 0 <= available < count * _NEEDED:
        raise MachineError(
            f"{count / 1e6:.0f} M weights: {count * _NEEDED / MEGABYTE:.0f} MB are needed and "
            f"{available / MEGABYTE:.0f} MB are free; choose fewer",
            "megabytes",
        )
    tiles = -(-inputs // _BLOCK)
    panels = max(count // (tiles * _BLOCK * _PANEL), 1)
    distinct = min(panels, _DISTINCT_PANELS)
    rng = np.random.default_rng(1)
    values = rng.normal(0, 0.02, (distinct, tiles, _PANEL * _BLOCK)).astype(np.float32)
    bits = ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
    packer = _native.kernels(_native.available_isas()[0])
    return packer.pack(np.ascontiguousarray(bits[np.arange(panels) % distinct]))


def measure(
    machine: Machine, packed: _native.Packed, inputs: int, cases: Iterable[Case]
) -> Iterator[KernelSpeed]:
    """Times each case on the machine's threads; yields each speed once it is measured."""
    rng = np.random.default_rng(2)
    for case in cases:
        x = rng.normal(size=(case.rows, inputs)).astype(np.float32)
        yield _measured(machine, packed, case, x)


def _measured(
    machine: Machine, packed: _native.Packed, case: Case, x: NDArray[np.float32]
) -> KernelSpeed:
    table, size = _native.kernels(case.isa), packed.bytes(case.precision)
    first = table.time_product(case.precision, packed, x, machine.pool, 1)[0]
    rounds = max(1, int(_LEAST_SECONDS / first))

    def product(_: int) -> float:
        return median(table.time_product(case.precision, packed, x, machine.pool, 3, rounds))

    done = interleaved({"product": product}, _PAIRS, lambda: bandwidths(machine, [size]))
    seconds, around = done.runs["product"], done.gauged[size]
    shares = quotients((size / s / 1e9 for s in seconds), around)
    weights_per_s = packed.weights / median(seconds)
    return KernelSpeed(
        case,
        gweights_per_s=weights_per_s / 1e9,
        gb_per_s=size / median(seconds) / 1e9,
        bandwidth_gb_per_s=median(around),
        share=median(shares),
        share_range=(min(shares), max(shares)),
        over_bf16_limit=median(shares) * _BF16_BYTES * packed.weights / size,
    )
