"""What Prometheus reads: counts of the engine and its levels, and how long clients waited.

Names are vLLM's where it has the thing, so that dashboards fit; the others begin with `specqd:`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from specqd.engine.engine import Engine
from specqd.engine.reports import LevelReport, Stats
from specqd.server.bandwidth import RecentShares, Shares

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_REQUEST_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_BY_LEVEL: tuple[tuple[str, str, Callable[[LevelReport], float]], ...] = (
    (
        "vllm:spec_decode_num_drafts",
        "Proposals to a level.",
        lambda level: sum(level.drafted_at[:1]),
    ),
    ("vllm:spec_decode_num_draft_tokens", "Tokens in them.", lambda level: level.drafted),
    ("vllm:spec_decode_num_accepted_tokens", "Of those, accepted.", lambda level: level.accepted),
    ("specqd:level_forwards", "Of a level.", lambda level: level.forwards),
    ("specqd:level_rows", "Tokens that they read.", lambda level: level.rows),
    ("specqd:level_forward_seconds", "That they took.", lambda level: level.seconds),
    ("specqd:level_read_gigabytes", "Of weights.", lambda level: level.gigabytes),
    (
        "specqd:level_read_cache_gigabytes",
        "Of keys and values.",
        lambda level: level.cache_gigabytes,
    ),
    ("specqd:level_asks", "For a proposal, of a draft level.", lambda level: level.asked),
    (
        "specqd:level_gain_seconds",
        "That a token more was worth, over all asks.",
        lambda level: level.token_value_seconds,
    ),
)
_REASONS = {"cancelled": "abort"}  # vLLM's words


@dataclass(frozen=True, slots=True)
class Counts:
    """The engine between two rounds."""

    running: int
    waiting: int
    cache_share: float  # of the pages, those in use
    cached_prompt_tokens: int
    preemptions: int
    stats: Stats

    @classmethod
    def of(cls, engine: Engine) -> "Counts":
        cache, scheduler = engine.level.model.cache, engine.scheduler
        return cls(
            len(scheduler.running),
            len(scheduler.waiting),
            1.0 - cache.free_pages / cache.total_pages,
            scheduler.cached_prompt_tokens,
            scheduler.preemptions,
            Stats.of(engine),
        )


class Metrics:
    """Watches jobs as they come out of the engine, and shows counts when asked."""

    def __init__(self, model_name: str, begun: Stats, bandwidth: Mapping[str, float]) -> None:
        """begun: what was done before the first request; bandwidth: GB/s of memory, by level."""
        self._registry = CollectorRegistry()
        self._begun = begun
        self._shares = RecentShares(bandwidth, begun.levels)
        self._counts = _CountsCollector(model_name, bandwidth)
        self._registry.register(self._counts)
        labels = ["model_name"]
        self._first_token = Histogram(
            "vllm:time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            labels,
            registry=self._registry,
            buckets=_REQUEST_SECONDS,
        ).labels(model_name)
        self._next_token = Histogram(
            "vllm:inter_token_latency_seconds",
            "Between tokens; those that came together share the time since the last.",
            labels,
            registry=self._registry,
            buckets=_TOKEN_SECONDS,
        ).labels(model_name)
        self._request = Histogram(
            "vllm:e2e_request_latency_seconds",
            "From a request's arrival to the end of a sample.",
            labels,
            registry=self._registry,
            buckets=_REQUEST_SECONDS,
        ).labels(model_name)
        self._finished = Counter(
            "vllm:request_success",
            "Samples by how they ended.",
            [*labels, "finished_reason"],
            registry=self._registry,
        )
        self._model_name = model_name

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def next_tokens(self, seconds: float, count: int) -> None:
        for _ in range(count):
            self._next_token.observe(seconds / count)

    def finished(self, reason: str, seconds: float) -> None:
        self._request.observe(seconds)
        self._finished.labels(self._model_name, _REASONS.get(reason, reason)).inc()

    def shown(self, counts: Counts) -> bytes:
        shares = self._shares.look(counts.stats.levels)
        stats = counts.stats.since(self._begun)
        self._counts.known = (replace(counts, stats=stats), shares)
        return generate_latest(self._registry)


class _CountsCollector(Collector):
    def __init__(self, model_name: str, bandwidth: Mapping[str, float]) -> None:
        self.known: tuple[Counts, Shares] | None = None
        self._model_name = model_name
        self._bandwidth = bandwidth

    def describe(self) -> list[Metric]:
        return []  # nothing is known before there are counts

    def collect(self) -> Iterator[Metric]:
        if self.known is None:
            return
        counts, shares = self.known
        stats = counts.stats
        yield self._gauge("vllm:num_requests_running", "Samples being written.", counts.running)
        yield self._gauge("vllm:num_requests_waiting", "Samples that wait.", counts.waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "1: it is full.", counts.cache_share)
        yield self._counter(
            "vllm:num_preemptions", "Times that a sample made room.", counts.preemptions
        )
        yield self._counter("vllm:prompt_tokens", "Of requests taken.", stats.prompt_tokens)
        yield self._counter("vllm:generation_tokens", "Written.", stats.new_tokens)
        yield self._counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up.", stats.prompt_tokens
        )
        yield self._counter(
            "vllm:prefix_cache_hits", "Of them, those found.", counts.cached_prompt_tokens
        )
        yield from self._levels(stats.levels)
        yield from self._bandwidths(shares)

    def _levels(self, levels: tuple[LevelReport, ...]) -> Iterator[Metric]:
        """Of each level that verifies: what was drafted for it, and what it took."""
        for name, text, value_of in _BY_LEVEL:
            family = CounterMetricFamily(name, text, labels=["model_name", "level"])
            for level in levels:
                family.add_metric([self._model_name, level.name], value_of(level))
            yield family
        places = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "By level and place in the proposal, from 0.",
            labels=["model_name", "level", "position"],
        )
        for level in levels:
            for place, accepted in enumerate(level.accepted_at):
                places.add_metric([self._model_name, level.name, str(place)], accepted)
        yield places

    def _bandwidths(self, shares: Shares) -> Iterator[Metric]:
        limits = "specqd:level_bandwidth_gigabytes_per_second"
        lately = "Of that, what forwards used lately, by level."
        yield self._by_level(limits, "Of memory, measured at the start.", self._bandwidth)
        yield self._by_level("specqd:level_bandwidth_share", lately, shares.by_level)
        if shares.of_all is not None:
            text = "The same of all levels together."
            yield self._gauge("specqd:bandwidth_share", text, shares.of_all)

    def _by_level(self, name: str, text: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name", "level"])
        for level, value in values.items():
            family.add_metric([self._model_name, level], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family
