"""Tool calls with OpenAI's own client, whole and streamed, with and without drafts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM
from specqd.text.messages import with_names
from support.batches import answered, line
from support.openai_client import (
    CHAT,
    NO_WHITE_SPACE,
    allowed,
    chosen,
    client_of,
    closed,
    function,
)
from support.random_models import Shape, make_model
from support.scripted_models import CALLING, HERMES, LLAMA, make_scripted_model
from support.served import Served, add_template, serving

pytest.importorskip("llguidance", reason="needs specqd[serve]")
openai = pytest.importorskip("openai", reason="needs OpenAI's client")
pydantic = pytest.importorskip("pydantic", reason="needs specqd[serve]")

MESSAGES = [{"role": "user", "content": "Say."}]
SCRIPTS = CALLING | {"D": "Hm <tool_call>stop(now)</tool_call> ?"}
LLAMA_SCRIPTS = {"A": "No call: {x}", "B": '{"name": "stop", "parameters": {"is_now": false}}'}
CITY = ("weather", {"city": "Zürich <3"})
NOW = ("stop", {"is_now": True})
NESTED: dict[str, Any] = {"type": "boolean"}
for _ in range(32):
    NESTED = {"not": NESTED}


TOOLS = [
    function(
        "weather",
        description="Of a city.",
        parameters=closed(city={"type": "string", "maxLength": 12}),
    ),
    function("stop", parameters=closed(is_now={"type": "boolean"})),
]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_scripted_model(tmp_path_factory.mktemp("models") / "small", SCRIPTS, HERMES, seed)


@pytest.fixture(scope="module", params=["fp4:k=4", "none"])
def served(scripted: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(str(scripted), "--draft", request.param) as served:
        yield served


def send(client: Any, script: str, **fields: Any) -> Any:
    extra = {"chat_template_kwargs": {"script": script}}
    given = {"messages": MESSAGES, "tools": TOOLS, "temperature": 0, "max_tokens": 400} | fields
    return client.chat.completions.create(model="small", extra_body=extra, **given)


def ask(client: Any, script: str, **fields: Any) -> Any:
    """Returns the choice of a whole answer. A streamed one must be equal."""
    [choice] = send(client, script, **fields).choices
    calls = [call.function for call in choice.message.tool_calls or []]
    assert ask_streamed(client, script, **fields) == {
        "content": choice.message.content or None,
        "calls": [{"name": call.name, "arguments": call.arguments} for call in calls],
        "finish_reason": choice.finish_reason,
    }
    return choice


def ask_streamed(client: Any, script: str, **fields: Any) -> dict[str, Any]:
    """Returns the joined deltas, each of which must have OpenAI's form."""
    content, reason, calls = "", None, list[dict[str, Any]]()
    for chunk in send(client, script, stream=True, **fields):
        [choice] = chunk.choices
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            if call.index == len(calls):
                assert call.id.startswith("call_")
                assert call.type == "function"
                calls.append({"name": call.function.name, "arguments": ""})
            else:
                assert call.index == len(calls) - 1
                assert (call.id, call.type, call.function.name) == (None, None, None)
            calls[-1]["arguments"] += call.function.arguments
    return {"content": content or None, "calls": calls, "finish_reason": reason}


def calls_of(choice: Any) -> list[tuple[str, Any]]:
    calls = choice.message.tool_calls or []
    assert all(call.type == "function" and call.id.startswith("call_") for call in calls)
    assert len({call.id for call in calls}) == len(calls)
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize(
    ("script", "content", "calls", "reason"),
    [
        ("A", SCRIPTS["A"], [], "stop"),
        ("B", "Let me look.", [CITY], "tool_calls"),
        ("C", None, [NOW, CITY], "tool_calls"),
        ("D", SCRIPTS["D"], [], "stop"),
    ],
)
def test_calls_in_free_texts_are_read(
    client: Any, script: str, content: str | None, calls: list[Any], reason: str
) -> None:
    choice = ask(client, script)
    assert choice.message.content == content
    assert calls_of(choice) == calls
    assert choice.finish_reason == reason


def test_markup_is_content_if_tool_choice_is_none(client: Any) -> None:
    choice = ask(client, "B", tool_choice="none")
    assert choice.message.content == SCRIPTS["B"]
    assert choice.message.tool_calls is None


def test_a_call_cut_off_by_max_tokens_has_its_arguments_so_far(client: Any) -> None:
    found = set()
    for most in range(2, 40):
        choice = ask(client, "B", max_tokens=most)
        for call in choice.message.tool_calls or []:
            assert call.function.name == "weather"
            so_far = call.function.arguments.rstrip("\N{REPLACEMENT CHARACTER}")  # half a character
            assert '{"city": "Zürich <3"}'.startswith(so_far)
            assert choice.message.content == "Let me look."
            found.add((choice.finish_reason, call.function.arguments == '{"city": "Zürich <3"}'))
    assert ("length", False) in found
    assert ("tool_calls", True) in found


@pytest.mark.parametrize("choice", ["required", chosen("stop"), "auto"])
def test_rules_hold_where_the_model_would_write_another_call(client: Any, choice: Any) -> None:
    """Script C has the model write a call that the schema forbids."""
    tools = [function("stop", parameters=closed(is_now={"const": False}), strict=True)]
    fields = {"tools": tools, "tool_choice": choice, "logit_bias": NO_WHITE_SPACE}
    fields |= {"parallel_tool_calls": False}
    assert calls_of(ask(client, "C", **fields)) == [("stop", {"is_now": False})]


def test_only_allowed_tools_are_called(client: Any) -> None:
    """Script C has the model call both tools; only the allowed ones differ."""
    both = ask(client, "C", tool_choice=allowed("auto", chosen("weather"), chosen("stop")))
    assert calls_of(both) == [NOW, CITY]
    # Some models would call until they are cut.
    one = {"logit_bias": NO_WHITE_SPACE, "parallel_tool_calls": False}
    for mode in ("auto", "required"):
        some = ask(client, "C", tool_choice=allowed(mode, chosen("stop")), **one)
        assert '<tool_call>\n{"name": "weather' not in (some.message.content or "")
        assert {call.function.name for call in some.message.tool_calls} == {"stop"}
    free = ask(client, "A", tool_choice=allowed("auto", chosen("stop")))
    assert (free.message.content, calls_of(free)) == (SCRIPTS["A"], [])
    required = allowed("required", chosen("weather"))
    held = ask(client, "A", tool_choice=required, **one)
    assert {call.function.name for call in held.message.tool_calls} == {"weather"}


def test_texts_without_calls_follow_the_response_format(client: Any) -> None:
    schema = closed(is_it={"type": "boolean"})
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    for script in "AB":
        fields = {"response_format": form, "logit_bias": NO_WHITE_SPACE | {str(ord("{")): 100.0}}
        answer = ask(client, script, **fields)
        assert set(json.loads(answer.message.content)) == {"is_it"}
        assert answer.message.tool_calls is None


def test_openais_client_parses_arguments_into_pydantic_models(client: Any) -> None:
    model = pydantic.create_model("Stop", is_now=(bool, ...))
    given = {
        "model": "small",
        "messages": MESSAGES,
        "tools": [openai.pydantic_function_tool(model, name="stop")],
        "extra_body": {"chat_template_kwargs": {"script": "C"}},
        "temperature": 0,
        "max_tokens": 200,
        "logit_bias": NO_WHITE_SPACE,
    }
    answer = client.chat.completions.parse(
        **given, tool_choice="required", parallel_tool_calls=False
    )
    [call] = answer.choices[0].message.tool_calls
    parsed = call.function.parsed_arguments
    assert isinstance(parsed, model)
    assert isinstance(parsed.is_now, bool)
    with client.chat.completions.stream(**given, tool_choice=chosen("stop")) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    [call] = final.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, model)
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.index) for event in done] == [("stop", 0)]


def test_a_conversation_continues_after_its_calls(client: Any) -> None:
    message = ask(client, "B").message
    [call] = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}
    messages = [*MESSAGES, message.model_dump(exclude_none=True), result]
    assert ask(client, "A", messages=messages).message.content == SCRIPTS["A"]


# --- Random models --------------------------------------------------------------------------------


def test_calls_have_the_same_bits_with_drafts_and_without(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    directory = make_model(tmp_path / "small", Shape(is_peaked=True, context=2048), seed)
    add_template(directory, HERMES)
    requests = [
        {
            "messages": [{"role": "user", "content": f"{i}"}],
            "tools": TOOLS,
            "tool_choice": choice,
            "max_tokens": 300,
            "temperature": float(rng.choice([0.0, 1.0])),
            "seed": int(rng.integers(1 << 40)),
            "logit_bias": NO_WHITE_SPACE,
            "extra_body": {"return_token_ids": True},
        }
        for i, choice in enumerate([chosen("weather"), "required", chosen("stop"), "auto"] * 2)
    ]
    answers = []
    for draft in ("none", "fp4:k=4", "ngram"):
        with serving(str(directory), "--draft", draft) as served:
            client = client_of(served)
            made = [client.chat.completions.create(model="small", **each) for each in requests]
            answers.append([answer.choices[0] for answer in made])
    for without, *others in zip(*answers, strict=True):
        for other in others:
            assert other.token_ids == without.token_ids
            assert calls_of(other) == calls_of(without)
            assert other.message.content == without.message.content
            assert other.finish_reason == without.finish_reason
    for request, choice in zip(requests, answers[0], strict=True):
        if request["tool_choice"] == "auto":
            continue
        names = [name for name, _ in calls_of(choice)]
        assert names
        assert choice.message.content is None
        if isinstance(request["tool_choice"], dict):
            assert names == [request["tool_choice"]["function"]["name"]]
            assert choice.finish_reason == "tool_calls"


def test_untagged_calls_and_special_token_tags_are_read(tmp_path: Path, seed: int) -> None:
    llama = make_scripted_model(tmp_path / "llama" / "small", LLAMA_SCRIPTS, LLAMA, seed)
    with serving(str(llama)) as served:
        client = client_of(served)
        assert ask(client, "A").message.content == LLAMA_SCRIPTS["A"]
        for choice in ("auto", "required", chosen("stop")):
            fields = {"tools": TOOLS[1:], "tool_choice": choice, "logit_bias": NO_WHITE_SPACE}
            assert calls_of(ask(client, "B", **fields)) == [("stop", {"is_now": False})]
    marks = ["<tool_call>", "</tool_call>"]
    special = make_scripted_model(
        tmp_path / "special" / "small", {"B": SCRIPTS["B"]}, HERMES, seed, marks
    )
    with serving(str(special)) as served:
        client = client_of(served)
        assert calls_of(ask(client, "B")) == [CITY]
        body = {"messages": MESSAGES, "tools": TOOLS, "temperature": 0, "return_origins": True}
        body |= {"chat_template_kwargs": {"script": "B"}}
        [choice] = served.ask("POST", CHAT, body).content["choices"]
        assert "".join(origin["text"] for origin in choice["origins"]) == SCRIPTS["B"]
        answer = ask(client, "B", tool_choice=chosen("stop"), logit_bias=NO_WHITE_SPACE)
        assert [name for name, _ in calls_of(answer)] == ["stop"]


def test_a_batch_answers_calls_as_the_server_does(
    scripted: Path, client: Any, tmp_path: Path
) -> None:
    body = {"messages": MESSAGES, "tools": TOOLS, "temperature": 0, "logit_bias": NO_WHITE_SPACE}
    choices: dict[str, Any] = {"B": "auto", "C": chosen("stop"), "A": "none"}
    lines = [
        line(script, CHAT, body | given | {"chat_template_kwargs": {"script": script}})
        for script, given in ((s, {"tool_choice": c}) for s, c in choices.items())
    ]
    answers = answered(LLM(scripted, "none", threads=1), tmp_path, lines)
    assert len(answers) == len(choices)
    for answer in answers:
        [found] = answer["response"]["body"]["choices"]
        script = answer["custom_id"]
        expected = ask(client, script, tool_choice=choices[script], logit_bias=NO_WHITE_SPACE)
        assert found["finish_reason"] == expected.finish_reason
        assert found["message"]["content"] == expected.message.content
        calls = found["message"].get("tool_calls") or []
        functions = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
        assert functions == calls_of(expected)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"parameters": {"properties": {"a": {"type": "banana"}}}}, "cannot be enforced"),
        ({"parameters": {"$ref": "https://example.org/schema"}}, "points outside the schema"),
        ({"parameters": NESTED}, "nested deeper than 32"),
    ],
)
def test_schemas_that_cannot_be_enforced_are_400(
    served: Served, fields: dict[str, Any], says: str
) -> None:
    body = {"messages": MESSAGES, "tools": [function("f", **fields)], "max_tokens": 3}
    reply = served.ask("POST", CHAT, body | {"tool_choice": "required"})
    assert reply.status == 400
    assert reply.error["param"] == "tools"
    assert says in reply.error["message"]
    assert served.ask("POST", CHAT, body).status == 200  # auto: no schema is enforced


def test_results_have_the_name_of_the_latest_call_with_their_id() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": name}}]}

    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    unknown = result | {"tool_call_id": None}
    named = with_names([call("a"), result, call("b"), result, unknown])
    assert [each.get("name") for each in named if each["role"] == "tool"] == ["a", "b", None]
