"""LiteLLM and simonw/llm work with the server unchanged. Each test needs its client installed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specqd import LLM, SamplingParams
from support.openai_client import closed, function
from support.scripted_models import CALLING, HERMES, make_scripted_model
from support.served import Served, serving

pytest.importorskip("llguidance", reason="needs specqd[serve]")

TURN = [{"role": "user", "content": "Say."}]
SAMPLING: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_tokens": 20}
WEATHER = function("weather", parameters=closed(city={"type": "string"}))
STOP = function("stop", parameters=closed(is_now={"type": "boolean"}))
CITY = {"city": "Zürich <3"}


@pytest.fixture(scope="module")
def served(chat_model: Path) -> Iterator[Served]:
    with serving(str(chat_model)) as served:
        yield served


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Served]:
    made = make_scripted_model(tmp_path_factory.mktemp("models") / "small", CALLING, HERMES, seed)
    with serving(str(made)) as served:
        yield served


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise it downloads prices
    litellm = pytest.importorskip("litellm", reason="needs LiteLLM")
    litellm.telemetry = False
    return litellm


def ask(litellm: Any, served: Served, **fields: Any) -> Any:
    """Sends one chat as users of LiteLLM do."""
    where = {"model": "openai/small", "api_base": f"{served.url}/v1", "api_key": "unused"}
    return litellm.completion(**where, **({"messages": TURN} | fields), num_retries=0)


def test_answers_to_litellm_equal_those_of_the_python_api(
    litellm: Any, served: Served, llm: LLM
) -> None:
    expected = llm.chat(TURN, SamplingParams(**SAMPLING))
    whole = ask(litellm, served, **SAMPLING)
    assert whole.choices[0].message.content == expected.text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.prompt_tokens == len(expected.prompt_tokens)
    assert whole.usage.completion_tokens == len(expected.tokens)
    chunks = ask(litellm, served, **SAMPLING, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected.text
    where = {"model": "text-completion-openai/small", "api_base": f"{served.url}/v1"}
    text = litellm.text_completion(**where, api_key="unused", prompt="ab", **SAMPLING)
    assert text.choices[0].text == llm.generate("ab", SamplingParams(**SAMPLING))[0].text


def test_litellm_reads_tool_calls_and_errors(litellm: Any, scripted: Served) -> None:
    pytest.importorskip("mcp", reason="LiteLLM needs it for tools")
    script = {"extra_body": {"chat_template_kwargs": {"script": "B"}}, "temperature": 0}
    answer = ask(litellm, scripted, tools=[WEATHER, STOP], reasoning_effort="low", **script)
    [call] = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", CITY)
    assert answer.choices[0].finish_reason == "tool_calls"
    with pytest.raises(litellm.BadRequestError, match="suffix"):
        ask(litellm, scripted, extra_body={"suffix": "x"})


# --- simonw/llm ---------------------------------------------------------------------------------


def run_llm(served: Served, home: Path, *arguments: str) -> str:
    """Returns the output of `llm`, which knows the server from its own file of models."""
    pytest.importorskip("llm", reason="needs llm")
    model = f"- model_id: ours\n  model_name: small\n  api_base: {served.url}/v1\n"
    (home / "extra-openai-models.yaml").write_text(model + "  api_key_name: unused\n")
    (home / "keys.json").write_text('{"unused": "unused"}')
    ended = subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        env=os.environ | {"LLM_USER_PATH": str(home)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.decode()  # it adds line ends of its own


@pytest.mark.parametrize("extra", [[], ["--no-stream"]])
def test_answers_to_llm_equal_those_of_the_python_api(
    served: Served, llm: LLM, tmp_path: Path, extra: list[str]
) -> None:
    options = [word for name, value in SAMPLING.items() for word in ("-o", name, str(value))]
    said = run_llm(served, tmp_path, "prompt", "-m", "ours", "Say.", *options, *extra)
    assert said == llm.chat(TURN, SamplingParams(**SAMPLING)).text + "\n"
