"""Bodies of OpenAI's requests are read completely, and errors name the wrong field."""

from pathlib import Path
from typing import Any

import pytest

from specqd.errors import FieldError
from specqd.openai.requests import Options, Prepared, chat_request, completion_request
from specqd.sampling import SamplingParams
from specqd.text.tokenizer import Tokenizer
from support.openai_client import allowed, chosen, function, schema_format
from support.refusals import refused

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_a_completion_defaults_to_openais_max_tokens_and_the_models_sampling() -> None:
    request = completion_request({"prompt": "ab"})
    assert request.prompts == ("ab",)
    assert request.params == SamplingParams(max_tokens=16)
    assert request.options == Options()


def test_a_chat_has_no_limit_by_default() -> None:
    request = chat_request({"messages": MESSAGES, "model": "any"})
    assert request.messages == tuple(MESSAGES)
    assert request.params == SamplingParams(max_tokens=None)
    assert request.options.model == "any"


def test_the_reasoning_effort_reaches_the_template() -> None:
    on, off = ({"enable_thinking": thinks, "thinking": thinks} for thinks in (True, False))
    request = chat_request({"messages": MESSAGES, "reasoning_effort": "low"})
    assert request.template_variables == {"reasoning_effort": "low", **on}
    request = chat_request({"messages": MESSAGES, "reasoning_effort": "none"})
    assert request.template_variables == off


def test_every_field_is_read() -> None:
    body: dict[str, Any] = {
        "prompt": "ab",
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "seed": 5,
        "n": 2,
        "stop": ["x", "yz"],
        "stop_token_ids": [3, 4],
        "ignore_eos": True,
        "logprobs": 2,
        "user": "someone",
        "stream": True,
    }
    request = completion_request(body | {"logit_bias": {"12": -1.5}})
    for name in set(body) - {"prompt", "user", "stream", "stop", "stop_token_ids"}:
        assert getattr(request.params, name) == body[name], name
    assert request.params.stop == ("x", "yz")
    assert request.params.stop_token_ids == (3, 4)
    assert request.params.logit_bias == {12: -1.5}
    assert request.options.is_streamed


def test_every_option_is_read() -> None:
    body = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    body |= {"user": "a", "store": False, "metadata": {"a": "b"}, "service_tier": "auto"}
    schema = {"type": "integer"}
    body |= schema_format(name="x", description="y", strict=True, schema=schema)
    options = Options(is_streamed=True, has_usage_chunk=True, has_token_ids=True, schema=schema)
    assert completion_request({"prompt": "ab", **body}).options == options
    assert chat_request({"messages": MESSAGES, **body}).options == options
    assert completion_request({"prompt": "ab", "echo": True}).has_echo
    variables = {"enable_thinking": False}
    request = chat_request({"messages": MESSAGES, "chat_template_kwargs": variables})
    assert request.template_variables == variables


@pytest.mark.parametrize(
    ("given", "schema", "pattern"),
    [
        ({"guided_json": {"type": "null"}}, {"type": "null"}, None),
        ({"guided_json": '{"type": "null"}'}, {"type": "null"}, None),
        ({"guided_regex": "a+"}, None, "a+"),
        ({"guided_choice": ["a.b", "c/d"]}, None, r"a\.b|c\/d"),
        ({"structured_outputs": {"json": {"type": "null"}}}, {"type": "null"}, None),
        ({"structured_outputs": {"json_object": True}}, {"type": "object"}, None),
        ({"structured_outputs": {"json_object": False, "regex": "b"}}, None, "b"),
        ({"structured_outputs": {"choice": ["x"]}}, None, "x"),
    ],
)
def test_vllms_restrictions_are_read(
    given: dict[str, Any], schema: dict[str, Any] | None, pattern: str | None
) -> None:
    options = completion_request({"prompt": "x", **given}).options
    assert (options.schema, options.pattern, options.has_rules) == (schema, pattern, True)


def test_the_error_for_a_vllm_grammar_names_the_alternatives() -> None:
    body = {"prompt": "x", "guided_grammar": "root ::= x"}
    said = refused(FieldError, completion_request, body)
    assert said.startswith("guided_grammar: ")
    assert "give a schema in response_format, or a regular expression in guided_regex" in said


def test_a_pattern_cannot_be_combined_with_tools() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [function("f")]}
    assert "tools" in refused(FieldError, chat_request, body | {"guided_regex": "a"})


def test_vllms_top_k_of_minus_one_means_all_tokens() -> None:
    assert completion_request({"prompt": "ab", "top_k": -1}).params.top_k == 0


def test_developer_messages_become_system_messages() -> None:
    messages = [{"role": "developer", "content": "Be brief.", "name": "a"}]
    [message] = chat_request({"messages": messages}).messages
    assert message == {"role": "system", "content": "Be brief.", "name": "a"}


def test_null_counts_as_absent() -> None:
    nothing = dict.fromkeys(("max_tokens", "seed", "stop", "logit_bias", "stream", "n", "logprobs"))
    assert completion_request({"prompt": "ab", **nothing}) == completion_request({"prompt": "ab"})


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        ([1, 2], ((1, 2),)),
        (["a", "b"], ("a", "b")),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [4]], ("a", (4,))),
    ],
)
def test_prompts_are_strings_ids_or_lists_of_either(prompt: object, prompts: object) -> None:
    assert completion_request({"prompt": prompt}).prompts == prompts


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0),
     ({"logprobs": True, "top_logprobs": 4}, 4)],
)  # fmt: skip
def test_chats_request_logprobs_with_two_fields(given: dict[str, object], expected: object) -> None:
    assert chat_request({"messages": MESSAGES, **given}).params.logprobs == expected


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat_request({"messages": [{"role": "user", "content": parts}]})
    assert request.messages[0]["content"] == "a\nb"


def test_tools_are_described_as_templates_expect() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [function("f", parameters=schema, description="F.", strict=True), function("g")]
    use = chat_request({"messages": MESSAGES, "tools": tools}).tool_use
    assert use is not None
    assert (use.allowed, use.must_call, use.is_parallel) == (None, False, True)
    described = function("f", description="F.", parameters=schema)
    assert use.tools[0].described() == described
    assert use.tools[1].described()["function"]["parameters"]["properties"] == {}
    assert [tool.is_strict for tool in use.tools] == [True, False]


@pytest.mark.parametrize(
    ("choice", "must_call", "is_parallel", "has_rules", "callable_names"),
    [
        ("auto", False, True, False, ["f", "g"]),
        ("required", True, True, True, ["f", "g"]),
        (chosen("g"), True, False, True, ["g"]),
        (allowed("auto", chosen("g")), False, True, True, ["g"]),
        (allowed("auto", chosen("g"), function("f")), False, True, False, ["f", "g"]),
        (allowed("required", chosen("f"), chosen("f")), True, True, True, ["f"]),
    ],
)
def test_tool_choice_decides_which_tools_may_and_must_be_called(
    choice: Any, must_call: bool, is_parallel: bool, has_rules: bool, callable_names: list[str]
) -> None:
    body = {"messages": MESSAGES, "tools": [function("f"), function("g")], "tool_choice": choice}
    use = chat_request(body).tool_use
    assert use is not None
    assert (use.must_call, use.is_parallel, use.has_rules) == (must_call, is_parallel, has_rules)
    assert [tool.name for tool in use.tools] == ["f", "g"]
    assert [tool.name for tool in use.callable] == callable_names
    assert chat_request(body | {"tool_choice": "none"}).tool_use is None


def test_arguments_of_earlier_calls_become_objects_if_they_are_json_objects() -> None:
    texts = ('{"a": 1}', '{"a": ', "[1]")
    calls = [{"id": "call_1"} | function("f", arguments=text) for text in texts]
    [message] = chat_request({"messages": [{"role": "assistant", "tool_calls": calls}]}).messages
    found = [call["function"]["arguments"] for call in message["tool_calls"]]
    assert found == [{"a": 1}, '{"a": ', "[1]"]
    assert calls[0]["function"]["arguments"] == '{"a": 1}'


def test_results_of_calls_get_the_name_of_their_function() -> None:
    call = {"id": "call_1"} | function("f", arguments="{}")
    result = {"role": "tool", "tool_call_id": "call_1", "content": "1"}
    other = {"role": "tool", "tool_call_id": "call_2", "content": "1"}
    messages = [{"role": "assistant", "tool_calls": [call]}, result, other]
    request = chat_request({"messages": messages})
    assert list(request.messages[1:]) == [result | {"name": "f"}, other]


def test_an_echo_with_logprobs_scores_the_prompt_and_may_have_no_new_tokens() -> None:
    request = completion_request({"prompt": "ab", "echo": True, "logprobs": 3, "max_tokens": 0})
    assert (request.params.prompt_logprobs, request.params.max_tokens) == (3, 1)
    assert request.is_only_prompt
    assert request.is_prompt_scored
    request = completion_request({"prompt": "ab", "echo": True})
    assert not request.is_prompt_scored
    assert request.params.max_tokens == 16


def test_one_answer_has_a_limited_number_of_prompt_logprobs(small_model: Path) -> None:
    tokenizer = Tokenizer.open(small_model)
    body = {"prompt": [[1] * 1000] * 13, "echo": True, "logprobs": 19}
    assert Prepared.of(completion_request(body), tokenizer).prompts == body["prompt"]
    with pytest.raises(FieldError, match="echo: requests 520000 log"):
        Prepared.of(completion_request(body | {"n": 2}), tokenizer)
