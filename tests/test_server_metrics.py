"""Metrics count requests, tokens and drafts, and bandwidth shares are computed from them."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import __version__
from specqd.engine.reports import LevelReport, Stats
from support.events import events_of
from support.level_reports import report
from support.openai_client import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from support.random_models import EOS, Shape, make_model
from support.served import Served, add_template, serving

pytest.importorskip("fastapi", reason="needs specqd[serve]")

from prometheus_client import generate_latest

from specqd.server.bandwidth import RecentShares, shares_of
from specqd.server.metrics import Counts, Metrics
from specqd.server.model_metrics import Merged


def test_the_version_and_the_context_length_can_be_queried(served: Served) -> None:
    assert served.ask("GET", "/version").content == {"version": __version__}
    [model] = served.ask("GET", "/v1/models").content["data"]
    assert model["context_length"] == model["max_model_len"] > 0


def test_preemptions_are_counted(tmp_path: Path, seed: int, rng: np.random.Generator) -> None:
    directory = make_model(tmp_path / "small", Shape(), seed)
    prompts = [rng.integers(0, 256, 10).tolist() for _ in range(6)]
    body = {"prompt": prompts, "max_tokens": 400, "ignore_eos": True}
    with serving(str(directory), "--cache-positions", "640") as served:
        answer = served.ask("POST", COMPLETIONS, body).content
        assert answer["usage"]["completion_tokens"] == 2400
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert served.metric("vllm:num_preemptions_total") > 0


def test_prometheus_parses_the_metrics(served: Served) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    assert served.ask("POST", COMPLETIONS, {"prompt": "x"}).status == 200
    reply = served.ask("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(parser.text_string_to_metric_families(reply.body.decode()))
    assert {family.type for family in families} == {"counter", "gauge", "histogram"}
    assert all(family.documentation and family.samples for family in families)
    assert all(family.name.startswith(("vllm:", "specqd:")) for family in families)
    labels = [sample.labels for family in families for sample in family.samples]
    assert all(each["model_name"] == "small" for each in labels)


def test_vllms_counters_count_only_the_target(chance: random.Random) -> None:
    parser = pytest.importorskip("prometheus_client.parser")

    def level(name: str) -> LevelReport:
        places = sorted((chance.randrange(1, 99) for _ in range(4)), reverse=True)
        drafted, accepted = (places[0], places[1]), (places[2], places[3])
        counts = {"drafted": sum(drafted), "accepted": sum(accepted)}
        return report(name=name, drafted_at=drafted, accepted_at=accepted, **counts)

    target, draft = level("bf16"), level("fp4")
    begun, now = (
        Stats(0, 0, 0, 0, 0.0, 0.0, levels, ("bf16", "fp4"))
        for levels in ((report(name="bf16"), report(name="fp4")), (target, draft))
    )
    families = Metrics("small", begun, {}).families(Counts(0, 0, 0.0, *[0] * 5, now))
    counted = generate_latest(Merged([families])).decode()
    found: dict[str, float] = {}
    for family in parser.text_string_to_metric_families(counted):
        for sample in family.samples:  # summed over labels, as scrapers do
            found[sample.name] = found.get(sample.name, 0) + sample.value
    counts = (("drafts", "proposals"), ("draft_tokens", "drafted"), ("accepted_tokens", "accepted"))
    for name, attribute in counts:
        assert found[f"vllm:spec_decode_num_{name}_total"] == getattr(target, attribute)
    by_place = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert found[by_place] == target.accepted
    both = target.accepted + draft.accepted
    assert found["specqd:level_accepted_tokens_total"] == both
    assert found["specqd:level_accepted_tokens_per_pos_total"] == both


def test_counters_go_on_with_another_engine_of_the_same_chain(chance: random.Random) -> None:
    def stats(prompts: int, names: tuple[str, ...] = ("bf16",)) -> Stats:
        levels = tuple(report(name=name, rows=prompts) for name in names)
        return Stats(prompts, 0, 0, 0, 0.0, 0.0, levels, names)

    def shown(metrics: Metrics, counts: Counts | None = None) -> dict[str, float]:
        samples = (each for family in metrics.families(counts) for each in family.samples)
        return {each.name: each.value for each in samples}

    a, b, begun = (chance.randrange(1, 99) for _ in range(3))
    tokens, running = "vllm:prompt_tokens_total", "vllm:num_requests_running"
    metrics = Metrics("small", stats(begun), {})
    metrics.end(Counts(2, 0, 0.5, *[1] * 5, stats(begun + a)))
    assert shown(metrics)[tokens] == a
    assert shown(metrics)[running] == 0
    metrics.resume(stats(0), {})
    again = shown(metrics, Counts(3, 0, 0.0, *[1] * 5, stats(b)))
    assert (again[tokens], again[running]) == (a + b, 3)
    assert again["specqd:level_rows_total"] == a + b
    assert again["vllm:num_preemptions_total"] == 2
    metrics.end(Counts(0, 0, 0.0, *[0] * 5, stats(b)))
    chain = ("bf16", "fp4")
    metrics.resume(stats(0, chain), {})
    assert shown(metrics, Counts(0, 0, 0.0, *[0] * 5, stats(b, chain)))[tokens] == b


@pytest.fixture
def served(tmp_path: Path, seed: int) -> Iterator[Served]:
    directory = add_template(make_model(tmp_path / "small", Shape(is_peaked=True), seed))
    with serving(str(directory), "--draft", "fp4:k=3") as served:
        yield served


def speculation_of(answer: Any) -> Any:
    return answer["metrics"]["speculative_decoding"]


def streamed_speculation(served: Served, path: str, body: dict[str, Any]) -> Any:
    """Returns the counts of drafts in a stream, which must have them once."""
    if path in (COMPLETIONS, CHAT):
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        events = served.ask("POST", path, body | usage).chunks
    else:
        events = [event.get("response", event) for event in events_of(served, path, body)]
    [answer] = [event for event in events if "metrics" in event]
    return speculation_of(answer)


def test_answers_have_the_same_counts_of_drafts_as_the_metrics(
    served: Served, rng: np.random.Generator
) -> None:
    shared: dict[str, Any] = {"logit_bias": {str(EOS): -100}}
    shared |= {"temperature": float(rng.choice([0.0, 0.8]))}
    text = "".join(map(chr, rng.integers(97, 123, 20)))
    chat = {"messages": [{"role": "user", "content": text}]}
    count = int(rng.integers(20, 80))
    body = shared | {"prompt": text, "max_tokens": count}
    bodies = {
        COMPLETIONS: body,
        CHAT: shared | chat | {"max_tokens": count},
        RESPONSES: shared | {"input": text, "max_output_tokens": count},
        MESSAGES: shared | chat | {"max_tokens": count},
    }
    told = [
        of_answer
        for path, each in bodies.items()
        for of_answer in (
            speculation_of(served.ask("POST", path, each).content),
            streamed_speculation(served, path, each),
        )
    ]
    assert len(told) == 8
    for name, counted in (
        ("num_spec_steps", "drafts"),
        ("num_draft_tokens", "draft_tokens"),
        ("num_accepted_draft_tokens", "accepted_tokens"),
    ):
        total = served.metric(f"vllm:spec_decode_num_{counted}_total")
        assert total == sum(each[name] for each in told) > 0
    for each in told:
        steps, accepted = each["num_spec_steps"], each["num_accepted_draft_tokens"]
        histogram = each["acceptance_histogram"]
        assert (each["num_spec_tokens"], len(histogram), sum(histogram)) == (3, 4, steps)
        assert accepted == sum(count * steps for count, steps in enumerate(histogram))
        assert each["mean_acceptance_length"] == 1 + accepted / max(steps, 1)
        assert each["draft_acceptance_rate"] == accepted / max(each["num_draft_tokens"], 1)
    plain = speculation_of(served.ask("POST", COMPLETIONS, body | {"draft": "none"}).content)
    assert (plain["acceptance_histogram"], plain["mean_acceptance_length"]) == ([0] * 4, 1.0)
    assert speculation_of(served.ask("POST", COMPLETIONS, body | {"n": 2}).content) is None


def test_answers_have_no_counts_without_drafts(chat_model: Path) -> None:
    with serving(str(chat_model), "--draft", "none") as served:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        answer = served.ask("POST", CHAT, body).content
    assert answer["metrics"] == {"speculative_decoding": None}


def test_metrics_count_requests_tokens_and_drafts(served: Served, rng: np.random.Generator) -> None:
    assert served.metric("vllm:prompt_tokens_total") == 0
    body = {"prompt": rng.integers(0, 256, 200).tolist(), "temperature": 0}
    body |= {"max_tokens": 40, "ignore_eos": True}
    for _ in range(2):
        answer = served.ask("POST", COMPLETIONS, body).content
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == 192  # whole pages of 64
    assert served.metric("vllm:prompt_tokens_total") == 400
    assert served.metric("vllm:generation_tokens_total") == 80
    assert served.metric("vllm:prefix_cache_queries_total") == 400
    assert served.metric("vllm:prefix_cache_hits_total") == 192
    assert served.metric("specqd:prompt_tokens_read_total") == 400 - 192 - 2  # but the last of each
    assert served.metric("specqd:prompt_tokens_left") == 0
    assert served.metric("vllm:request_success_total") == 2
    assert served.metric("vllm:time_to_first_token_seconds_count") == 2
    assert served.metric("vllm:inter_token_latency_seconds_count") <= 78
    assert served.metric("vllm:e2e_request_latency_seconds_count") == 2
    assert served.metric("vllm:num_requests_running") == 0
    assert served.metric("vllm:num_preemptions_total") == 0
    assert served.metric("vllm:kv_cache_usage_perc") == 0
    drafted = served.metric("vllm:spec_decode_num_draft_tokens_total")
    accepted = served.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert 0 < accepted <= drafted
    assert served.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
    assert served.metric("specqd:level_read_gigabytes_total") > 0
    asks, seconds = "specqd:level_asks_total", "specqd:level_gain_seconds_total"
    assert 0 < served.metric(seconds) < served.metric(asks)  # a token saves less than 1 s


# --- Bandwidth ------------------------------------------------------------------------------------


def by_level(served: Served, name: str) -> dict[str, float]:
    text = served.ask("GET", "/metrics").body.decode()
    found = re.findall(rf'^{name}{{level="(\w+)",model_name="small"}} (\S+)$', text, re.MULTILINE)
    return {level: float(value) for level, value in found}


def test_the_page_and_the_metrics_show_the_same_bandwidth(served: Served) -> None:
    names = ["forwards", "forward_seconds", "read_gigabytes", "read_cache_gigabytes"]
    counters = [f"specqd:level_{name}_total" for name in names]
    for counter in counters:
        assert by_level(served, counter) == {"bf16": 0, "fp4": 0}  # loading is not counted
    assert by_level(served, "specqd:level_bandwidth_share") == {}
    limits = served.ask("GET", "/page/facts").content["bandwidth"]
    assert by_level(served, "specqd:level_bandwidth_gigabytes_per_second") == limits
    body = {"prompt": [1], "max_tokens": 300, "ignore_eos": True, "temperature": 0}
    asked = body | {"stream": True, "return_progress": True}
    last = served.ask("POST", COMPLETIONS, asked).chunks[-1]
    levels = last["choices"][0]["progress"]["levels"]
    shares = by_level(served, "specqd:level_bandwidth_share")
    of_all = served.metric("specqd:bandwidth_share")
    forwards, seconds, weights, cache = (by_level(served, counter) for counter in counters)
    moved = {name: weights[name] + cache[name] for name in limits}
    for level in levels:
        name = level["name"]
        # The page does not count the round that made the first tokens.
        assert 0 < level["forwards"] <= forwards[name] <= level["forwards"] + 4
        assert 0 < level["seconds"] <= seconds[name]
        one_forward = weights[name] / forwards[name]
        assert level["gigabytes"] == pytest.approx(one_forward * level["forwards"])
        assert 0 < level["cache_gigabytes"] <= cache[name]
        assert shares[name] == pytest.approx(moved[name] / limits[name] / seconds[name])
    needed = sum(moved[name] / limits[name] for name in limits)
    assert of_all == pytest.approx(needed / sum(seconds.values()))


def test_shares_cover_only_the_last_seconds() -> None:
    limits = {"a": 10.0}
    now = 100.0
    shares = RecentShares(limits, [report()], clock=lambda: now)
    assert shares.shares([report()]).by_level == {}
    assert shares.shares([report()]).of_all is None
    slow = report(gigabytes=1.0, cache_gigabytes=1.0, seconds=2.0)
    now = 105.0
    assert shares.shares([slow]).by_level == {"a": 0.1}
    fast = report(gigabytes=11.0, cache_gigabytes=1.0, seconds=3.0)
    now = 108.0  # since the start
    assert shares.shares([fast]).of_all == 12 / 10 / 3
    now = 115.0  # since 105
    assert shares.shares([fast]).of_all == 1.0
    now = 130.0  # since 115
    assert shares.shares([fast]).of_all is None


def test_levels_without_a_measured_bandwidth_have_no_share() -> None:
    levels = [report(name="a", gigabytes=4.0, seconds=1.0), report(name="b", seconds=2.0)]
    assert shares_of(levels, {"a": 8.0}).by_level == {"a": 0.5}
    assert shares_of(levels, {"a": 8.0}).of_all == 0.5
    assert shares_of(levels, {}).of_all is None
