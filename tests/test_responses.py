"""/v1/responses with OpenAI's own client: answers equal those of chats, and events come in the
documented order."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.errors import FieldError
from specqd.openai.responses_requests import responses_request
from specqd.text.tokenizer import Tokenizer
from support.events import events_of, kinds_of
from support.openai_client import (
    CHAT,
    NO_WHITE_SPACE,
    RESPONSES,
    chosen,
    client_of,
    closed,
    function,
)
from support.refusals import refused
from support.scripted_models import CALLING, HERMES, make_scripted_model
from support.served import Served, serving

pytest.importorskip("llguidance", reason="needs specqd[serve]")
pytest.importorskip("openai", reason="needs OpenAI's client")
pydantic = pytest.importorskip("pydantic", reason="needs specqd[serve]")

CITY = {"city": "Zürich <3"}
NESTED = [
    function("weather", description="Of a city.", parameters=closed(city={"type": "string"})),
    function("stop", parameters=closed(is_now={"type": "boolean"})),
]
FLAT: list[Any] = [{"type": "function", **tool["function"]} for tool in NESTED]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_scripted_model(tmp_path_factory.mktemp("models") / "small", CALLING, HERMES, seed)


@pytest.fixture(scope="module")
def served(scripted: Path) -> Iterator[Served]:
    with serving(str(scripted)) as served:
        yield served
        assert served.process.poll() is None


def lean(response: dict[str, Any]) -> dict[str, Any]:
    """Returns a response without the parts that differ between two answers to one request."""
    output = [
        {name: value for name, value in item.items() if name not in ("id", "call_id")}
        for item in response["output"]
    ]
    usage = {name: response["usage"][name] for name in ("input_tokens", "output_tokens")}
    return {"status": response["status"], "output": output, "usage": usage}


def ask(served: Served, script: str, **fields: Any) -> Any:
    """Returns the response of OpenAI's client. A streamed one must be equal."""
    given = {"input": "Say.", "tools": FLAT, "temperature": 0} | fields
    extra = {"chat_template_kwargs": {"script": script}}
    client = client_of(served)
    whole = client.responses.create(model="small", extra_body=extra, **given)
    *_, last = client.responses.create(model="small", extra_body=extra, stream=True, **given)
    assert lean(last.response.to_dict()) == lean(whole.to_dict())
    if whole.status == "incomplete":  # for which the client has no final response
        return whole
    with client.responses.stream(model="small", extra_body=extra, **given) as stream:
        list(stream)  # the client joins the parts of each item
        assert stream.get_final_response().output_text == whole.output_text
    return whole


def test_a_response_equals_the_python_api_in_all_bits(
    chat_model: Path, llm: LLM, rng: np.random.Generator
) -> None:
    params: dict[str, Any] = {"temperature": 0.9, "seed": int(rng.integers(1 << 40))}
    text = "".join(map(chr, rng.integers(97, 123, 20)))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    expected = llm.chat(messages, SamplingParams(max_tokens=50, **params))
    with serving(str(chat_model)) as served:
        client = client_of(served)
        response = client.responses.create(
            model="small",
            instructions="Be brief.",
            input=[{"role": "user", "content": [{"type": "input_text", "text": text}]}],
            max_output_tokens=50,
            temperature=0.9,
            extra_body={"seed": params["seed"]},
        )
        assert response.output_text == expected.text
        assert response.usage.input_tokens == len(expected.prompt_tokens)
        assert response.usage.output_tokens == len(expected.tokens)
        chat = {"messages": messages, "max_tokens": 50, **params}
        [choice] = served.ask("POST", CHAT, chat).content["choices"]
        assert response.output_text == choice["message"]["content"]


def test_a_text_is_one_message(served: Served) -> None:
    response = ask(served, "A")
    assert response.output_text == CALLING["A"]
    assert [item.type for item in response.output] == ["message"]
    assert (response.status, response.incomplete_details) == ("completed", None)
    assert response.temperature == 0
    assert response.tools[0].name == "weather"


def test_events_of_a_text_come_in_the_documented_order(served: Served) -> None:
    body = {"input": "Say.", "temperature": 0, "chat_template_kwargs": {"script": "A"}}
    events = events_of(served, RESPONSES, body)
    assert kinds_of(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        "completed",
    ]
    deltas = [event["delta"] for event in events if event["type"].endswith("text.delta")]
    assert "".join(deltas) == CALLING["A"]
    assert [event["text"] for event in events if event["type"].endswith("text.done")] == [
        CALLING["A"]
    ]
    first, last = events[0]["response"], events[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert last["usage"]["output_tokens"] > 0
    [item] = last["output"]
    ids = {event["item_id"] for event in events if "item_id" in event}
    assert ids == {item["id"]}


def test_calls_are_items_after_the_text(served: Served) -> None:
    message, call = ask(served, "B").output
    assert message.content[0].text == "Let me look."
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", CITY)
    calls = ask(served, "C").output
    assert [call.name for call in calls] == ["stop", "weather"]
    assert len({call.call_id for call in calls}) == 2
    events = events_of(
        served,
        RESPONSES,
        {
            "input": "Say.",
            "tools": FLAT,
            "temperature": 0,
            "chat_template_kwargs": {"script": "C"},
        },
    )
    one = ["output_item.added", "function_call_arguments.delta"]
    one += ["function_call_arguments.done", "output_item.done"]
    assert kinds_of(events) == ["created", "in_progress", *one, *one, "completed"]
    places = [event["output_index"] for event in events if "output_index" in event]
    assert places == sorted(places)


def test_a_named_function_is_called(served: Served) -> None:
    bias = {"logit_bias": NO_WHITE_SPACE, "chat_template_kwargs": {"script": "A"}}
    for choice in (
        {"type": "function", "name": "stop"},
        {"type": "allowed_tools", "mode": "required", "tools": [{**FLAT[1]}]},
    ):
        asked = {"input": "Say.", "tools": FLAT, "tool_choice": choice}
        asked |= {"parallel_tool_calls": False}  # otherwise some models call until cut off
        reply = served.ask("POST", RESPONSES, asked | bias)
        assert reply.status == 200, reply.body
        assert [item["name"] for item in reply.content["output"]] == ["stop"]
        assert reply.content["tool_choice"] == choice


def test_a_conversation_with_calls_gives_the_prompt_of_the_chat(served: Served) -> None:
    response = ask(served, "B")
    [call] = [item for item in response.output if item.type == "function_call"]
    output = [item.to_dict() for item in response.output]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "7 degrees"}
    turns = [{"role": "user", "content": "Say."}, *output, result]
    again = ask(served, "A", input=turns)
    assert again.output_text == CALLING["A"]
    chat_call = {"id": "c", **chosen("weather")}
    chat_call["function"] = {"name": "weather", "arguments": call.arguments}
    messages = [
        {"role": "user", "content": "Say."},
        {"role": "assistant", "content": "Let me look.", "tool_calls": [chat_call]},
        {"role": "tool", "tool_call_id": "c", "content": "7 degrees"},
    ]
    body = {"messages": messages, "tools": NESTED, "temperature": 0}
    body |= {"chat_template_kwargs": {"script": "A"}}
    usage = served.ask("POST", CHAT, body).content["usage"]
    assert again.usage.input_tokens == usage["prompt_tokens"]


def test_a_text_follows_its_schema(served: Served) -> None:
    model = pydantic.create_model("Answer", is_it=(bool, ...))
    given = {"input": "Say.", "temperature": 0, "max_output_tokens": 200, "model": "small"}
    extra = {"logit_bias": NO_WHITE_SPACE | {str(ord("{")): 100.0}}
    extra |= {"chat_template_kwargs": {"script": "A"}}
    parsed = client_of(served).responses.parse(text_format=model, extra_body=extra, **given)
    assert isinstance(parsed.output_parsed, model)
    reply = served.ask(
        "POST", RESPONSES, given | extra | {"text": {"format": {"type": "json_object"}}}
    )
    assert reply.status == 200


def test_a_cut_response_is_incomplete(served: Served) -> None:
    response = ask(served, "A", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 2
    assert response.output[0].status == "incomplete"
    body = {"input": "Say.", "max_output_tokens": 1, "chat_template_kwargs": {"script": "A"}}
    assert kinds_of(events_of(served, RESPONSES, body))[-1] == "incomplete"


def test_a_whole_call_is_complete_in_a_cut_response(served: Served) -> None:
    most = ask(served, "B").usage.output_tokens
    found = set()
    for left in range(1, most):
        response = ask(served, "B", max_output_tokens=most - left)
        assert response.status == "incomplete"
        call = response.output[-1]
        if call.type != "function_call":
            break
        is_whole = call.arguments == json.dumps(CITY, ensure_ascii=False)
        assert call.status == ("completed" if is_whole else "incomplete")
        found.add(is_whole)
    assert found == {True, False}


def test_reasoning_is_an_item_before_the_answer(tmp_path: Path, seed: int) -> None:
    marks = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    texts = {"a": "<|channel|>analysis<|message|>Well now.<|end|>"}
    model = make_scripted_model(tmp_path / "small", texts, HERMES, seed, marks)
    with serving(str(model)) as served:
        script = {"chat_template_kwargs": {"script": "a"}}
        body: dict[str, Any] = {"input": "Say.", "temperature": 0}
        events = events_of(served, RESPONSES, body | script)
        part = ["output_item.added", "content_part.added", "reasoning_text.delta"]
        part += ["reasoning_text.done", "content_part.done", "output_item.done"]
        assert kinds_of(events) == ["created", "in_progress", *part, "completed"]
        response = client_of(served).responses.create(model="small", extra_body=script, **body)
        [item] = response.output
        assert (item.type, item.content[0].text) == ("reasoning", "Well now.")
        spoken = len(Tokenizer.open(model).encode("Well now.", add_special_tokens=False))
        assert response.usage.output_tokens_details.reasoning_tokens == spoken
        turns = [{"role": "user", "content": "Say."}, item.to_dict()]
        body["input"] = [*turns, {"role": "user", "content": "a"}]
        assert served.ask("POST", RESPONSES, body | script).status == 200


def test_items_become_the_messages_of_a_chat() -> None:
    body = {
        "instructions": "One.",
        "input": [
            {"role": "developer", "content": "Two."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "x", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call", "call_id": "y", "name": "g", "arguments": "no JSON"},
            {"type": "function_call_output", "call_id": "y", "output": "r"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
            {"role": "developer", "content": "Late."},
        ],
    }
    calls = [("x", "f", {"a": 1}), ("y", "g", "no JSON")]
    called = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": given}}
        for i, name, given in calls
    ]
    assert list(responses_request(body).chat.messages) == [
        {"role": "system", "content": "One.\nTwo."},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": called},
        {"role": "tool", "name": "g", "tool_call_id": "y", "content": "r"},
        {"role": "assistant", "content": "done"},
        {"role": "system", "content": "Late."},
    ]


def test_effort_reaches_the_template() -> None:
    request = responses_request({"input": "q", "reasoning": {"effort": "low", "summary": "auto"}})
    switches = {"enable_thinking": True, "thinking": True}
    assert request.chat.template_variables == {"reasoning_effort": "low", **switches}


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"input": []}, "input", "at least one item"),
        ({"previous_response_id": "r"}, "previous_response_id", "nothing is stored"),
        ({"conversation": {"id": "c"}}, "conversation", "nothing is stored"),
        ({"background": True}, "background", "stores no answers"),
        ({"truncation": "auto"}, "truncation", '"disabled"'),
        ({"include": ["file_search_call.results"]}, "include", "reasoning.encrypted_content"),
        ({"max_tokens": 3}, "max_tokens", "not known"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]", "leave it out"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "input[0].role", "one of user"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
            "only text",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "only functions"),
        ({"tools": [FLAT[0] | {"name": "a b"}]}, "tools[0].name", "letters"),
        ({"tools": [FLAT[0], FLAT[0]]}, "tools", "two functions"),
        ({"tools": FLAT, "tool_choice": {"type": "function"}}, "tool_choice.name", "one of"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n"}}},
            "text.format.schema",
            "an object",
        ),
    ],
)
def test_the_error_for_a_wrong_field_names_it(
    fields: dict[str, Any], field: str, says: str
) -> None:
    problem = refused(FieldError, responses_request, {"input": "x"} | fields)
    assert problem.startswith(f"{field}: ")
    assert says in problem


def test_a_schema_that_cannot_be_enforced_is_400(served: Served) -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "banana"}}
    reply = served.ask("POST", RESPONSES, {"input": "x", "text": {"format": form}})
    assert (reply.status, reply.error["param"]) == (400, "text.format")
