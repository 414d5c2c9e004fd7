"""Bodies of OpenAI requests: what they become, and what is refused by name."""

from typing import Any

import pytest

from specqd.errors import FieldError, RequestError
from specqd.openai_requests import Options, chat_request, completion_request
from specqd.sampling import SamplingParams

MESSAGES = [{"role": "user", "content": "Hi"}]


def schema_format(**named: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def part(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [members]}]}


def test_a_completion_has_openais_defaults_and_the_models_sampling() -> None:
    request = completion_request({"prompt": "ab"})
    assert request.prompts == ("ab",)
    assert request.params == SamplingParams(max_tokens=16)
    assert request.options == Options()


def test_a_chat_runs_to_the_contexts_end() -> None:
    request = chat_request({"messages": MESSAGES, "model": "any"})
    assert request.messages == tuple(MESSAGES)
    assert request.params == SamplingParams(max_tokens=None)
    assert request.options.model == "any"


def test_every_field_arrives() -> None:
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


def test_options_arrive() -> None:
    body = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    body |= {"user": "a", "store": False, "metadata": {"a": "b"}, "service_tier": "auto"}
    schema = {"type": "integer"}
    body |= schema_format(name="x", description="y", strict=True, schema=schema)
    options = Options(None, True, True, True, schema)
    assert completion_request({"prompt": "ab", **body}).options == options
    assert chat_request({"messages": MESSAGES, **body}).options == options
    assert completion_request({"prompt": "ab", "echo": True}).has_echo
    variables = {"enable_thinking": False}
    request = chat_request({"messages": MESSAGES, "chat_template_kwargs": variables})
    assert request.template_variables == variables


def test_vllms_way_to_say_all_tokens_is_known() -> None:
    assert completion_request({"prompt": "ab", "top_k": -1}).params.top_k == 0


def test_developers_speak_as_the_system() -> None:
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
def test_prompts_are_texts_ids_or_lists_of_either(prompt: object, prompts: object) -> None:
    assert completion_request({"prompt": prompt}).prompts == prompts


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0),
     ({"logprobs": True, "top_logprobs": 4}, 4)],
)  # fmt: skip
def test_chats_ask_for_logprobs_in_two_fields(given: dict[str, object], expected: object) -> None:
    assert chat_request({"messages": MESSAGES, **given}).params.logprobs == expected


def test_parts_of_text_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat_request({"messages": [{"role": "user", "content": parts}]})
    assert request.messages[0]["content"] == "a\nb"


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("temprature", {"temprature": 1}),
        ("best_of", {"best_of": 2}),
        ("suffix", {"suffix": "x"}),
        ("echo", {"echo": True, "logprobs": 0}),
        ("prompt", {"prompt": ["a"] * 257}),
        ("n", {"n": 129}),
        ("temperature", {"temperature": 10**400}),
        ("stop", {"stop": ["a"] * 17}),
        ("stop", {"stop": "a" * 1025}),
        ("stop_token_ids", {"stop_token_ids": [1] * 17}),
        ("logit_bias", {"logit_bias": {str(i): 1 for i in range(1025)}}),
        ("stream_options", {"stream_options": {}}),
        ("stream_options.x", {"stream": True, "stream_options": {"x": 1}}),
        ("response_format", {"response_format": "json_object"}),
        ("response_format.type", {"response_format": {}}),
        ("response_format.type", {"response_format": {"type": "xml"}}),
        ("response_format.x", {"response_format": {"type": "text", "x": 1}}),
        ("response_format.json_schema", {"response_format": {"type": "json_schema"}}),
        ("response_format.json_schema.schema", schema_format(name="x")),
        ("response_format.json_schema.schema", schema_format(name="x", schema=[])),
        ("response_format.json_schema.name", schema_format(schema={})),
        ("ignore_eos", {"ignore_eos": True, "response_format": {"type": "json_object"}}),
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": {"a": 1}}),
        ("prompt[1]", {"prompt": ["a", 3]}),
        ("prompt", {"prompt": [1, True]}),
        ("max_tokens", {"max_tokens": "7"}),
        ("max_tokens", {"max_tokens": 0}),
        ("temperature", {"temperature": float("nan")}),
        ("temperature", {"temperature": True}),
        ("n", {"n": 0}),
        ("n", {"n": 1.5}),
        ("logprobs", {"logprobs": 21}),
        ("logprobs", {"logprobs": True}),
        ("stop", {"stop": {"a": "b"}}),
        ("stop", {"stop": [3]}),
        ("stop_token_ids", {"stop_token_ids": "3"}),
        ("stop_token_ids", {"stop_token_ids": [-1]}),
        ("logit_bias", {"logit_bias": [1]}),
        ("logit_bias", {"logit_bias": {"x": 1}}),
        ("logit_bias", {"logit_bias": {"\u0663": 1}}),
        ("logit_bias", {"logit_bias": {"3": "much"}}),
        ("ignore_eos", {"ignore_eos": 1}),
        ("stream", {"stream": "yes"}),
        ("model", {"model": 3}),
        ("user", {"user": 3}),
    ],
)
def test_a_bad_completion_is_refused_by_its_field(field: str, given: dict[str, object]) -> None:
    with pytest.raises(FieldError) as refused:
        completion_request({"prompt": "ab", **given})
    assert str(refused.value).startswith(f"{field}: ")
    assert refused.value.field == field
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("tools", {"tools": []}),
        ("messages", {"messages": []}),
        ("messages", {"messages": "Hi"}),
        ("messages[0]", {"messages": [{"content": "Hi"}]}),
        ("messages[0]", {"messages": ["Hi"]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": 3}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": [{"type": "x"}]}]}),
        ("messages[0].content[0].x", part(type="text", text="a", x=1)),
        ("chat_template_kwargs", {"chat_template_kwargs": [1]}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"self": 1}}),
        ("max_completion_tokens", {"max_completion_tokens": 0}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("top_logprobs", {"top_logprobs": 21, "logprobs": True}),
        ("logprobs", {"logprobs": 2}),
        ("max_tokens", {"max_tokens": 2, "max_completion_tokens": 2}),
    ],
)
def test_a_bad_chat_is_refused_by_its_field(field: str, given: dict[str, object]) -> None:
    with pytest.raises(FieldError) as refused:
        chat_request({"messages": MESSAGES, **given})
    assert str(refused.value).startswith(f"{field}: ")
    assert refused.value.field == field


@pytest.mark.parametrize("body", [None, 3, "text", [], {"\x1b[31m": 1}])
def test_a_body_is_an_object_of_known_fields(body: object) -> None:
    for parse in (completion_request, chat_request):
        with pytest.raises(RequestError) as refused:
            parse(body)
        assert "\x1b" not in str(refused.value)
