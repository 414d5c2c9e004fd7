"""What drafting costs and what it brings: tracked costs, calibrated confidences, pace.

Pure bookkeeping over numbers that others measure; knows no models, tokens or clocks.
"""

from bisect import bisect_right, insort
from collections.abc import Mapping

# Bins of confidence are finer towards 1, where most confidences lie and differences count.
_BIN_EDGES = (0.05, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.87, 0.92, 0.95, 0.975, 0.99, 0.997)
_BIN_MIDDLES = tuple(
    (low + high) / 2 for low, high in zip((0.0, *_BIN_EDGES), (*_BIN_EDGES, 1.0), strict=True)
)
_PRIOR_WEIGHT = 3.0  # observations that a prior counts for


class Calibration:
    """Stated confidence -> how often such tokens were right, learned from verification.

    Starts on a line from `floor`, at no confidence, to certainty. An optimistic floor makes it try
    what it does not know yet, and so learn; the pessimist never finds out. Forgets slowly.
    """

    __slots__ = ("_memory", "_right", "_weight")

    def __init__(self, floor: float = 0.0, memory: float = 300.0) -> None:
        self._memory = memory  # observations of a bin after which older ones fade
        self._weight = [_PRIOR_WEIGHT] * len(_BIN_MIDDLES)
        self._right = [_PRIOR_WEIGHT * (floor + (1.0 - floor) * middle) for middle in _BIN_MIDDLES]

    def probability(self, confidence: float) -> float:
        """How likely a token stated with this confidence is accepted."""
        i = bisect_right(_BIN_EDGES, confidence)
        return self._right[i] / self._weight[i]

    def observe(self, confidence: float, is_right: bool) -> None:
        i = bisect_right(_BIN_EDGES, confidence)
        if self._weight[i] >= self._memory:
            fade = 1.0 - 1.0 / self._memory
            self._weight[i] *= fade
            self._right[i] *= fade
        self._weight[i] += 1.0
        if is_right:
            self._right[i] += 1.0


class Trust:
    """How often what a level says is confirmed, by its confidence."""

    __slots__ = ("next", "own")

    def __init__(self) -> None:
        self.own = Calibration(floor=0.5, memory=200.0)  # in a token -> it is confirmed
        self.next = Calibration(floor=0.85, memory=100.0)  # in a token -> the next one is


class Estimate:
    """A running estimate of what something takes on a machine that others use too.

    Interference only ever adds: so no sample counts for more than twice what was expected, and a
    lower one counts for more than a higher one, above all among the first.
    """

    __slots__ = ("count", "value")

    _DOWN, _UP = 0.15, 0.1  # shares of a difference that one sample moves the value by

    def __init__(self) -> None:
        self.value: float | None = None
        self.count = 0

    def add(self, sample: float) -> float:
        """Returns the new value."""
        self.count += 1
        if self.value is None:
            self.value = sample
        difference = min(sample, 2.0 * self.value) - self.value
        down = max(self._DOWN, 1.0 / self.count)
        self.value += (down if difference < 0.0 else self._UP) * difference
        return self.value


class Mean:
    """A running mean of recent samples."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, sample: float) -> None:
        self.value = sample if self.value is None else self.value + 0.1 * (sample - self.value)


class RowCosts:
    """Seconds of a forward by its number of rows: learned where measured, interpolated between.

    Kept as multiples of the cost of the number of rows that was measured first: whatever else slows
    the machine slows all of them, and one that is seldom forwarded must not keep an old price. More
    rows never cost less: where that was seen, fewer of them were disturbed. Where further rows turn
    out cheaper than they were measured once, others that were measured once do too: else what seems
    too dear is never tried again.
    """

    def __init__(self) -> None:
        self._base = Estimate()
        self._base_rows = 0
        self._ratios: dict[int, Estimate] = {}
        self._rows: list[int] = []  # that were measured, in order
        self._curve: list[float] | None = None  # their ratios, none above a later one

    def begin(self, measured: Mapping[int, float]) -> None:
        """Starts from what was measured with care: seconds by rows."""
        self._rows = sorted(measured)
        self._base_rows = self._rows[0]
        self._base = Estimate()
        self._base.add(measured[self._base_rows])
        self._ratios = {rows: Estimate() for rows in self._rows}
        for rows, ratio in self._ratios.items():
            ratio.add(measured[rows] / self._base_value)
        self._curve = None

    def add(self, rows: int, seconds: float) -> None:
        if not self._rows:
            self._base_rows = rows
        if rows == self._base_rows:
            self._base.add(seconds)
        ratio = self._ratios.get(rows)
        if ratio is None:
            ratio = self._ratios[rows] = Estimate()
            if len(self._rows) > 1:  # so that a first sample out of line does little harm
                ratio.value = self.seconds(rows) / self._base_value
            insort(self._rows, rows)
        before = ratio.value if ratio.count else None
        value = ratio.add(1.0 if rows == self._base_rows else seconds / self._base_value)
        if before is not None and before > max(value, 1.0):
            self._cheapen(max(value - 1.0, 0.0) / (before - 1.0))
        self._curve = None

    def _cheapen(self, share: float) -> None:
        """Of what further rows add to the base, where they were measured but once."""
        for ratio in self._ratios.values():
            if ratio.count == 1 and ratio.value is not None and ratio.value > 1.0:
                ratio.value = 1.0 + share * (ratio.value - 1.0)

    @property
    def _base_value(self) -> float:
        return self._base.value or 1e-9

    def seconds(self, rows: float) -> float:
        """Estimated; 0 where nothing was measured yet."""
        known = self._rows
        if not known:
            return 0.0
        curve = self._curve or self._drawn()
        at = bisect_right(known, rows)
        if (at and known[at - 1] == rows) or len(known) == 1:
            return curve[max(at - 1, 0)] * self._base_value
        high = min(max(at, 1), len(known) - 1)
        low_rows, low = known[high - 1], curve[high - 1]
        slope = (curve[high] - low) / (known[high] - low_rows)
        return max(low + slope * (rows - low_rows), 0.0) * self._base_value

    def _drawn(self) -> list[float]:
        curve = [self._ratios[rows].value or 0.0 for rows in self._rows]
        for i in range(len(curve) - 2, -1, -1):
            curve[i] = min(curve[i], curve[i + 1])
        self._curve = curve
        return curve


class Pace:
    """Tokens per second of a level, over its recent rounds."""

    __slots__ = ("_seconds", "_tokens")

    _MEMORY_ROUNDS = 64.0

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        fade = 1.0 - 1.0 / self._MEMORY_ROUNDS
        self._tokens = self._tokens * fade + tokens
        self._seconds = self._seconds * fade + seconds

    @property
    def seconds_per_token(self) -> float | None:
        """1 / pace; None before anything was made."""
        return self._seconds / self._tokens if self._tokens > 0.0 else None


class ProbeBudget:
    """Lets a level that does not pay be tried now and then, at a bounded share of the time.

    A probe that was right has paid for itself, and the next may follow at once.
    """

    __slots__ = ("_free", "_saved", "_share", "_spent_last")

    def __init__(self, share: float = 0.005, free: int = 0) -> None:
        self._share = share
        self._free = free  # probes to begin with, before anything could be saved
        self._saved = 0.0
        self._spent_last = 0.0

    def allows(self, spent: float, cost: float) -> bool:
        """Whether `cost` can be paid from the share of all `spent` seconds; takes it if so."""
        self._saved += self._share * spent
        if self._free > 0:
            self._free -= 1
        elif self._saved < cost:
            return False
        self._spent_last = cost
        self._saved = 0.0
        return True

    def refund(self) -> None:
        """The last probe's tokens were right."""
        self._saved, self._spent_last = self._saved + self._spent_last, 0.0
