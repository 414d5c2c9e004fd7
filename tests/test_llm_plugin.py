"""The plugin of the `llm` command answers as the Python API does."""

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import sleep

import click
import pytest
from click.testing import CliRunner

pytest.importorskip("llm", reason="needs the extra llm")

import llm

from specqd import LLM, SamplingParams
from specqd.hub import SHIPPED, SHORT_NAMES
from specqd.llm_plugin import (
    AsyncSpecqdModel,
    SpecqdModel,
    _loaded,
    register_commands,
    register_models,
)
from support.fixtures import an_llm
from support.scripted_models import CALLING, make_scripted_model

# The last character of the last message selects the script.
SCRIPTED = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"

PARAMS = SamplingParams(max_tokens=12, temperature=0.8, seed=3, repetition_penalty=1.1)
OPTIONS = {"max_tokens": 12, "temperature": 0.8, "seed": 3, "repetition_penalty": 1.1}

chatting = an_llm("chat_model")
completing = an_llm("small_model")


@pytest.mark.parametrize("draft", ["none", "fp4 ngram"])
def test_a_conversation_has_the_answers_of_the_api(
    chat_model: Path, chatting: LLM, draft: str
) -> None:
    conversation = SpecqdModel(str(chat_model)).conversation()
    messages = [{"role": "system", "content": "s"}]
    for text in ("ab", "cd"):
        system = "s" if text == "ab" else None
        response = conversation.prompt(text, system=system, **OPTIONS, draft=draft)
        messages.append({"role": "user", "content": text})
        alone = chatting.chat(messages, PARAMS)
        assert response.text() == alone.completions[0].text
        assert response.input_tokens == len(alone.prompt_tokens)
        assert response.output_tokens == len(alone.completions[0].tokens)
        messages.append({"role": "assistant", "content": response.text()})


def test_a_model_without_a_template_continues_the_text(small_model: Path, completing: LLM) -> None:
    response = SpecqdModel(str(small_model)).prompt("ab", **OPTIONS)
    assert response.text() == completing.generate("ab", PARAMS)[0].completions[0].text


def test_problems_are_told_in_a_line_of_our_own(small_model: Path, tmp_path: Path) -> None:
    for name, options in ((str(tmp_path), {}), (str(small_model), {"draft": "fp3"})):
        with pytest.raises(llm.ModelError) as raised:
            SpecqdModel(name).prompt("ab", **options).text()
        assert len(str(raised.value).splitlines()) == 1
    with pytest.raises(llm.ModelError, match="top_p"):
        SpecqdModel(str(small_model)).prompt("ab", top_p=7).text()


def test_thoughts_are_no_part_of_the_answer(tmp_path: Path, seed: int) -> None:
    script = "<|channel|>analysis<|message|>Hm.<|end|>"
    marks = ("<|channel|>", "<|message|>", "<|end|>")
    model = make_scripted_model(tmp_path / "small", {"A": script}, SCRIPTED, seed, marks)
    response = SpecqdModel(str(model)).prompt("A", temperature=0)
    events = [(event.type, event.chunk) for event in response.stream_events() if event.chunk]
    assert events == [("reasoning", "Hm.")]
    assert response.text() == ""


def test_tools_are_called_and_their_results_answered(tmp_path: Path, seed: int) -> None:
    scripts = {"B": CALLING["B"], ">": "It is fine."}  # a result ends with its tag
    model = SpecqdModel(str(make_scripted_model(tmp_path / "small", scripts, SCRIPTED, seed)))
    asked = []

    def weather(city: str) -> str:
        """Of a city."""
        asked.append(city)
        return "2"

    chain = model.chain("B", tools=[weather], options={"temperature": 0})
    assert "".join(chain).split() == ["Let", "me", "look.", "It", "is", "fine."]
    assert asked == ["Zürich <3"]


def test_asyncio_and_schemas_have_the_answers_of_the_api(chat_model: Path, chatting: LLM) -> None:
    pytest.importorskip("llguidance", reason="needs specqd[structured]")
    schema = {"enum": ["left", "right"]}
    messages = [{"role": "user", "content": "ab"}]
    expected = chatting.chat(messages, replace(PARAMS, schema=schema)).text
    model, options = AsyncSpecqdModel(str(chat_model)), {**OPTIONS, "draft": "fp4"}

    async def both() -> list[str]:
        held = model.prompt("ab", schema=schema, **options)
        free = model.prompt("ab", **options)
        return list(await asyncio.gather(held.text(), free.text()))

    assert asyncio.run(both()) == [expected, chatting.chat(messages, PARAMS).text]
    assert SpecqdModel(str(chat_model)).prompt("ab", schema=schema, **OPTIONS).text() == expected


def test_a_local_path_gets_a_name(
    chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    group = click.Group()
    register_commands(group)
    program = CliRunner()
    added = program.invoke(group, ["specqd", "add", str(chat_model), "--name", "mine"])
    assert added.output == f"llm -m specqd/mine runs {chat_model.resolve()}\n"
    names = []
    register_models(lambda model, other: names.append(model.model_id))
    assert "specqd/mine" in names
    assert SpecqdModel("mine").prompt("ab", **OPTIONS).text()
    dotted = shutil.copytree(chat_model, tmp_path / "Mine-2.5-1B")
    added = program.invoke(group, ["specqd", "add", str(dotted)])
    assert added.output.startswith("llm -m specqd/Mine-2.5-1B runs ")
    refused = program.invoke(group, ["specqd", "add", str(tmp_path)])
    assert refused.exit_code == 1
    assert "config.json" in refused.output
    (tmp_path / "specqd-models.json").write_text("{")
    with pytest.raises(llm.ModelError, match="cannot be read"):
        register_models(lambda model, other: None)


def test_short_names_and_the_shipped_model_are_listed() -> None:
    names = []
    register_models(lambda model, other: names.append(model.model_id))
    assert {f"specqd/{name}" for name in (SHIPPED, *SHORT_NAMES)} <= set(names)
    assert len(names) == len(set(names))


def test_threads_that_ask_at_once_load_a_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def load(*words: object) -> str:
        made.append(words)
        sleep(0.05)
        return "loaded"

    monkeypatch.setattr("specqd.llm_plugin.LLM", load)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: _loaded("some-model", "none"), range(4))) == {"loaded"}
    assert len(made) == 1
