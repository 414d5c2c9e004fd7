"""The server accepts requests of public load generators, and answers with the fields they read."""

from typing import Any

import pytest

from support.fixtures import a_server
from support.openai_client import CHAT, COMPLETIONS
from support.served import Served

TOKENS = 12
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
WITH_RUNNING_USAGE = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
USER = [{"role": "user", "content": "Count."}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Count."}]}]
EXACTLY = {"ignore_eos": True, "min_tokens": TOKENS}
MOST = {"max_tokens": TOKENS}
MOST_OF_CHAT = {"max_completion_tokens": TOKENS}

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm bench serve": (
        COMPLETIONS,
        {"prompt": "Count.", "repetition_penalty": 1.0, "logprobs": None, "ignore_eos": True}
        | {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, **MOST, **WITH_USAGE},
    ),
    "vllm bench serve, chat": (
        CHAT,
        {"messages": PARTS, "ignore_eos": True, "temperature": 0.0, **MOST_OF_CHAT, **WITH_USAGE},
    ),
    "sglang.bench_serving": (
        COMPLETIONS,
        {"prompt": "Count.", "temperature": 0.0, "best_of": 1, "ignore_eos": True}
        | {"stream": True, **MOST},
    ),
    "guidellm": (
        COMPLETIONS,
        {"prompt": "Count.", "stop": None, "ignore_eos": True, **MOST, **WITH_RUNNING_USAGE},
    ),
    "guidellm, chat": (
        CHAT,
        {"messages": PARTS, "stop": None, "ignore_eos": True}
        | {**MOST_OF_CHAT, **WITH_RUNNING_USAGE},
    ),
    "genai-perf": (COMPLETIONS, {"prompt": ["Count."], "stream": True, **MOST, **EXACTLY}),
    "genai-perf, chat": (CHAT, {"messages": USER, "stream": True, **MOST, **EXACTLY}),
    "aiperf, chat": (CHAT, {"messages": USER, **MOST_OF_CHAT, **EXACTLY, **WITH_USAGE}),
    "llmperf": (
        CHAT,
        {"messages": [{"role": "system", "content": ""}, *USER], "stream": True}
        | {"temperature": 0.0, "ignore_eos": True, **MOST},
    ),
}


served = a_server("chat_model")


def text_of(chunk: dict[str, Any]) -> str:
    [choice] = chunk["choices"]
    found = choice["delta"].get("content") if "delta" in choice else choice["text"]
    return found or ""


@pytest.mark.parametrize("name", REQUESTS)
def test_each_load_generator_gets_its_tokens_and_usage(served: Served, name: str) -> None:
    path, body = REQUESTS[name]
    headers = {"x-request-id": "bench-0", "Accept": "text/event-stream"}
    reply = served.ask("POST", path, {"model": "small", **body}, headers)
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"].startswith("text/event-stream")
    chunks = reply.chunks
    options = body.get("stream_options", {})
    if options.get("include_usage"):
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == TOKENS
        assert last["usage"]["prompt_tokens"] > 0
    assert "".join(map(text_of, chunks))
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    if options.get("continuous_usage_stats"):
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == TOKENS
    else:
        assert not any(chunk.get("usage") for chunk in chunks)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_tokens": 5}, "min_tokens"),  # needs ignore_eos
        ({"min_tokens": 20, "ignore_eos": True, "max_tokens": 19}, "min_tokens"),
        ({"min_tokens": 5, "ignore_eos": True, "stop": "x"}, "min_tokens"),
        ({"min_tokens": 5, "ignore_eos": True, "stop_token_ids": [3]}, "min_tokens"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options"),
    ],
)
def test_the_error_for_a_field_without_effect_names_it(
    served: Served, fields: dict[str, Any], param: str
) -> None:
    for path, asked in ((COMPLETIONS, {"prompt": "Count."}), (CHAT, {"messages": USER})):
        reply = served.ask("POST", path, {**asked, **fields})
        assert reply.status == 400
        assert reply.error["param"].split(".")[0] == param
    assert served.ask("POST", COMPLETIONS, {"prompt": "Count.", "min_tokens": 0}).status == 200
