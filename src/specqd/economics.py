"""What drafting costs and what it brings: tracked costs, calibrated confidences, pace.

Pure bookkeeping over numbers that others measure; knows no models, tokens or clocks.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate, pairwise
from math import inf
from operator import mul

# Bins of confidence are finer towards 1, where most confidences lie and differences count.
_BIN_EDGES = (0.05, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.87, 0.92, 0.95, 0.975, 0.99, 0.997)
_BIN_MIDDLES = tuple(
    (low + high) / 2 for low, high in zip((0.0, *_BIN_EDGES), (*_BIN_EDGES, 1.0), strict=True)
)
# Rows between which further ones are taken to cost alike.
_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_ENDS = (*_KNOTS[1:], inf)
_SPANS = tuple(end - start for start, end in pairwise(_KNOTS))
_LONGEST_RUN = 8
_SLOPE = 0.1  # of the first row: what a further one may well cost
_UNSEEN = 0.25  # variance of what was never seen, or not for long, as a share squared
_MEASURED = 0.05**2  # variance of what was measured with care
_DRIFT = 0.02**2  # of a variance, with each sample of something else
_NOISE_BELOW, _NOISE_ABOVE = 0.1, 0.15  # of samples below and above what was expected
_DOWN, _UP = 0.15, 0.1  # shares of a difference that one sample moves an estimate by
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

    __slots__ = ("_count", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        self._count = 0

    def add(self, sample: float) -> None:
        self._count += 1
        if self.value is None:
            self.value = sample
        difference = min(sample, 2.0 * self.value) - self.value
        down = max(_DOWN, 1.0 / self._count)
        self.value += (down if difference < 0.0 else _UP) * difference


class Mean:
    """A running mean of recent samples; `share` is what each new one counts for."""

    __slots__ = ("_share", "value")

    def __init__(self, share: float = 0.1) -> None:
        self._share = share
        self.value: float | None = None

    def add(self, sample: float) -> None:
        before = sample if self.value is None else self.value
        self.value = before + self._share * (sample - before)


class RowCosts:
    """Seconds of a forward by its number of rows: those of the first row, and what each more adds.

    A Kalman filter over these parts, each with a variance of its own: what was not seen for long
    is uncertain, and takes the blame when a forward takes longer or less than expected. Unseen
    parts follow their neighbours: else an old price is kept because nobody pays it. Samples above
    what was expected weigh less, and never count for more than twice that: interference only adds.
    More rows never cost less.
    """

    __slots__ = ("_at_knots", "_count", "_parts", "_run", "_run_rows", "_seen", "_variances")

    def __init__(self) -> None:
        # The first part is seconds of one row; then seconds a row from each knot to the next.
        self._parts = [0.0] * (1 + len(_KNOTS))
        self._variances = [_UNSEEN] * len(self._parts)  # of each part, as shares of it
        self._seen = [0] * len(self._parts)  # the count at which the variance was as it says
        self._count = 0
        self._at_knots: list[float] | None = None
        self._run: list[float] = []  # samples of the same number of rows, one after the other
        self._run_rows = 0

    def begin(self, measured: Mapping[int, float]) -> None:
        """Starts from what was measured with care: seconds by rows, of one row at least."""
        rows = sorted(measured)
        seconds = [measured[count] for count in rows]
        for i in range(len(rows) - 2, -1, -1):  # interference only adds
            seconds[i] = min(seconds[i], seconds[i + 1])
        self._parts[0], self._variances[0] = seconds[0], _MEASURED
        for i, knot in enumerate(_KNOTS, 1):
            high = min(bisect_right(rows, knot), len(rows) - 1)
            if high > 0:
                rise = seconds[high] - seconds[high - 1]
                self._parts[i] = rise / (rows[high] - rows[high - 1])
        self._at_knots = None

    def add(self, rows: int, seconds: float) -> None:
        """Learns from a sample; from a run of the same number of rows by its mean, at its end."""
        run = self._run
        if run and (rows != self._run_rows or len(run) == _LONGEST_RUN):
            self._learn(self._run_rows, sum(run) / len(run), len(run))
            run.clear()
        self._run_rows = rows
        run.append(seconds)
        if self._parts[0] == 0.0:
            self._parts[0], self._at_knots = seconds, None

    def _learn(self, rows: int, seconds: float, samples: int) -> None:
        parts = self._parts
        expected = self.seconds(rows)
        error = min(seconds, 2.0 * expected) - expected
        noise = (_NOISE_ABOVE if error > 0.0 else _NOISE_BELOW) * expected
        self._count += samples
        end = 1 + bisect_right(_KNOTS, rows - 1)  # of the parts that `expected` is the sum of
        spans = [1.0, *(min(rows, _ENDS[i]) - _KNOTS[i] for i in range(end - 1))]
        leverage = [self._unit(i) * spans[i] * self._variance(i) for i in range(end)]
        total = noise * noise / samples
        for i, span in enumerate(spans):
            total += leverage[i] * self._unit(i) * span
        last = parts[end - 1]
        for i, span in enumerate(spans):
            unit, share = self._unit(i), leverage[i] / total
            self._variances[i] = self._variance(i) * (1.0 - share * unit * span)
            self._seen[i] = self._count
            parts[i] = max(parts[i] + share * unit * error, 0.0)
        self._pull(end, (parts[end - 1] - last) / self._unit(end - 1))
        self._at_knots = None

    def _unit(self, part: int) -> float:
        """What shares of a part are shares of: what seems free is suspected too."""
        return self._parts[part] + (_SLOPE * self._parts[0] if part else 0.0)

    def _variance(self, part: int) -> float:
        unseen = self._count - self._seen[part]
        return min(self._variances[part] + _DRIFT * unseen, _UNSEEN)

    def _pull(self, start: int, change: float) -> None:
        """The parts from `start` on, as far as they are uncertain, follow the one before."""
        if abs(change) > 0.01:
            for i in range(start, len(self._parts)):
                self._parts[i] *= max(1.0 + (self._variance(i) / _UNSEEN) ** 0.5 * change, 0.5)

    def seconds(self, rows: float) -> float:
        """Estimated; 0 where nothing was measured yet."""
        if rows <= 1.0:
            return self._parts[0]
        at_knots = self._at_knots or self._summed()
        at = bisect_right(_KNOTS, rows) - 1
        return at_knots[at] + self._parts[at + 1] * (rows - _KNOTS[at])

    def _summed(self) -> list[float]:
        rises = map(mul, self._parts[1:], _SPANS)
        self._at_knots = list(accumulate(rises, initial=self._parts[0]))
        return self._at_knots


class BatchCosts:
    """RowCosts by the size of batches: as many rows of more texts read more keys and values."""

    __slots__ = ("_costs", "_measured")

    def __init__(self) -> None:
        self._measured: Mapping[int, float] = {}
        self._costs: dict[int, RowCosts] = {}

    def begin(self, measured: Mapping[int, float]) -> None:
        """Starts all sizes from what was measured of one text."""
        self._measured = measured
        self._costs.clear()

    def of(self, count: int) -> RowCosts:
        """Of forwards for so many texts, or about as many."""
        size = count.bit_length()
        costs = self._costs.get(size)
        if costs is None:
            costs = self._costs[size] = RowCosts()
            if self._measured:
                costs.begin(self._measured)
        return costs


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
    """Lets what does not pay be tried now and then, at a bounded share of the time.

    A probe that brought more than it cost is free, and the next may follow at once.
    """

    __slots__ = ("_brought", "_cost", "_free", "_saved", "_share", "_spent")

    def __init__(self, share: float = 0.005, free: int = 0) -> None:
        self._share = share
        self._free = free  # probes to begin with, before anything could be saved
        self._saved = 0.0
        # Of the last probe: what was taken for it, and what it turned out to cost and to bring.
        self._spent = self._cost = self._brought = 0.0

    def earn(self, seconds: float) -> None:
        """So much time has gone by."""
        self._saved += self._share * seconds

    def has(self, loss: float) -> bool:
        """Whether so much could be lost."""
        return self._free > 0 or self._saved >= loss

    def allows(self, loss: float) -> bool:
        """Whether a probe that is expected to lose so much can be paid from what was saved; takes
        it if so."""
        if not self.has(loss):
            return False
        self._free = max(self._free - 1, 0)
        self._saved = 0.0  # nothing is kept for bad times
        self._spent, self._cost, self._brought = loss, 0.0, 0.0
        return True

    def cost(self, seconds: float) -> None:
        """So long the last probe took."""
        self._cost += seconds

    def bring(self, seconds: float) -> None:
        """So much the last probe's tokens saved."""
        self._brought += seconds
        if self._brought >= self._cost > 0.0:
            self._saved += self._spent
            self._spent = 0.0
