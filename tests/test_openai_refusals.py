"""Errors for bodies of OpenAI's requests name the wrong field."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from specqd.errors import FieldError, RequestError
from specqd.openai.requests import chat_request, completion_request
from support.openai_client import allowed, chosen, function, schema_format
from support.refusals import refused

MESSAGES = [{"role": "user", "content": "Hi"}]


def choice(of_tools: object) -> dict[str, Any]:
    return {"tools": [function("f")], "tool_choice": of_tools}


def part(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [members]}]}


def check_refusal(read: Callable[[Any], object], body: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError, match=f"^{re.escape(field)}: ") as caught:
        read(body)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("temprature", {"temprature": 1}),
        ("best_of", {"best_of": 2}),
        ("suffix", {"suffix": "x", "prompt": [1]}),
        ("max_tokens", {"max_tokens": -1, "echo": True}),
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
        ("guided_json", {"guided_json": "{"}),
        ("guided_json", {"guided_json": [1]}),
        ("guided_regex", {"guided_regex": 1}),
        ("guided_choice", {"guided_choice": []}),
        ("guided_choice", {"guided_choice": ["a", ""]}),
        ("structured_outputs.grammar", {"structured_outputs": {"grammar": "root ::= x"}}),
        ("structured_outputs.structural_tag", {"structured_outputs": {"structural_tag": "x"}}),
        ("structured_outputs.x", {"structured_outputs": {"x": 1}}),
        ("structured_outputs.json", {"guided_regex": "a", "structured_outputs": {"json": {}}}),
        ("guided_json", {"guided_json": {}, "response_format": {"type": "json_object"}}),
        ("ignore_eos", {"ignore_eos": True, "guided_regex": "a"}),
        ("prompt", {"prompt": None}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": {"a": 1}}),
        ("prompt[1]", {"prompt": ["a", 3]}),
        ("prompt", {"prompt": [1, True]}),
        ("max_tokens", {"max_tokens": "7"}),
        ("max_tokens", {"max_tokens": -1}),
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
def test_the_error_for_a_bad_completion_names_its_field(
    field: str, given: dict[str, object]
) -> None:
    check_refusal(completion_request, {"prompt": "ab", **given}, field)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("tools", {"tools": []}),
        ("tools", {"tools": {"a": 1}}),
        ("tools", {"tools": [function("f")] * 2}),
        ("tools", {"tools": [function(f"f{i}") for i in range(129)]}),
        ("tools[0]", {"tools": [{"type": "custom"}]}),
        ("tools[0].custom", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}),
        ("tools[0].function.name", {"tools": [function("a b")]}),
        ("tools[0].function.name", {"tools": [function("")]}),
        ("tools[0].function.parameters", {"tools": [function("f", parameters=[])]}),
        ("tools[0].function.parameters", {"tools": [function("f", parameters={"type": "null"})]}),
        ("tools[0].function.strict", {"tools": [function("f", strict=1)]}),
        ("tool_choice", {"tool_choice": "auto"}),
        ("parallel_tool_calls", {"parallel_tool_calls": False}),
        ("tool_choice", choice("any")),
        ("tool_choice", choice({"type": "function"})),
        ("tool_choice.function.name", choice(chosen("g"))),
        ("tool_choice", choice({**chosen("f"), **allowed("auto", chosen("f"))})),
        ("tool_choice", choice({"type": "allowed_tools"})),
        ("tool_choice.allowed_tools.mode", choice(allowed(None, chosen("f")))),
        ("tool_choice.allowed_tools.mode", choice(allowed(["auto"], chosen("f")))),
        ("tool_choice.allowed_tools.tools", choice(allowed("auto"))),
        ("tool_choice.allowed_tools.tools[1]", choice(allowed("auto", chosen("f"), {}))),
        ("tool_choice.allowed_tools.tools[0].function.name", choice(allowed("auto", chosen("g")))),
        ("ignore_eos", {"tools": [function("f", strict=True)], "ignore_eos": True}),
        ("response_format", choice("required") | {"response_format": {"type": "json_object"}}),
        ("messages[0].tool_calls", {"messages": [{"role": "assistant", "tool_calls": {}}]}),
        ("messages[0].tool_calls[0]", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}),
        ("messages", {"messages": []}),
        ("messages", {"messages": "Hi"}),
        ("messages[0].role", {"messages": [{"content": "Hi"}]}),
        ("messages[0].role", {"messages": [{"role": 3, "content": "Hi"}]}),
        ("messages[0]", {"messages": ["Hi"]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": 3}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": [{"type": "x"}]}]}),
        ("messages[0].content[0]", part(type="image_url", image_url={"url": "data:,"})),
        ("messages[0].content[0].text", part(type="text")),
        ("messages[0].content[0].x", part(type="text", text="a", x=1)),
        ("chat_template_kwargs", {"chat_template_kwargs": [1]}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"self": 1}}),
        ("max_completion_tokens", {"max_completion_tokens": 0}),
        ("thinking_token_budget", {"thinking_token_budget": -1}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("top_logprobs", {"top_logprobs": 21, "logprobs": True}),
        ("logprobs", {"logprobs": 2}),
        ("max_tokens", {"max_tokens": 2, "max_completion_tokens": 2}),
    ],
)
def test_the_error_for_a_bad_chat_names_its_field(field: str, given: dict[str, object]) -> None:
    check_refusal(chat_request, {"messages": MESSAGES, **given}, field)


@pytest.mark.parametrize("body", [None, 3, "text", [], {"\x1b[31m": 1}])
def test_a_body_that_is_not_an_object_of_known_fields_is_rejected(body: object) -> None:
    for parse in (completion_request, chat_request):
        assert "\x1b" not in refused(RequestError, parse, body)


@pytest.mark.parametrize(
    ("field", "remedy"),
    [
        ("max_token", "did you mean max_tokens?"),
        ("temprature", "did you mean temperature?"),
        ("foo", "leave it out"),
        ("x" * 9999, "leave it out"),
    ],
)
def test_the_error_for_an_unknown_field_suggests_a_similar_name(field: str, remedy: str) -> None:
    with pytest.raises(FieldError) as raised:
        chat_request({"messages": MESSAGES, field: 1})
    assert str(raised.value).endswith(f"this field is not known; {remedy}")


def test_the_error_for_an_unknown_role_names_the_known_ones() -> None:
    said = refused(FieldError, chat_request, {"messages": [{"role": "banana", "content": "Hi"}]})
    known = "system, developer, user, assistant, tool"
    assert said == f"messages[0].role: is 'banana'; use one of {known}"


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool"])
@pytest.mark.parametrize("rest", [{}, {"content": None}])
def test_every_message_but_an_assistants_needs_content(role: str, rest: dict[str, None]) -> None:
    with pytest.raises(FieldError, match=r"messages\[1\]\.content: is missing"):
        chat_request({"messages": [*MESSAGES, {"role": role, **rest}]})
    chat_request({"messages": [*MESSAGES, {"role": "assistant", **rest}]})
