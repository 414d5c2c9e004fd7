"""Times the stages of a forward of one model: products, attention, and waits at barriers.

Knows models and the pool's trace. Recording costs two clock readings per stage.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median, quantiles
from typing import Any

from specqd import _native
from specqd._native import PAGE_POSITIONS, Context, Rows
from specqd.bench.rounds import LARGEST_READ
from specqd.errors import RequestError
from specqd.model.bandwidth import plain_reads
from specqd.model.model import Model, Precision

Span = tuple[int, str, int, int]  # thread, stage, begin and end in nanoseconds


@dataclass(frozen=True, slots=True)
class Stage:
    """The time of all calls in a forward, as a mean over threads and the median over forwards.

    For a stage that only some forwards have, it is that median times the share of those forwards.
    """

    name: str
    calls: int  # of one thread in one forward
    seconds: float


@dataclass(frozen=True, slots=True)
class ForwardTimes:
    """`seconds` is the median of whole forwards; `spans` are those of the fastest one.

    `moved_bytes` counts the weights, keys, values and states of a forward, as a mean. `shares` are
    quartiles of the ratio of two times: reading these bytes at the bandwidth of the plain read
    after a forward, over the forward.
    """

    precision: str
    rows: int  # of each sequence
    sequences: int
    seconds: float
    moved_bytes: int
    gb_per_s: float  # the median of the plain reads
    shares: list[float]
    stages: list[Stage]  # longest first
    spans: list[Span]

    def described(self) -> dict[str, Any]:
        """Everything except the spans as a JSON object."""
        facts = asdict(replace(self, spans=[]))
        del facts["spans"]
        return facts


def measure(
    model: Model,
    precision: Precision,
    rows: int,
    position: int,
    repeats: int,
    follow: bool = False,
    sequences: int = 1,
) -> ForwardTimes:
    """Times forwards of `rows` rows of each sequence at `position`, with all logits, in turns with
    plain reads.

    With `follow`, each forward begins where the one before it ended, as in decoding. `model` is the
    exact precision. Raises RequestError if the context or the cache is too short.
    """
    starts = [position + rows * (i if follow else 0) for i in range(repeats + 1)]
    tokens = [1 + i % (model.config.vocab_size - 1) for i in range(starts[-1] + rows)]
    model.check_tokens(tokens)
    texts: list[_Text] = []
    forwards = model if precision is Precision.EXACT else model.as_draft()
    accepted = len(tokens) if follow else position

    def forward(start: int) -> tuple[list[Span], int]:
        batch = [text.rows(start, rows) for text in texts]
        before = forwards.bytes_read + forwards.cache_bytes_read
        spans = _traced(forwards, batch)
        return spans, forwards.bytes_read + forwards.cache_bytes_read - before

    try:
        texts += (_Text(model, precision, tokens, accepted) for _ in range(sequences))
        _, size = forward(starts[0])
        size = _read_size(size)
        reads = plain_reads(model.machine, size)
        done, speeds = [], []
        for start in starts[1:]:
            done.append(forward(start))
            speeds.append(size / reads.read_seconds())
    finally:
        for text in texts:
            text.release()
    traces = [spans for spans, _ in done]
    moved = sum(moved for _, moved in done) // repeats
    seconds = [_length(spans) for spans in traces]
    shares = [moved / speed / each for speed, each in zip(speeds, seconds, strict=True)]
    return ForwardTimes(
        precision.value,
        rows,
        sequences,
        median(seconds),
        moved,
        median(speeds) / 1e9,
        quantiles(shares, n=4, method="inclusive") if repeats > 1 else 3 * shares,
        _stages(traces, model.machine.pool.threads),
        traces[seconds.index(min(seconds))],
    )


def _read_size(moved_bytes: int) -> int:
    """Bytes of the plain read after a forward: as many as the forward reads, if memory suffices."""
    available = _native.usable_memory()
    most = LARGEST_READ if available < 0 else min(LARGEST_READ, available // 2)
    return max(1, min(moved_bytes, most))


class _Text:
    """A sequence whose tokens are in the cache, and parts of which one precision forwards."""

    def __init__(
        self, model: Model, precision: Precision, tokens: list[int], accepted: int
    ) -> None:
        self._model = model
        self._tokens = tokens
        self._exact = Context(model.cache.create())
        self._exact.match(tokens, accepted)
        is_exact = precision is Precision.EXACT
        self._own = self._exact if is_exact else Context(self._exact.slot, self._exact)

    def rows(self, start: int, count: int) -> Rows:
        """So many rows from `start`. First forwards the tokens before them if they are missing or
        states cannot continue there."""
        can_continue = self._model.cache.can_continue(self._exact.slot, start)
        if self._own.length < start or not can_continue:
            self._fill(start)
            self._own.begin(start + 1)
        return Rows(self._own, start, self._tokens[start : start + count], count)

    def _fill(self, end: int) -> None:
        """Writes the positions before `end`. Where no layer is recurrent, later pages are copies of
        the first one, because costs do not depend on what the cache holds."""
        cache, slot = self._model.cache, self._exact.slot
        self._forward_exact(0, end if cache.has_states else min(end, PAGE_POSITIONS))
        if cache.has_states or end <= PAGE_POSITIONS:
            return
        first = cache.page_bits(slot, 0)
        for page in range(1, end // PAGE_POSITIONS):
            if not cache.has_page(slot, page) and not cache.append_page(slot, first):
                raise RequestError(f"the KV cache has no room for {end:,} positions")
        copied = end - end % PAGE_POSITIONS
        self._exact.record(PAGE_POSITIONS, self._tokens[PAGE_POSITIONS:copied])
        self._forward_exact(copied, end)

    def _forward_exact(self, start: int, end: int) -> None:
        if start < end:
            self._model.forward([Rows(self._exact, start, self._tokens[start:end], 0)])

    def release(self) -> None:
        self._model.cache.release(self._exact.slot)


def chrome_trace(times: Sequence[ForwardTimes]) -> dict[str, Any]:
    """The spans as Chrome's trace-event format, in microseconds: a process per forward.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    events: list[dict[str, Any]] = []
    for process, each in enumerate(times):
        label = f"{each.precision}, {each.rows * each.sequences} rows"
        events.append({"ph": "M", "name": "process_name", "pid": process, "args": {"name": label}})
        start = min(begin for _, _, begin, _ in each.spans)
        for thread, name, begin, end in each.spans:
            events.append(
                {
                    "ph": "X",
                    "name": name,
                    "pid": process,
                    "tid": thread,
                    "ts": (begin - start) / 1e3,
                    "dur": (end - begin) / 1e3,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _traced(model: Model, batch: list[Rows]) -> list[Span]:
    pool = model.machine.pool
    pool.start_trace()
    try:
        model.forward(batch)
    finally:
        spans = pool.stop_trace()
    return spans


def _length(spans: list[Span]) -> float:
    return (max(end for *_, end in spans) - min(begin for _, _, begin, _ in spans)) / 1e9


def _stages(forwards: list[list[Span]], threads: int) -> list[Stage]:
    totals: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    calls: dict[str, int] = defaultdict(int)
    for i, spans in enumerate(forwards):
        for _, name, begin, end in spans:
            totals[name][i] += (end - begin) / 1e9 / threads
            calls[name] += 1
    count = len(forwards)
    stages = [
        Stage(name, round(calls[name] / count / threads), median(each.values()) * len(each) / count)
        for name, each in totals.items()
    ]
    return sorted(stages, key=lambda stage: -stage.seconds)
