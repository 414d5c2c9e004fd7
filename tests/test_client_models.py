"""Clients that choose between two models on one server. Each test needs its client installed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specqd import LLM, SamplingParams
from support.openai_client import client_of
from support.random_models import Shape, make_model
from support.served import Served, add_template, serving

pytest.importorskip("llguidance", reason="needs specqd[serve]")

NAMES = ("first", "second")
SAMPLING: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_tokens": 20}
TURN: list[Any] = [{"role": "user", "content": "Say."}]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory, seed: int) -> dict[str, Path]:
    folder, shape = tmp_path_factory.mktemp("models"), Shape(is_peaked=True)
    return {
        name: add_template(make_model(folder / name, shape, seed + i))
        for i, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module")
def texts(directories: dict[str, Path]) -> dict[str, str]:
    """The answer of each model alone."""
    params, found = SamplingParams(**SAMPLING), {}
    for name, path in directories.items():
        with LLM(path, "none", threads=1) as llm:
            found[name] = llm.chat(TURN, params).text
    assert found["first"] != found["second"]
    return found


@pytest.fixture(scope="module")
def served(directories: dict[str, Path]) -> Iterator[Served]:
    with serving(*map(str, directories.values())) as served:
        yield served


def test_openai(served: Served, texts: dict[str, str]) -> None:
    client = client_of(served)
    assert [model.id for model in client.models.list()] == list(NAMES)
    for name, text in texts.items():
        answer = client.chat.completions.create(model=name, messages=TURN, **SAMPLING)
        assert (answer.model, answer.choices[0].message.content) == (name, text)
        chunks = client.chat.completions.create(model=name, messages=TURN, stream=True, **SAMPLING)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_anthropic(served: Served, texts: dict[str, str]) -> None:
    anthropic = pytest.importorskip("anthropic", reason="needs Anthropic's client")
    client = anthropic.Anthropic(base_url=served.url, api_key="unused", max_retries=0)
    extra = {name: SAMPLING[name] for name in ("seed", "temperature")}
    fields = {"messages": TURN, "max_tokens": SAMPLING["max_tokens"], "extra_body": extra}
    for name, text in texts.items():
        answer = client.messages.create(model=name, **fields)
        assert (answer.model, answer.content[0].text) == (name, text)
        with client.messages.stream(model=name, **fields) as stream:
            assert stream.get_final_text() == text
    with pytest.raises(anthropic.NotFoundError, match="this server has first, second"):
        client.messages.create(model="third", **fields)


def test_litellm(served: Served, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise it downloads prices
    litellm = pytest.importorskip("litellm", reason="needs LiteLLM")
    litellm.telemetry = False
    where = {"api_base": f"{served.url}/v1", "api_key": "unused", "num_retries": 0}
    for name, text in texts.items():
        asked = {"model": f"openai/{name}", "messages": TURN, **SAMPLING, **where}
        assert litellm.completion(**asked).choices[0].message.content == text
        chunks = litellm.completion(**asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_langchain(served: Served, texts: dict[str, str]) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="needs langchain-openai")
    where = {"base_url": f"{served.url}/v1", "api_key": "unused"}
    for name, text in texts.items():
        chat = langchain.ChatOpenAI(model=name, **where, **SAMPLING)
        assert chat.invoke("Say.").content == text
        assert "".join(chunk.content for chunk in chat.stream("Say.")) == text


def test_llm(served: Served, texts: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("llm", reason="needs llm")
    lines = (
        f"- model_id: {name}\n  model_name: {name}\n  api_base: {served.url}/v1\n"
        "  api_key_name: unused\n"
        for name in NAMES
    )
    (tmp_path / "extra-openai-models.yaml").write_text("".join(lines))
    (tmp_path / "keys.json").write_text('{"unused": "unused"}')
    options = [word for name, value in SAMPLING.items() for word in ("-o", name, str(value))]
    for name, text in texts.items():
        ended = subprocess.run(
            [sys.executable, "-m", "llm", "prompt", "-m", name, "Say.", *options],
            env=os.environ | {"LLM_USER_PATH": str(tmp_path)},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.decode() == text + "\n"
