"""What Open WebUI and LiteLLM send, by their published sources, to a server with two models: both
models are listed, and each answers as it does alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specqd import LLM, SamplingParams
from support.openai_client import CHAT, COMPLETIONS
from support.random_models import Shape, make_model
from support.served import TEMPLATE, Served, add_template, serving

pytest.importorskip("llguidance", reason="needs specqd[serve]")

Json = dict[str, Any]
KEY = "a-key"
NAMES = ("first", "second")
SHAPE = Shape(is_peaked=True, context=1024)

USER = {"role": "user", "content": "Why is the sky blue?"}
TALK = [USER, {"role": "assistant", "content": "Because"}, {"role": "user", "content": "And?"}]
TITLE = {"role": "user", "content": "### Task:\nGenerate a concise title.\n### Chat History:\n..."}
USAGE = {"include_usage": True}

# Open WebUI 0.12.4, backend/open_webui: routers/openai.py, routers/tasks.py, utils/payload.py. It
# lists models with the headers of its chats.
WEBUI_HEADERS = {
    "Content-Type": "application/json",
    "Authorization": f"Bearer {KEY}",
    "X-OpenWebUI-User-Name": "A%20User",
    "X-OpenWebUI-User-Id": "5f0c",
    "X-OpenWebUI-User-Email": "user@example.org",
    "X-OpenWebUI-User-Role": "admin",
    "X-OpenWebUI-Chat-Id": "0b7e",
}
WEBUI: dict[str, Json] = {
    "a chat": {"stream": True, "messages": [USER], "stream_options": USAGE},
    "a chat without usage": {"stream": True, "messages": TALK},
    "a chat with a system prompt and all parameters of the settings": {
        "stream": True,
        "messages": [{"role": "system", "content": "Be brief."}, *TALK],
        "stream_options": USAGE,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.01,
        "max_tokens": 12,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "reasoning_effort": "low",
        "seed": 11,
        "stop": ["\n\n"],
        "logit_bias": {"65": -5},
        "response_format": {"type": "text"},
    },
    "a chat in parts": {
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": USER["content"]}]}],
        "stream_options": USAGE,
    },
    "a chat that is not streamed": {"stream": False, "messages": [USER]},
    "an answer that goes on": {
        "stream": True,
        "messages": TALK[:2],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "a title": {"messages": [TITLE], "stream": False, "max_tokens": 1000},
    "tags and follow-ups": {"messages": [TITLE], "stream": False},
}
# LiteLLM 1.110.2, through OpenAI's client 3.57.0: as `openai/NAME`, `hosted_vllm/NAME` and
# `text-completion-openai/NAME`. It lists models if `check_provider_endpoint` is set.
LITELLM_HEADERS = {
    "Content-Type": "application/json",
    "Authorization": f"Bearer {KEY}",
    "User-Agent": "OpenAI/Python 3.57.0",
    "X-Stainless-Lang": "python",
    "X-Stainless-Async": "false",
    "X-Stainless-Raw-Response": "true",
}
LITELLM: dict[str, tuple[str, Json]] = {
    "completion": (CHAT, {"messages": [USER]}),
    "completion, streamed": (CHAT, {"messages": [USER], "stream": True}),
    "completion, streamed with usage": (
        CHAT,
        {"messages": TALK, "stream": True, "stream_options": USAGE},
    ),
    "completion with parameters": (
        CHAT,
        {
            "messages": TALK,
            "temperature": 0.5,
            "top_p": 0.8,
            "n": 1,
            "stop": ["\n\n"],
            "max_tokens": 12,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.1,
            "logit_bias": {"65": -5},
            "seed": 5,
            "top_k": 4,
            "min_p": 0.01,
        },
    ),
    "completion with drop_params": (
        CHAT,
        {"messages": [USER], "max_completion_tokens": 12, "reasoning_effort": "low"},
    ),
    "hosted_vllm, streamed": (
        CHAT,
        {"messages": [USER], "stream": True, "max_completion_tokens": 12},
    ),
    "text_completion": (COMPLETIONS, {"prompt": "The sky is", "max_tokens": 8}),
    "text_completion, streamed": (
        COMPLETIONS,
        {"stream": True, "prompt": "The sky is", "max_tokens": 8},
    ),
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory, seed: int) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        name: add_template(make_model(folder / name, SHAPE, seed + i), TEMPLATE)
        for i, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module")
def alone(directories: dict[str, Path]) -> dict[str, LLM]:
    return {name: LLM(path, "none", threads=1) for name, path in directories.items()}


@pytest.fixture(scope="module")
def served(directories: dict[str, Path]) -> Iterator[Served]:
    """Its default sampling is greedy, so that requests without parameters can be compared."""
    words = map(str, directories.values())
    with serving(*words, "--temperature", "0", "--repetition-penalty", "1", key=KEY) as served:
        yield served


@pytest.mark.parametrize("headers", [WEBUI_HEADERS, LITELLM_HEADERS], ids=["webui", "litellm"])
def test_both_models_are_listed(served: Served, headers: dict[str, str]) -> None:
    reply = served.ask("GET", "/v1/models", headers=headers)
    assert reply.status == 200
    assert reply.content["object"] == "list"
    assert [each["id"] for each in reply.content["data"]] == list(NAMES)


def text_of(served: Served, path: str, body: Json, headers: dict[str, str]) -> str:
    """Returns the text of an answer. Checks the fields that both clients read."""
    reply = served.ask("POST", path, body, headers)
    assert reply.status == 200, reply.body
    is_stream = body.get("stream", False)
    answers = reply.chunks if is_stream else [reply.content]
    kind = "text/event-stream" if is_stream else "application/json"
    assert reply.headers["content-type"].startswith(kind)
    assert all(each["model"] == body["model"] for each in answers)
    if not is_stream or "stream_options" in body:
        assert answers[-1]["usage"]["completion_tokens"] > 0
    choices = [choice for each in answers for choice in each["choices"]]
    assert choices[-1]["finish_reason"] in ("stop", "length")
    parts = [each.get("delta") or each.get("message") or each for each in choices]
    return "".join(part.get("content") or part.get("text") or "" for part in parts)


def expected(llm: LLM, body: Json) -> str:
    names = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "frequency_penalty")
    names += ("presence_penalty", "seed", "stop")
    given = {name: body[name] for name in names if name in body}
    if "max_completion_tokens" in body:
        given["max_tokens"] = body["max_completion_tokens"]
    if "logit_bias" in body:
        given["logit_bias"] = {int(token): bias for token, bias in body["logit_bias"].items()}
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 1024} | given)
    if "prompt" in body:
        return llm.generate(body["prompt"], params)[0].text
    messages = [each | {"content": _joined(each["content"])} for each in body["messages"]]
    is_continued = body.get("continue_final_message", False)
    return llm.chat(messages, params, continue_final_message=is_continued).text


def _joined(content: str | list[Json]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("request_name", WEBUI)
def test_open_webui_is_answered_as_each_model_alone(
    served: Served, alone: dict[str, LLM], request_name: str, name: str
) -> None:
    body = WEBUI[request_name] | {"model": name}
    assert text_of(served, CHAT, body, WEBUI_HEADERS) == expected(alone[name], body)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("request_name", LITELLM)
def test_litellm_is_answered_as_each_model_alone(
    served: Served, alone: dict[str, LLM], request_name: str, name: str
) -> None:
    path, body = LITELLM[request_name]
    body = body | {"model": name}
    assert text_of(served, path, body, LITELLM_HEADERS) == expected(alone[name], body)


def test_both_read_errors_from_openais_object(served: Served) -> None:
    body = {"model": "third", "messages": [USER]}
    for headers in (WEBUI_HEADERS, LITELLM_HEADERS):
        error = served.ask("POST", CHAT, body, headers).error
        assert (error["code"], error["type"]) == ("model_not_found", "invalid_request_error")
        assert "first, second" in error["message"]
