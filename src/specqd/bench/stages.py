"""Times the stages of a forward of one model: products, attention, and waits at barriers.

Knows models and the pool's trace. Recording costs two clock readings a stage.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from specqd._native import Context, Rows
from specqd.model.model import Model, Precision

Span = tuple[int, str, int, int]  # thread, stage, begin and end in nanoseconds


@dataclass(frozen=True, slots=True)
class Stage:
    """Medians over forwards; the mean over threads of the time of all calls in a forward."""

    name: str
    calls: int  # a thread's, in one forward
    seconds: float


@dataclass(frozen=True, slots=True)
class ForwardTimes:
    """`seconds` is the median of whole forwards; `spans` are those of the fastest one."""

    precision: str
    rows: int
    seconds: float
    stages: list[Stage]  # longest first
    spans: list[Span]


def measure(
    model: Model, precision: Precision, rows: int, position: int, repeats: int
) -> ForwardTimes:
    """Times forwards of `rows` rows at `position`, with the logits of all.

    `model` is the exact precision. Raises RequestError where the context ends before.
    """
    tokens = [1 + i % (model.config.vocab_size - 1) for i in range(position + rows)]
    model.check_tokens(tokens)
    reading = model if precision is Precision.EXACT else model.as_draft()
    context = Context(model.cache.create())
    try:
        if position > 0:
            model.forward([Rows(context, 0, tokens[:position], 0)])
        own = context if reading is model else Context(context.slot, context)
        batch = [Rows(own, position, tokens[position:], rows)]
        reading.forward(batch)
        forwards = [_traced(reading, batch) for _ in range(repeats)]
    finally:
        model.cache.release(context.slot)
    seconds = [_length(spans) for spans in forwards]
    return ForwardTimes(
        precision.value,
        rows,
        median(seconds),
        _stages(forwards, model.machine.pool.threads),
        forwards[seconds.index(min(seconds))],
    )


def chrome_trace(times: Sequence[ForwardTimes]) -> dict[str, Any]:
    """The spans as Chrome's trace-event format, in microseconds: a process per forward.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    events: list[dict[str, Any]] = []
    for process, each in enumerate(times):
        label = f"{each.precision}, {each.rows} rows"
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
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(forwards))
    calls: dict[str, int] = defaultdict(int)
    for i, spans in enumerate(forwards):
        for _, name, begin, end in spans:
            totals[name][i] += (end - begin) / 1e9 / threads
            calls[name] += 1
    stages = [
        Stage(name, round(calls[name] / len(forwards) / threads), median(seconds))
        for name, seconds in totals.items()
    ]
    return sorted(stages, key=lambda stage: -stage.seconds)
