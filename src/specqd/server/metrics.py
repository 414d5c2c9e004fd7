"""Prometheus metrics: counts of the engine and its levels, and the times that clients waited.

Metrics that vLLM has too keep vLLM's names, so that its dashboards work. The others begin with
`specqd:`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from specqd.engine.engine import Engine
from specqd.engine.reports import LevelReport, Stats
from specqd.server.bandwidth import RecentShares, Shares

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_REQUEST_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
# Counters of the target, which vLLM has too: name, help, attribute of LevelReport.
_OF_TARGET = (
    ("vllm:spec_decode_num_drafts", "Proposals that the target verified.", "proposals"),
    ("vllm:spec_decode_num_draft_tokens", "Tokens in those proposals.", "drafted"),
    ("vllm:spec_decode_num_accepted_tokens", "Tokens of these that were accepted.", "accepted"),
)
_AT_TARGET = "vllm:spec_decode_num_accepted_tokens_per_pos"
# Counters of each level, including the target. Their sum over levels has no meaning.
_BY_LEVEL = (
    ("specqd:level_proposals", "Proposals that a level verified.", "proposals"),
    ("specqd:level_draft_tokens", "Tokens in those proposals.", "drafted"),
    ("specqd:level_accepted_tokens", "Proposed tokens that a level accepted.", "accepted"),
    ("specqd:level_forwards", "Forwards of a level.", "forwards"),
    ("specqd:level_rows", "Rows (tokens) in a level's forwards.", "rows"),
    ("specqd:level_forward_seconds", "Seconds spent in a level's forwards.", "seconds"),
    ("specqd:level_read_gigabytes", "Gigabytes of weights read by its forwards.", "gigabytes"),
    (
        "specqd:level_read_cache_gigabytes",
        "Gigabytes of keys and values read by its forwards.",
        "cache_gigabytes",
    ),
    (
        "specqd:level_whole_cache_gigabytes",
        "The same, if drafts read their whole context.",
        "whole_cache_gigabytes",
    ),
    ("specqd:level_asks", "Proposals requested from a draft level.", "asked"),
    (
        "specqd:level_gain_seconds",
        "Value in seconds of one more accepted token, summed over those requests.",
        "token_value_seconds",
    ),
)
Family = type[CounterMetricFamily | GaugeMetricFamily]

_REASONS = {"cancelled": "abort"}  # our reason -> vLLM's, where they differ


@dataclass(frozen=True, slots=True)
class Counts:
    """The engine's counts, taken between two rounds. Requests are counted by samples."""

    running: int
    waiting: int
    cache_share: float  # of the KV cache's pages in use, from 0 to 1
    states: int  # of recurrent layers, in use by samples or the cache
    cached_states: int  # of these, those kept for later prompts
    cached_prompt_tokens: int
    prompt_tokens_left: int  # of running and waiting samples
    preemptions: int
    stats: Stats

    @classmethod
    def of(cls, engine: Engine) -> "Counts":
        """Reads the counts. Call it on the engine's thread."""
        cache, scheduler = engine.level.model.cache, engine.scheduler
        return cls(
            len(scheduler.running),
            len(scheduler.waiting),
            1.0 - cache.free_pages / cache.total_pages,
            cache.used_slots,
            cache.cached_slots,
            scheduler.cached_prompt_tokens,
            engine.prompt_tokens_left,
            scheduler.preemptions,
            Stats.of(engine),
        )

    def after(self, before: "Counts") -> "Counts":
        """Adds the counters of an earlier engine with the same chain."""
        return replace(
            self,
            cached_prompt_tokens=self.cached_prompt_tokens + before.cached_prompt_tokens,
            preemptions=self.preemptions + before.preemptions,
            stats=self.stats + before.stats,
        )

    def idle(self) -> "Counts":
        """Returns the counters alone, of an engine that has ended."""
        return replace(
            self,
            running=0,
            waiting=0,
            cache_share=0.0,
            states=0,
            cached_states=0,
            prompt_tokens_left=0,
        )


class Metrics(Collector):
    """A Watcher of jobs that publishes its counts and the engine's for Prometheus."""

    def __init__(self, model_name: str, begun: Stats, bandwidth: Mapping[str, float]) -> None:
        """begun: counts before the first request. bandwidth: memory's GB/s by level name."""
        self._registry = CollectorRegistry()
        self._latest: tuple[Counts, Shares] | None = None
        self._ended: Counts | None = None  # of earlier engines of the same model
        self._model_name = model_name
        self.resume(begun, bandwidth)
        self._registry.register(self)
        self._first_token = self._histogram(
            "vllm:time_to_first_token_seconds",
            "Seconds from a request's arrival to its first token.",
            _REQUEST_SECONDS,
        )
        self._next_token = self._histogram(
            "vllm:inter_token_latency_seconds",
            "Seconds per token; tokens that came together share the time since the previous ones.",
            _TOKEN_SECONDS,
        )
        self._request = self._histogram(
            "vllm:e2e_request_latency_seconds",
            "Seconds from a request's arrival to the end of a sample.",
            _REQUEST_SECONDS,
        )
        self._finished = Counter(
            "vllm:request_success",
            "Samples that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )

    def resume(self, begun: Stats, bandwidth: Mapping[str, float]) -> None:
        """Begins to read the counts of another engine. The counters go on if it has the same chain,
        else those of engines begin again at 0."""
        if self._ended is not None and self._ended.stats.chain != begun.chain:
            self._ended = None
        self._begun = begun
        self._shares = RecentShares(bandwidth, begun.levels)
        self._bandwidth = bandwidth

    def end(self, counts: Counts) -> None:
        """Keeps the counts of an engine that ends."""
        self._note(counts)
        assert self._latest is not None
        self._ended = self._latest[0].idle()
        self._latest = (self._ended, Shares({}, None))

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        labels = ["model_name"]
        family = Histogram(name, text, labels, registry=self._registry, buckets=buckets)
        return family.labels(self._model_name)

    def first_token(self, seconds: float) -> None:
        self._first_token.observe(seconds)

    def next_tokens(self, seconds: float, count: int) -> None:
        for _ in range(count):
            self._next_token.observe(seconds / count)

    def finished(self, reason: str, seconds: float) -> None:
        self._request.observe(seconds)
        self._finished.labels(self._model_name, _REASONS.get(reason, reason)).inc()

    def families(self, counts: Counts | None = None) -> list[Metric]:
        """Returns all metrics as objects. None: those of an engine that has ended."""
        if counts is not None:
            self._note(counts)
        return list(self._registry.collect())

    def _note(self, counts: Counts) -> None:
        shares = self._shares.shares(counts.stats.levels)
        counts = replace(counts, stats=counts.stats.since(self._begun))
        if self._ended is not None:
            counts = counts.after(self._ended)
        self._latest = (counts, shares)

    def collect(self) -> Iterator[Metric]:
        if self._latest is None:
            return
        counts, shares = self._latest
        yield from self._engine_counts(counts)
        yield from self._target_counts(counts.stats.levels[0])
        yield from self._level_counts(counts.stats.levels)
        yield from self._bandwidths(shares)

    def _engine_counts(self, counts: Counts) -> Iterator[Metric]:
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        cached, stats = counts.cached_prompt_tokens, counts.stats
        held = "States of recurrent layers in use by samples or the cache."
        kept = "States of recurrent layers cached for later prompts."
        read = "Prompt tokens that forwards have read: neither cached ones nor each prompt's last."
        left = "Prompt tokens of running and waiting samples that are not read yet."
        share = "Share of the KV cache's pages in use, from 0 to 1."
        for kind, name, text, value in (
            (gauge, "vllm:num_requests_running", "Running samples.", counts.running),
            (gauge, "vllm:num_requests_waiting", "Waiting samples.", counts.waiting),
            (gauge, "vllm:kv_cache_usage_perc", share, counts.cache_share),
            (gauge, "specqd:recurrent_states", held, counts.states),
            (gauge, "specqd:recurrent_states_cached", kept, counts.cached_states),
            (gauge, "specqd:prompt_tokens_left", left, counts.prompt_tokens_left),
            (counter, "specqd:prompt_tokens_read", read, stats.read_tokens),
            (counter, "vllm:num_preemptions", "Preemptions of samples.", counts.preemptions),
            (counter, "vllm:prompt_tokens", "Tokens of queued prompts.", stats.prompt_tokens),
            (counter, "vllm:generation_tokens", "Generated tokens.", stats.new_tokens),
            (counter, "vllm:prefix_cache_queries", "Prompt tokens looked up.", stats.prompt_tokens),
            (counter, "vllm:prefix_cache_hits", "Prompt tokens found in the KV cache.", cached),
        ):
            yield self._family(kind, name, text, [((), value)])

    def _target_counts(self, target: LevelReport) -> Iterator[Metric]:
        counter = CounterMetricFamily
        for name, text, attribute in _OF_TARGET:
            yield self._family(counter, name, text, [((), getattr(target, attribute))])
        text = "Tokens that the target accepted, by position in the proposal, from 0."
        by_place = [((str(place),), count) for place, count in enumerate(target.accepted_at)]
        yield self._family(counter, _AT_TARGET, text, by_place, ("position",))

    def _level_counts(self, levels: tuple[LevelReport, ...]) -> Iterator[Metric]:
        for name, text, attribute in _BY_LEVEL:
            values = {level.name: getattr(level, attribute) for level in levels}
            yield self._by_level(CounterMetricFamily, name, text, values)
        yield self._family(
            CounterMetricFamily,
            "specqd:level_accepted_tokens_per_pos",
            "Accepted tokens by level and position in the proposal, from 0.",
            [
                ((level.name, str(place)), accepted)
                for level in levels
                for place, accepted in enumerate(level.accepted_at)
            ],
            ("level", "position"),
        )

    def _bandwidths(self, shares: Shares) -> Iterator[Metric]:
        yield self._by_level(
            GaugeMetricFamily,
            "specqd:level_bandwidth_gigabytes_per_second",
            "Memory bandwidth at the size of a level's weights, measured at the start.",
            self._bandwidth,
        )
        yield self._by_level(
            GaugeMetricFamily,
            "specqd:level_bandwidth_share",
            "Share of that bandwidth that a level's latest forwards used.",
            shares.by_level,
        )
        if shares.of_all is not None:
            text = "The same share over all levels together."
            yield self._family(
                GaugeMetricFamily, "specqd:bandwidth_share", text, [((), shares.of_all)]
            )

    def _by_level(self, kind: Family, name: str, text: str, values: Mapping[str, float]) -> Metric:
        by_label = [((level,), value) for level, value in values.items()]
        return self._family(kind, name, text, by_label, ("level",))

    def _family(
        self,
        kind: Family,
        name: str,
        text: str,
        values: Iterable[tuple[Sequence[str], float]],
        labels: Sequence[str] = (),
    ) -> Metric:
        """Makes a metric. values: pairs of label values and a value. Adds the label model_name."""
        family = kind(name, text, labels=["model_name", *labels])
        for label_values, value in values:
            family.add_metric([self._model_name, *label_values], value)
        return family
