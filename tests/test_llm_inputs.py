"""The Python API with arguments as vLLM has them, and with arguments of wrong types."""

import gc
import pickle
import re
import weakref
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specqd
from specqd import LLM, SamplingParams
from specqd.errors import FieldError, RequestError, SpecqdError
from specqd.llm.peers import OF_GENERATE, OF_LLM
from support.fixtures import an_llm
from support.refusals import refused

MESSAGES = [{"role": "user", "content": "Hi"}]
SHORT = SamplingParams(max_tokens=4, temperature=0, seed=1)

llm = an_llm("chat_model", "fp4:k=3")


def test_arguments_may_have_vllms_names(llm: LLM, chat_model: Path) -> None:
    expected = llm.generate("ab", SHORT)[0].completions
    assert llm.generate(prompts=["ab"], sampling_params=SHORT)[0].completions == expected
    with LLM(model=chat_model, threads=2) as other:
        assert other.generate("ab", sampling_params=SHORT)[0].completions == expected
    answer = llm.chat(messages=MESSAGES, sampling_params=SHORT, chat_template_kwargs={"x": 1})
    assert answer.completions == llm.chat(MESSAGES, SHORT, x=1).completions


def test_a_message_needs_a_known_role(llm: LLM) -> None:
    for message in ({"role": "banana", "content": "Hi"}, {"content": "Hi"}, {"role": ["user"]}):
        said = refused(FieldError, llm.chat, [*MESSAGES, message], SHORT)
        assert said.startswith("messages[1].role: is ")
        assert said.endswith("; use one of system, developer, user, assistant, tool")


def test_a_developers_message_is_a_system_message(llm: LLM) -> None:
    system, developer = (
        llm.chat([{"role": role, "content": "Be brief."}, *MESSAGES], SHORT).prompt_tokens
        for role in ("system", "developer")
    )
    assert system == developer


def test_results_may_be_read_by_vllms_names(llm: LLM) -> None:
    [result] = llm.generate(["ab"], replace(SHORT, n=2))
    assert (result.prompt, result.prompt_token_ids) == ("ab", llm.encode("ab"))
    assert result.outputs == result.completions
    assert [each.token_ids for each in result.outputs] == [c.tokens for c in result.completions]
    assert pickle.loads(pickle.dumps(result)).prompt is None


@pytest.mark.parametrize("name", OF_LLM)
def test_an_argument_that_a_model_lacks_is_answered_with_ours(name: str) -> None:
    made: Any = LLM
    assert refused(RequestError, made, "no such", **{name: 1}) == f"{name}: {OF_LLM[name]}"


@pytest.mark.parametrize("name", OF_GENERATE)
def test_an_argument_that_generate_lacks_is_answered_with_ours(llm: LLM, name: str) -> None:
    generate: Any = llm.generate
    assert refused(RequestError, generate, "ab", **{name: 1}) == f"{name}: {OF_GENERATE[name]}"


@pytest.mark.parametrize("name", ["max_tokens", "temperature", "stop", "seed"])
def test_a_sampling_parameter_is_no_variable_of_a_template(llm: LLM, name: str) -> None:
    for call in (llm.chat, llm.stream_chat):
        line = refused(SpecqdError, call, MESSAGES, **{name: 1})
        assert f"SamplingParams({name}=...)" in line


@pytest.mark.parametrize("prompts", [5, None, b"ab", {"a": 1}, [None], ["a", 1], [1.5], [[True]]])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    assert refused(SpecqdError, llm.generate, prompts).startswith("prompts")
    if not isinstance(prompts, list):
        assert refused(SpecqdError, llm.stream, prompts).startswith("prompt: ")


@pytest.mark.parametrize("params", [5, {"max_tokens": 3}, "max_tokens=3", [SHORT]])
def test_what_are_no_sampling_params_is_refused(llm: LLM, params: Any) -> None:
    for call, given in ((llm.generate, "a"), (llm.stream, "a"), (llm.chat, MESSAGES)):
        assert refused(SpecqdError, call, given, params).startswith("sampling_params: ")


@pytest.mark.parametrize("messages", [5, None, "Hi", {"role": "user"}, [5], ["Hi"], []])
def test_what_are_no_messages_is_refused(llm: LLM, messages: Any) -> None:
    assert refused(SpecqdError, llm.chat, messages).startswith("messages")


@pytest.mark.parametrize(
    "given",
    [
        {"model": 5},
        {"model": b"x"},
        {"draft": 5},
        {"draft": ["fp4", None]},
        {"threads": "two"},
        {"threads": 1.5},
        {"isa": 5},
        {"context": "long"},
        {"cache_positions": "many"},
        {"cache_positions": -5},
        {"precision": 5},
        {"precision": ["fp4"]},
    ],
)
def test_wrong_arguments_of_a_model_are_refused(chat_model: Path, given: dict[str, Any]) -> None:
    [name] = given
    line = refused(SpecqdError, LLM, **({"model": chat_model} | given))
    assert name in line.replace("-", "_")


@pytest.mark.parametrize(
    "given",
    [
        {"stop": 5},
        {"stop_token_ids": 5},
        {"stop_token_ids": "ab"},
        {"logit_bias": [1]},
        {"ignore_eos": "no"},
        {"skip_special_tokens": 1},
        {"n": None},
    ],
)
def test_wrong_sampling_params_are_refused(given: dict[str, Any]) -> None:
    [name] = given
    assert refused(SpecqdError, SamplingParams, **given).startswith(f"{name}: ")


@pytest.mark.parametrize("ids", ["ab", 5, None, [1.5], ["a"], {1: 2}])
def test_what_are_no_token_ids_is_refused(llm: LLM, ids: Any) -> None:
    assert refused(SpecqdError, llm.decode, ids).startswith("token_ids: ")
    assert refused(SpecqdError, llm.logprobs, ids).startswith("token_ids: ")
    refused(SpecqdError, llm.decode, [-1])
    refused(SpecqdError, llm.decode, [1 << 40])
    refused(SpecqdError, llm.with_draft, 5)


def test_decoded_ids_are_the_text(llm: LLM, rng: np.random.Generator) -> None:
    text = "".join(map(chr, rng.integers(97, 123, 20)))
    assert llm.decode(llm.encode(text)) == text
    assert llm.decode(np.asarray(llm.encode(text))) == text


def test_a_streamed_chat_is_the_chat_in_pieces(llm: LLM, seed: int) -> None:
    params = SamplingParams(max_tokens=30, temperature=0.8, seed=seed)
    stream = llm.stream_chat(MESSAGES, params)
    text = "".join(stream)
    expected = llm.chat(MESSAGES, params)
    assert text == expected.text
    assert stream.result is not None
    assert stream.result.prompt_tokens == expected.prompt_tokens


def test_a_closed_model_is_freed_and_says_so(chat_model: Path) -> None:
    with LLM(chat_model, threads=1) as llm:
        model = weakref.ref(llm.model)
        stream = llm.stream("ab", SHORT)
    gc.collect()
    assert model() is None
    assert repr(llm).endswith("closed)")
    for call in (lambda: llm.generate("ab"), lambda: list(stream), lambda: llm.logprobs([1])):
        assert "is closed; make another one" in refused(RequestError, call)
    llm.close()  # once more


def test_closing_one_leaves_the_other_that_shares_the_model(llm: LLM) -> None:
    other = llm.with_draft("none")
    expected = other.generate("ab", SHORT)[0].completions
    other.close()
    assert llm.generate("ab", SHORT)[0].completions == expected
    assert llm._drafts.weight_bytes([]) == 0, "the model counts as one that must be loaded again"


def test_reprs_are_short(llm: LLM) -> None:
    result = llm.generate("ab", SamplingParams(max_tokens=200, n=2, ignore_eos=True))[0]
    assert repr(llm) == f"LLM({str(llm.directory)!r}, bf16 > fp4)"
    assert all(len(repr(each)) < 160 for each in (result, result.completions[0], result.stats))
    assert "200 tokens, 'length'" in repr(result)
    assert repr(SamplingParams(max_tokens=9, logit_bias={1: 2.0})) == (
        "SamplingParams(max_tokens=9, logit_bias={1: 2.0})"
    )
    assert repr(SamplingParams()) == "SamplingParams()"


def test_a_notebook_shows_the_text_by_level(llm: LLM) -> None:
    bias = {ord(c): 8.0 for c in "<&\"'b"}  # what HTML would take as its own
    params = SamplingParams(max_tokens=60, temperature=0.8, logit_bias=bias, ignore_eos=True)
    result = llm.generate("ab", params)[0]
    shown, key = result._repr_html_().split("<p>")
    text = unescape(re.sub(r"<[^>]*>", "", shown))
    assert text == "".join(c for c in result.text if ord(c) >= 32 or c in "\n\t")
    assert "<b" not in shown
    depths = [origin.depth for origin in result.completions[0].origins]
    assert f"bf16: {depths.count(0)}" in key
    assert f"fp4: {depths.count(1)}" in key
    kept = pickle.loads(pickle.dumps(result))
    assert kept == result
    assert unescape(re.sub(r"<[^>]*>", "", kept._repr_html_())) == text


def test_the_package_lists_its_names() -> None:
    assert set(dir(specqd)) == set(specqd.__all__)
    assert all(getattr(specqd, name) is not None for name in specqd.__all__)


def test_a_stream_that_is_dropped_after_next_is_cancelled_at_once(llm: LLM) -> None:
    gc.disable()
    try:
        assert next(llm.stream("ab", SamplingParams(max_tokens=200, ignore_eos=True)))
        assert llm.engine.is_idle
    finally:
        gc.enable()
