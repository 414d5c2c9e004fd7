"""The plugin of the `llm` command answers as the Python API does."""

from pathlib import Path

import pytest

pytest.importorskip("llm", reason="needs the extra llm")

import llm

from specqd import LLM, SamplingParams
from specqd.hub import SHIPPED, SHORT_NAMES
from specqd.llm_plugin import SpecqdModel, _final, register_models
from support.fixtures import an_llm

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


def test_thoughts_are_no_part_of_the_answer() -> None:
    thoughts = ["<|channel|>analysis", "<|message|>h", "m<|end|>", "<|start|>assistant"]
    pieces = [*thoughts, "<|channel|>final<|message|>", "y", "es"]
    assert list(_final(pieces)) == [*[""] * 5, "y", "es", ""]
    assert "".join(_final(["a plain", " answer"])) == "a plain answer"


def test_short_names_and_the_shipped_model_are_listed() -> None:
    names = []
    register_models(lambda model: names.append(model.model_id))
    assert {f"specqd/{name}" for name in (SHIPPED, *SHORT_NAMES)} <= set(names)
    assert len(names) == len(set(names))
