"""/v1/messages with Anthropic's own client: answers equal those of chats, and events come in the
documented order."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.anthropic.answers import MessagesAnswer
from specqd.anthropic.requests import count_request, messages_request
from specqd.engine.updates import Update
from specqd.errors import FieldError
from specqd.openai.answers import Usage
from specqd.openai.parts import BlockReader
from specqd.openai.requests import Prepared
from specqd.openai.speculation import DraftMetrics
from specqd.text.tool_calls import CallForm
from support.events import events_of, kinds_of
from support.openai_client import CHAT, MESSAGES, NO_WHITE_SPACE, RESPONSES, closed, function
from support.random_models import BOS, EOS, Shape, make_model
from support.refusals import refused
from support.scripted_models import CALLING, HERMES, make_scripted_model
from support.served import Served, add_template, serving

pytest.importorskip("llguidance", reason="needs specqd[serve]")
anthropic = pytest.importorskip("anthropic", reason="needs Anthropic's client")

KEY = "a-key"
CITY = {"city": "Zürich <3"}
SCHEMAS = {"weather": closed(city={"type": "string"}), "stop": closed(is_now={"type": "boolean"})}
TOOLS: list[Any] = [{"name": name, "input_schema": each} for name, each in SCHEMAS.items()]
TURN: list[Any] = [{"role": "user", "content": "Say."}]
CALLED = {"type": "tool_use", "id": "x", "name": "f", "input": {}}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_scripted_model(tmp_path_factory.mktemp("models") / "small", CALLING, HERMES, seed)


@pytest.fixture(scope="module")
def served(scripted: Path) -> Iterator[Served]:
    with serving(str(scripted), key=KEY) as served:
        yield served
        assert served.process.poll() is None


def client_of(served: Served, key: str = KEY) -> Any:
    return anthropic.Anthropic(base_url=served.url, api_key=key, max_retries=0)


def body_of(script: str, **fields: Any) -> dict[str, Any]:
    given = {"messages": TURN, "max_tokens": 300, "temperature": 0} | fields
    return given | {"chat_template_kwargs": {"script": script}}


def ask(served: Served, script: str, **fields: Any) -> Any:
    """Returns the message of Anthropic's client. A streamed one must be equal."""
    given = {"model": "small"} | body_of(script, **fields)
    extra = {"chat_template_kwargs": given.pop("chat_template_kwargs")}
    extra |= {name: given.pop(name) for name in ("temperature", "logit_bias") if name in given}
    client = client_of(served)
    whole = client.messages.create(**given, extra_body=extra)
    with client.messages.stream(**given, extra_body=extra) as stream:
        list(stream)  # the client joins the events
        final = stream.get_final_message()
    assert lean(final.to_dict()) == lean(whole.to_dict())
    return whole


def lean(message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message without the parts that differ between two answers to one request."""
    content = [
        {name: value for name, value in block.items() if name in ("type", "text", "name", "input")}
        for block in message["content"]
    ]
    usage, ends = message["usage"], ("stop_reason", "stop_sequence")
    counts = {"in": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    counts["out"] = usage["output_tokens"]
    return {"content": content, **counts, **{name: message.get(name) for name in ends}}


BLOCK = ["content_block_start", "content_block_delta", "content_block_stop"]


def test_a_message_equals_the_python_api_in_all_bits(
    chat_model: Path, llm: LLM, rng: np.random.Generator
) -> None:
    params: dict[str, Any] = {"temperature": 0.9, "seed": int(rng.integers(1 << 40))}
    text = "".join(map(chr, rng.integers(97, 123, 20)))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    expected = llm.chat(messages, SamplingParams(max_tokens=50, **params))
    body = {"system": [{"type": "text", "text": "Be brief."}], "max_tokens": 50, **params}
    body |= {"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}
    with serving(str(chat_model)) as served:
        message = served.ask("POST", MESSAGES, body).content
        assert message["content"][0]["text"] == expected.text
        assert message["usage"]["input_tokens"] == len(expected.prompt_tokens)
        assert message["usage"]["output_tokens"] == len(expected.tokens)
        chat = {"messages": messages, "max_tokens": 50, **params}
        [choice] = served.ask("POST", CHAT, chat).content["choices"]
        assert message["content"][0]["text"] == choice["message"]["content"]


def test_a_text_is_one_block(served: Served) -> None:
    message = ask(served, "A", tools=TOOLS)
    assert [block.text for block in message.content] == [CALLING["A"]]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)


def test_events_come_in_the_documented_order(served: Served) -> None:
    events = events_of(served, MESSAGES, body_of("B", tools=TOOLS))
    ends = ["message_delta", "message_stop"]
    assert kinds_of(events) == ["message_start", *BLOCK, *BLOCK, *ends]
    text = [e["delta"]["text"] for e in events if e.get("delta", {}).get("type") == "text_delta"]
    assert "".join(text) == "Let me look."
    parts = [e["delta"]["partial_json"] for e in events if "partial_json" in e.get("delta", {})]
    assert json.loads("".join(parts)) == CITY
    start, delta = events[0]["message"], events[-2]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] > 0
    assert [event["index"] for event in events if event["type"] == BLOCK[0]] == [0, 1]


def test_calls_are_blocks_after_the_text(served: Served) -> None:
    message = ask(served, "B", tools=TOOLS)
    text, call = message.content
    assert (text.text, call.name, call.input) == ("Let me look.", "weather", CITY)
    assert call.id.startswith("toolu_")
    assert message.stop_reason == "tool_use"
    calls = ask(served, "C", tools=TOOLS).content
    assert [(call.name, call.input) for call in calls] == [
        ("stop", {"is_now": True}),
        ("weather", CITY),
    ]


@pytest.mark.parametrize(
    "choice",
    [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "stop"}],
)
def test_a_required_tool_is_called(served: Served, choice: dict[str, Any]) -> None:
    fields = {"tools": TOOLS[1:], "tool_choice": choice, "logit_bias": NO_WHITE_SPACE}
    message = ask(served, "A", **fields)
    assert {block.name for block in message.content} == {"stop"}
    assert message.stop_reason == "tool_use"


def test_the_prompt_lists_no_tools_if_none_may_be_called(served: Served) -> None:
    message = ask(served, "B", tools=TOOLS, tool_choice={"type": "none"})
    assert [block.text for block in message.content] == [CALLING["B"]]


def test_a_conversation_with_calls_gives_the_prompt_of_the_chat(served: Served) -> None:
    message = ask(served, "B", tools=TOOLS)
    [call] = [block for block in message.content if block.type == "tool_use"]
    output = [block.to_dict() for block in message.content]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "7 degrees"}
    turns = [*TURN, {"role": "assistant", "content": output}, {"role": "user", "content": [result]}]
    again = ask(served, "A", messages=turns, tools=TOOLS)
    assert again.content[0].text == CALLING["A"]
    chat_call = {"id": "c", "type": "function"}
    chat_call |= {"function": {"name": "weather", "arguments": json.dumps(CITY)}}
    messages = [
        *TURN,
        {"role": "assistant", "content": "Let me look.", "tool_calls": [chat_call]},
        {"role": "tool", "tool_call_id": "c", "content": "7 degrees"},
    ]
    tools = [function(name, parameters=each) for name, each in SCHEMAS.items()]
    body = {"messages": messages, "tools": tools, "chat_template_kwargs": {"script": "A"}}
    expected = served.ask("POST", CHAT, body | {"max_tokens": 1}).content["usage"]
    usage = again.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == expected["prompt_tokens"]
    counted = client_of(served).messages.count_tokens(
        model="small",
        messages=turns,
        tools=TOOLS,
        extra_body={"chat_template_kwargs": {"script": "A"}},
    )
    assert counted.input_tokens == expected["prompt_tokens"]


def test_the_stop_reason_says_why_a_text_ended(served: Served) -> None:
    cut = ask(served, "A", max_tokens=2)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    stopped = ask(served, "A", stop_sequences=["zi, ", "no"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "zi, ")
    assert stopped.content[0].text == "Grüe"
    assert ask(served, "A", max_tokens=20_000).stop_reason == "end_turn"  # limited to the context


def test_the_stop_reason_says_that_a_text_filled_the_context() -> None:
    request = messages_request(body_of("A"))
    blocks = BlockReader(Prepared(request, [[1]], request.params))
    answer = MessagesAnswer("m", Usage(1, 299), "key", blocks, DraftMetrics(0), 300)
    whole = answer.whole([Update(0, "text", [], [], "length", None)])
    assert whole["stop_reason"] == "model_context_window_exceeded"


@pytest.mark.parametrize(
    "written", ['{"city": "Zü', '{"city": NaN}', '{"city": 1e999}', '{"city": "\\ud83d"}']
)
def test_arguments_that_are_no_json_are_passed_on_as_they_are(written: str) -> None:
    """Because they were cut off, or because no answer can hold the values."""
    request = messages_request(body_of("A", tools=TOOLS))
    form = CallForm("", "", "", True, {})
    prepared = Prepared(request, [[1]], request.params, form)
    answer = MessagesAnswer("m", Usage(1, 300), "key", BlockReader(prepared), DraftMetrics(0), 300)
    end = "" if written == '{"city": "Zü' else "}</tool_call>"
    text = f'<tool_call>{{"name": "weather", "arguments": {written}{end}'
    whole = answer.whole([Update(0, text, [], [], "length", None)])
    [call] = whole["content"]
    assert call["input"] == {"INVALID_JSON": written}
    assert whole["stop_reason"] == "max_tokens"


def test_turns_of_one_role_are_combined() -> None:
    call = {"type": "tool_use", "id": "c", "name": "weather", "input": CITY}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": [{"type": "text", "text": "d"}, call]},
        {"role": "user", "content": "e"},
    ]
    request = messages_request(body_of("A", messages=messages, tools=TOOLS))
    user, assistant, _ = request.messages
    assert user == {"role": "user", "content": "a\nb"}
    assert assistant["content"] == "c\nd"
    assert [each["function"]["name"] for each in assistant["tool_calls"]] == ["weather"]


def test_names_of_tools_may_have_128_characters() -> None:
    tool = {"name": "m" * 128, "input_schema": {"type": "object"}}
    assert messages_request(body_of("A", tools=[tool])).tool_use is not None
    longer = body_of("A", tools=[tool | {"name": "m" * 129}])
    assert "1 to 128" in refused(FieldError, messages_request, longer)


def test_a_text_follows_its_schema(served: Served) -> None:
    form = {"type": "json_schema", "schema": closed(is_it={"type": "boolean"})}
    bias = NO_WHITE_SPACE | {str(ord("{")): 100.0}
    body = body_of("A", output_config={"format": form}, logit_bias=bias)
    [block] = served.ask("POST", MESSAGES, body).content["content"]
    assert set(json.loads(block["text"])) == {"is_it"}


def test_reasoning_is_a_block_before_the_answer(tmp_path: Path, seed: int) -> None:
    marks = ("<|channel|>", "<|message|>", "<|end|>")
    texts = {"a": "<|channel|>analysis<|message|>Well now.<|end|>"}
    model = make_scripted_model(tmp_path / "small", texts, HERMES, seed, marks)
    with serving(str(model), key=KEY) as served:
        events = events_of(served, MESSAGES, body_of("a"))
        ends = ["message_delta", "message_stop"]
        assert kinds_of(events) == ["message_start", *BLOCK, *ends]
        [block] = ask(served, "a").content
        assert (block.type, block.thinking) == ("thinking", "Well now.")
        turns = [*TURN, {"role": "assistant", "content": [block.to_dict()]}, *TURN]
        assert served.ask("POST", MESSAGES, body_of("a", messages=turns)).status == 200


def test_errors_have_anthropics_form(served: Served) -> None:
    with pytest.raises(anthropic.AuthenticationError) as caught:
        client_of(served, "wrong").messages.create(model="small", max_tokens=1, messages=TURN)
    assert caught.value.body["error"]["type"] == "authentication_error"
    with pytest.raises(anthropic.BadRequestError) as refusal:
        client_of(served).messages.create(model="small", max_tokens=0, messages=TURN)
    assert refusal.value.body["type"] == "error"
    assert refusal.value.body["error"]["message"].startswith("max_tokens: ")
    with pytest.raises(anthropic.NotFoundError):
        client_of(served).messages.create(model="other", max_tokens=1, messages=TURN)
    reply = served.ask("GET", f"{MESSAGES}/nowhere")
    assert (reply.status, reply.error["type"]) == (404, "not_found_error")


def test_a_key_may_be_in_either_header(served: Served) -> None:
    for header in ({"x-api-key": KEY}, {"x-api-key": "wrong", "Authorization": f"Bearer {KEY}"}):
        given = {"Authorization": ""} | header
        assert served.ask("GET", "/v1/models", headers=given).status == 200
    reply = served.ask("GET", "/v1/models", headers={"Authorization": "", "x-api-key": "wrong"})
    assert reply.status == 401


def test_blocks_become_the_messages_of_a_chat() -> None:
    body = {
        "max_tokens": 5,
        "system": "S.",
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}},
                    {"type": "tool_use", "id": "x", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "x",
                        "content": [{"type": "text", "text": "r"}],
                    },
                    {"type": "text", "text": "one"},
                    {"type": "text", "text": "two"},
                ],
            },
        ],
    }
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    chat = messages_request(body)
    assert list(chat.messages) == [
        {"role": "system", "content": "S."},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "look", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "name": "f", "tool_call_id": "x", "content": "r"},
        {"role": "user", "content": "one\ntwo"},
    ]
    assert chat.template_variables == {"enable_thinking": True, "thinking": True}
    del body["max_tokens"]
    assert count_request(body).messages == chat.messages


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"max_tokens": None}, "max_tokens", "is missing"),
        ({"stop": ["x"]}, "stop", "not known"),
        ({"stop_sequences": [1]}, "stop_sequences", "list of strings"),
        (
            {"messages": [*TURN, {"role": "assistant", "content": [CALLED]}]},
            "messages",
            "not a text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0]",
            "leave it out",
        ),
        ({"system": 3}, "system", "is not a string"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "w"}]},
            "tools[0]",
            "that the client runs",
        ),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name", "letters"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name", "one"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "needs tools"),
        ({"thinking": {"type": "maybe"}}, "thinking.type", "adaptive"),
        ({"temperature": -1}, "temperature", "a number"),
    ],
)
def test_the_error_for_a_wrong_field_names_it(
    fields: dict[str, Any], field: str, says: str
) -> None:
    body = {"max_tokens": 5, "messages": TURN} | fields
    problem = refused(FieldError, messages_request, body)
    assert problem.startswith(f"{field}: ")
    assert says in problem


@pytest.mark.parametrize(
    ("path", "fields", "begins"),
    [
        (MESSAGES, {"messages": TURN, "max_tokens": 1900}, b"event: messa"),
        (RESPONSES, {"input": "x"}, b"event: respo"),
    ],
)
def test_a_client_that_leaves_a_stream_frees_its_place(
    path: str, fields: dict[str, Any], begins: bytes, tmp_path: Path, seed: int
) -> None:
    model = make_model(tmp_path / "small", Shape(is_peaked=True, context=2048), seed)
    with serving(str(add_template(model)), "--draft", "none") as served:
        bias = {str(token): -100.0 for token in (BOS, EOS)}
        body = json.dumps(fields | {"stream": True, "logit_bias": bias})
        connection = served.connect()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        assert connection.getresponse().read(12) == begins
        connection.close()
        while not served.metric("vllm:e2e_request_latency_seconds_count"):
            assert served.process.poll() is None
        assert served.metric("vllm:request_success_total") == 1
        text = served.ask("GET", "/metrics").body.decode()
        assert 'finished_reason="abort"' in text
