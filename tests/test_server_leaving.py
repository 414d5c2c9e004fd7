"""A client that disconnects while its prompt is read: the request ends, and its pages are free."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.openai_client import CHAT, COMPLETIONS
from support.random_models import Shape, make_model
from support.served import Served, add_template, serving

LENGTH = 30_000


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """A model that reads a prompt of LENGTH tokens in seconds, in more than 200 parts."""
    shape = Shape(layers=6, context=1 << 15)
    return add_template(make_model(tmp_path_factory.mktemp("slow"), shape, seed))


def between_parts(is_so: Callable[[], bool]) -> None:
    """Asks until it is so. The server answers each question about its metrics between two parts."""
    assert any(is_so() for _ in range(LENGTH))


def leave_while_reading(served: Served, path: str, body: dict[str, Any]) -> float:
    """Sends a request, disconnects after a part of its prompt, and returns how many tokens of it
    were read in the end."""
    before = served.metric("specqd:prompt_tokens_read_total")
    connection = served.connect()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    between_parts(lambda: served.metric("specqd:prompt_tokens_read_total") > before)
    connection.close()
    between_parts(lambda: served.metric("vllm:num_requests_running") == 0)
    return served.metric("specqd:prompt_tokens_read_total") - before


def test_its_request_ends_soon_and_its_pages_are_free(slow: Path, rng: np.random.Generator) -> None:
    text = "".join(map(chr, rng.integers(97, 123, LENGTH)))
    streamed = {"prompt": text, "stream": True, "return_progress": True}
    whole = {"messages": [{"role": "user", "content": text[::-1]}]}
    with serving(str(slow), "--draft", "none", "--cache-positions", "40000") as served:
        for path, body in ((COMPLETIONS, streamed), (CHAT, whole)):
            assert 0 < leave_while_reading(served, path, body) < LENGTH / 2
            assert served.metric("specqd:prompt_tokens_left") == 0
            assert served.metric("vllm:num_requests_waiting") == 0
            assert served.metric("vllm:kv_cache_usage_perc") == 0
        assert served.metric("vllm:generation_tokens_total") == 0
        metrics = served.ask("GET", "/metrics").body.decode()
        assert re.search(r'finished_reason="abort".*} 2\.0$', metrics, re.MULTILINE)
