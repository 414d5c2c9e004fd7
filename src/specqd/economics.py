"""What drafting costs and what it brings: tracked costs, calibrated confidences, pace.

Pure bookkeeping over numbers that others measure; knows no models, tokens or clocks.
"""

from bisect import bisect_right

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


class Estimate:
    """A running estimate of what something takes on a machine that others use too.

    Interference only ever adds: so no sample counts for more than twice what was expected, and a
    lower one counts for more than a higher one, above all among the first.
    """

    __slots__ = ("_count", "value")

    _DOWN, _UP = 0.15, 0.1  # shares of a difference that one sample moves the value by

    def __init__(self) -> None:
        self.value: float | None = None
        self._count = 0

    def add(self, sample: float) -> None:
        self._count += 1
        if self.value is None:
            self.value = sample
            return
        difference = min(sample, 2.0 * self.value) - self.value
        down = max(self._DOWN, 1.0 / self._count)
        self.value += (down if difference < 0.0 else self._UP) * difference


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
    the machine slows all of them, and one that is seldom forwarded must not keep an old price.
    """

    def __init__(self) -> None:
        self._base = Estimate()
        self._base_rows = 0
        self._slope = Estimate()  # of one more row, as a share of the base
        self._ratios: dict[int, Estimate] = {}
        self._known: list[int] = []

    def add(self, rows: int, seconds: float) -> None:
        if self._base.value is None or rows == self._base_rows:
            self._base_rows = rows
            self._base.add(seconds)
        if rows > self._base_rows:
            share = seconds / self._base_value - 1.0
            self._slope.add(max(share, 0.0) / (rows - self._base_rows))
        ratio = self._ratios.get(rows)
        if ratio is None:
            ratio = Estimate()
            if len(self._known) > 1:  # so that a first sample out of line does little harm
                ratio.add(self.seconds(rows) / self._base_value)
            self._ratios[rows] = ratio
            self._known = sorted(self._ratios)
        ratio.add(1.0 if rows == self._base_rows else seconds / self._base_value)

    @property
    def _base_value(self) -> float:
        return self._base.value or 1e-9

    def seconds(self, rows: int) -> float:
        """Estimated; 0 where nothing was measured yet."""
        known = self._known
        if not known:
            return 0.0
        at = bisect_right(known, rows)
        if at and known[at - 1] == rows:
            return self._value(rows)
        if len(known) == 1:
            return self._value(known[0])
        high = min(max(at, 1), len(known) - 1)
        first, second = known[high - 1], known[high]
        slope = (self._value(second) - self._value(first)) / (second - first)
        return max(self._value(first) + slope * (rows - first), 0.0)

    @property
    def row_seconds(self) -> float:
        """What one more row costs, over the numbers of rows that were forwarded of late."""
        return (self._slope.value or 0.0) * self._base_value

    def _value(self, rows: int) -> float:
        return (self._ratios[rows].value or 0.0) * self._base_value


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

    def seconds_per_token(self, default: float) -> float:
        """1 / pace, or the default before anything was made."""
        return self._seconds / self._tokens if self._tokens > 0.0 else default


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
