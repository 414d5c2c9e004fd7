"""The sampling of requests to a server that name none: the server's options, else the model's own,
else that of chats; with --strict-openai, OpenAI's."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from specqd import LLM, SamplingParams
from support.command_line import Refuse
from support.fixtures import a_server
from support.served import Served

MESSAGES = [{"role": "user", "content": "ab"}]
SEEDED = {"max_tokens": 40, "seed": 5, "return_token_ids": True}
GIVEN = SamplingParams(
    max_tokens=40, temperature=0.0, top_p=0.9, top_k=7, min_p=0.01, repetition_penalty=1.3
)
WORDS = ("--temp", "0", "--top-p", "0.9", "--top-k", "7", "--min-p", "0.01")
plain = a_server("chat_model")
strict = a_server("chat_model", "--strict-openai")
warm = a_server("chat_model", "--temperature", "1.5", "--top-p", "0.8")
greedy = a_server("chat_model", *WORDS, "--repetition-penalty", "1.3")
recommended = a_server("recommending")


@pytest.fixture(scope="session")
def recommending(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, with the sampling of its authors."""
    directory = Path(copytree(chat_model, tmp_path_factory.mktemp("models") / "recommending"))
    stated = {"do_sample": True, "temperature": 0.4, "top_k": 9}
    (directory / "generation_config.json").write_text(json.dumps(stated))
    return directory


def chat_tokens(served: Served, **fields: Any) -> list[int]:
    body = {"messages": MESSAGES, **SEEDED, **fields}
    [choice] = served.ask("POST", "/v1/chat/completions", body).content["choices"]
    return list(choice["token_ids"])


def expected(llm: LLM, **params: Any) -> list[int]:
    return llm.chat(MESSAGES, SamplingParams(max_tokens=40, seed=5, **params)).tokens


def shown(served: Served) -> dict[str, float]:
    """The sampling that the page shows."""
    return dict(served.ask("GET", "/page/facts").content["sampling"])


@pytest.mark.parametrize(
    ("server", "params"),
    [
        ("plain", {"temperature": 0.7, "repetition_penalty": 1.05}),
        ("strict", {"temperature": 1.0}),
        ("warm", {"temperature": 1.5, "top_p": 0.8}),
        ("recommended", {"temperature": 0.4, "top_k": 9}),
        ("greedy", {"temperature": 0.0, "repetition_penalty": 1.3}),
    ],
)
def test_a_request_that_names_no_sampling_gets_the_servers(
    request: pytest.FixtureRequest, llm: LLM, server: str, params: dict[str, Any]
) -> None:
    served = request.getfixturevalue(server)
    assert chat_tokens(served) == expected(llm, **params)
    assert shown(served).items() >= params.items()


def test_all_apis_have_the_same_defaults(greedy: Served, llm: LLM) -> None:
    text = llm.chat(MESSAGES, GIVEN).text
    most = {"max_tokens": 40}
    chat = greedy.ask("POST", "/v1/chat/completions", {"messages": MESSAGES, **most}).content
    assert chat["choices"][0]["message"]["content"] == text
    message = greedy.ask("POST", "/v1/messages", {"messages": MESSAGES, **most, "model": "small"})
    assert "".join(block["text"] for block in message.content["content"]) == text
    body = {"input": "ab", "max_output_tokens": 40}
    response = greedy.ask("POST", "/v1/responses", body).content
    assert response["output"][-1]["content"][0]["text"] == text
    assert (response["temperature"], response["top_p"]) == (0, 0.9)
    completed = greedy.ask("POST", "/v1/completions", {"prompt": "ab", **most}).content
    assert completed["choices"][0]["text"] == llm.generate("ab", GIVEN)[0].text


def test_a_requests_own_sampling_wins(plain: Served, warm: Served, llm: LLM) -> None:
    greedily = expected(llm, temperature=0.0)
    assert chat_tokens(plain, temperature=0) == greedily  # also without the penalty of chats
    assert chat_tokens(warm, temperature=0) == greedily
    asked = {"temperature": 0.9, "top_p": 1.0, "repetition_penalty": 1.2}
    assert chat_tokens(warm, **asked) == expected(llm, **asked)


def test_wrong_sampling_is_refused_before_the_model_is_loaded(refuse: Refuse) -> None:
    pytest.importorskip("uvicorn", reason="needs specqd[serve]")
    assert refuse("serve", "./absent", "--top-p", "2").startswith("--top-p: 2.0 is not")
