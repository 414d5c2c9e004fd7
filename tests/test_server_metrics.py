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
    assert served.metric("vllm:kv_cache_usage_perc") == 0
    drafted = served.metric("vllm:spec_decode_num_draft_tokens_total")
    accepted = served.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert 0 < accepted <= drafted
    assert served.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
    assert served.metric("specqd:level_read_gigabytes_total") > 0
