"""The metrics are what happened."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from random_models import Shape, make_model
from served import Served, serving

pytest.importorskip("fastapi", reason="needs specqd[serve]")
pytest.importorskip("uvicorn", reason="needs specqd[serve]")
pytest.importorskip("prometheus_client", reason="needs specqd[serve]")


def test_texts_that_made_room_are_counted(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    directory = make_model(tmp_path / "small", Shape(), seed)
    prompts = [rng.integers(0, 256, 10).tolist() for _ in range(6)]
    body = {"prompt": prompts, "max_tokens": 400, "ignore_eos": True}
    with serving(str(directory), "--cache-positions", "640") as served:
        answer = served.ask("POST", "/v1/completions", body).content
        assert answer["usage"]["completion_tokens"] == 2400
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert served.metric("vllm:num_preemptions_total") > 0


def test_prometheus_reads_the_metrics(served: Served) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    assert served.ask("POST", "/v1/completions", {"prompt": "x"}).status == 200
    reply = served.ask("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(parser.text_string_to_metric_families(reply.body.decode()))
    assert {family.type for family in families} == {"counter", "gauge", "histogram"}
    assert all(family.documentation and family.samples for family in families)
    assert all(family.name.startswith(("vllm:", "specqd:")) for family in families)
    labels = [sample.labels for family in families for sample in family.samples]
    assert all(each["model_name"] == "small" for each in labels)


@pytest.fixture
def served(tmp_path: Path, seed: int) -> Iterator[Served]:
    directory = make_model(tmp_path / "small", Shape(is_peaked=True), seed)
    with serving(str(directory), "--draft", "mxfp4:k=3") as served:
        yield served


def test_metrics_count_what_was_asked_and_answered(
    served: Served, rng: np.random.Generator
) -> None:
    assert served.metric("vllm:prompt_tokens_total") == 0
    body = {
        "prompt": rng.integers(0, 256, 200).tolist(),
        "max_tokens": 40,
        "ignore_eos": True,
        "temperature": 0,
    }
    for _ in range(2):
        answer = served.ask("POST", "/v1/completions", body).content
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == 192  # whole pages of 64
    assert served.metric("vllm:prompt_tokens_total") == 400
    assert served.metric("vllm:generation_tokens_total") == 80
    assert served.metric("vllm:prefix_cache_queries_total") == 400
    assert served.metric("vllm:prefix_cache_hits_total") == 192
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
    assert 0 < served.metric(seconds) < served.metric(asks)  # a token is worth less than a second
