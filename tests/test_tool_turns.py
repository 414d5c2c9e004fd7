"""Turns with several calls reach templates that take one call per message, call by call."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from specqd import LLM, SamplingParams
from specqd.anthropic.requests import count_request
from specqd.errors import RequestError
from specqd.llm.chats import Chat
from specqd.openai.requests import chat_request
from specqd.openai.responses_requests import responses_request
from specqd.server.bodies import tokenize_request
from specqd.text.messages import Message
from specqd.text.single_calls import one_by_one
from specqd.text.tokenizer import Tokenizer
from support.openai_client import CHAT, MESSAGES, RESPONSES, closed, function
from support.random_models import write_tokenizer
from support.scripted_models import HERMES, LLAMA_OF_ONE_CALL, make_scripted_model
from support.served import Served, add_template, serving

WEATHER = '{"name": "weather", "parameters": {"city": "Bern"}}'
STOP = '{"name": "stop", "parameters": {"is_now": true}}'
SCRIPTS = {"B": f"{STOP}; {WEATHER}", "D": "Done."}
TOOLS = [
    function("weather", parameters=closed(city={"type": "string"})),
    function("stop", parameters=closed(is_now={"type": "boolean"})),
]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
CLAUDES = [
    {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
    for tool in TOOLS
]
ASKED = {"role": "user", "content": "Go on."}
AGAIN = {"role": "user", "content": "And now?"}
PROMPT = (  # of the conversation below
    f"[user]Go on.[end][assistant]I look.{STOP}[end][tool]stopped[end]"
    f"[assistant]{WEATHER}[end][tool]7 degrees[end][user]And now?[end][assistant]"
)
CALLS = [
    {"id": "c1", **function("stop", arguments='{"is_now": true}')},
    {"id": "c2", **function("weather", arguments='{"city": "Bern"}')},
]
TURN = {"role": "assistant", "content": "I look.", "tool_calls": CALLS}
RESULTS = [
    {"role": "tool", "tool_call_id": "c1", "content": "stopped"},
    {"role": "tool", "tool_call_id": "c2", "content": "7 degrees"},
]
CONVERSATION = [ASKED, TURN, *RESULTS, AGAIN]


def tokenizer_of(directory: Path, template: str) -> Tokenizer:
    write_tokenizer(directory, 320)
    return Tokenizer.open(add_template(directory, template))


def prompts_of(tokenizer: Tokenizer, messages: Sequence[Message], **tools: Any) -> str:
    """Returns the prompt of a chat over HTTP. That of `LLM.chat` must be equal."""
    [ids] = chat_request({"messages": messages, **tools}).encoded(tokenizer)
    assert Chat.of(tokenizer, messages, None, tools).prompt == ids
    return tokenizer.decode(ids)


@pytest.fixture
def single(tmp_path: Path) -> Tokenizer:
    return tokenizer_of(tmp_path, LLAMA_OF_ONE_CALL)


def test_calls_of_one_turn_come_one_by_one(single: Tokenizer) -> None:
    assert prompts_of(single, CONVERSATION) == PROMPT
    assert prompts_of(single, CONVERSATION, tools=TOOLS).endswith(f"]{PROMPT}")
    reordered = [ASKED, TURN, *reversed(RESULTS), AGAIN]
    assert prompts_of(single, reordered) == PROMPT


def test_a_result_that_is_missing_leaves_its_call_alone(single: Tokenizer) -> None:
    for i, text in enumerate(("[tool]stopped[end]", "[tool]7 degrees[end]")):
        messages = [ASKED, TURN, RESULTS[1 - i], AGAIN]
        assert prompts_of(single, messages) == PROMPT.replace(text, "")
    unanswered = PROMPT.replace("[tool]stopped[end]", "").replace("[tool]7 degrees[end]", "")
    assert prompts_of(single, [ASKED, TURN, AGAIN]) == unanswered


def test_all_apis_make_the_same_prompt(single: Tokenizer) -> None:
    outputs = {"c1": "stopped", "c2": "7 degrees"}
    items: list[dict[str, Any]] = [ASKED, {"role": "assistant", "content": "I look."}]
    blocks: list[dict[str, Any]] = [{"type": "text", "text": "I look."}]
    for call in CALLS:
        named = call["function"]
        items.append({"type": "function_call", "call_id": call["id"], **named})
        given = json.loads(named["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": named["name"], "input": given})
    for each, output in reversed(outputs.items()):
        items.append({"type": "function_call_output", "call_id": each, "output": output})
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": each, "content": output}
        for each, output in outputs.items()
    ]
    said = {"type": "text", "text": AGAIN["content"]}
    turns = [ASKED, {"role": "assistant", "content": blocks}]
    chats = (
        chat_request({"messages": CONVERSATION, "tools": TOOLS}),
        responses_request({"input": [*items, AGAIN], "tools": FLAT}).chat,
        count_request(
            {"messages": [*turns, {"role": "user", "content": [*results, said]}], "tools": CLAUDES}
        ),
    )
    texts = {single.decode(chat.encoded(single)[0]) for chat in chats}
    assert texts == {prompts_of(single, CONVERSATION, tools=TOOLS)}
    ids = tokenize_request({"messages": CONVERSATION}).encoded(single)
    assert single.decode(ids) == prompts_of(single, CONVERSATION)


def test_a_template_that_takes_several_calls_gets_them_in_one_message(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, HERMES)
    text = prompts_of(tokenizer, CONVERSATION)
    calls = [each.replace("parameters", "arguments") for each in (STOP, WEATHER)]
    turn = "".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    assert f"[assistant]I look.{turn}[tool]stopped[tool]7 degrees[user]" in text


def test_a_template_that_rejects_any_call_without_a_result_gets_turns_as_they_are(
    tmp_path: Path,
) -> None:
    """The number of calls is no reason to reject them."""
    explained = '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>'
    check = "{{ raise_exception('a result is missing') if messages[-1].tool_calls }}"
    tokenizer = tokenizer_of(tmp_path, explained + check + HERMES)
    expected = prompts_of(tokenizer_of(tmp_path, HERMES), CONVERSATION)
    assert prompts_of(tokenizer, CONVERSATION) == explained + expected
    with pytest.raises(RequestError, match="a result is missing"):
        prompts_of(tokenizer, CONVERSATION[:2])


# --- Which result is whose ------------------------------------------------------------------------


def calling(*ids: str | None) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": each} for each in ids]}


def result(of: str | None, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": of, "content": content}


@pytest.mark.parametrize(
    ("ids", "results", "expected"),
    [
        ("ab", [("b", "2"), ("a", "1")], "a1b2"),
        ("abc", [("c", "3"), ("a", "1")], "a1bc3"),
        ("ab", [("a", "1"), ("b", "2"), ("a", "3")], "a13b2"),
        ("ab", [("x", "2"), ("a", "1")], "a1b2"),
        ("ab", [(None, "1"), (None, "2")], "a1b2"),
        ("ab", [("b", "2"), ("x", "1"), ("y", "3"), (None, "4")], "a1b234"),
        ("aa", [("a", "1"), ("a", "2"), ("a", "3")], "a1a23"),
        ((None, None), [(None, "1"), (None, "2")], "-1-2"),
        ((None, None), [("x", "1"), ("y", "2")], "-1-2"),
    ],
)
def test_results_follow_their_calls(
    ids: Sequence[str | None], results: list[tuple[str | None, str]], expected: str
) -> None:
    messages = [ASKED, calling(*ids), *(result(*each) for each in results), AGAIN]
    first, *between, last = one_by_one(messages)
    assert (first, last) == (ASKED, AGAIN)
    said = ""
    for message in between:
        calls = message.get("tool_calls")
        said += (calls[0]["id"] or "-") if calls else message["content"]
        assert calls is None or len(calls) == 1
    assert said == expected


def test_results_after_another_message_stay_where_they_are() -> None:
    late = result("b", "2")
    split = one_by_one([calling("a", "b"), result("a", "1"), AGAIN, late, calling("c"), late])
    expected = [calling("a"), result("a", "1"), calling("b"), AGAIN, late, calling("c"), late]
    assert split == expected


def test_text_and_reasoning_come_with_the_first_call() -> None:
    turn = {**calling("a", "b"), "content": "I look.", "reasoning_content": "Hm.", "name": "me"}
    first, second = one_by_one([turn])
    assert first == {**turn, "tool_calls": [{"id": "a"}]}
    assert second == {"role": "assistant", "name": "me", "tool_calls": [{"id": "b"}]}


# --- Models ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    directory = tmp_path_factory.mktemp("models") / "small"
    return make_scripted_model(directory, SCRIPTS, LLAMA_OF_ONE_CALL, seed)


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Served]:
    with serving(str(model), "--draft", "none") as served:
        yield served


def asked(served: Served, path: str, body: dict[str, Any], script: str) -> Any:
    body = {"temperature": 0, "chat_template_kwargs": {"script": script}, **body}
    reply = served.ask("POST", path, body)
    assert reply.status == 200, reply.content
    return reply.content


def test_a_conversation_goes_on_after_two_calls(served: Served, model: Path) -> None:
    body: dict[str, Any] = {"messages": [ASKED], "tools": TOOLS, "return_token_ids": True}
    [choice] = asked(served, CHAT, body, "B")["choices"]
    calls = choice["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["stop", "weather"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
    body["messages"] += [choice["message"], *results]
    [choice] = asked(served, CHAT, body, "D")["choices"]
    assert choice["message"]["content"] == "Done."

    llm = LLM(model, "none", threads=1)
    params = SamplingParams(max_tokens=None, temperature=0)
    reply = llm.chat([ASKED], params, tools=TOOLS, script="B").reply
    assert reply is not None
    results = [result(call.id, "ok") for call in reply.tool_calls]
    answer = llm.chat([ASKED, reply.message, *results], params, tools=TOOLS, script="D")
    assert answer.text == "Done."
    assert answer.prompt_token_ids == choice["prompt_token_ids"]


def test_so_does_one_of_the_responses_api(served: Served) -> None:
    body: dict[str, Any] = {"input": [ASKED], "tools": FLAT}
    output = asked(served, RESPONSES, body, "B")["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    assert [call["name"] for call in calls] == ["stop", "weather"]
    body["input"] += output
    for call in reversed(calls):
        made = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
        body["input"].append(made)
    [message] = asked(served, RESPONSES, body, "D")["output"]
    assert message["content"][0]["text"] == "Done."


def test_so_does_one_of_anthropics_api(served: Served) -> None:
    body: dict[str, Any] = {"messages": [ASKED], "tools": CLAUDES, "max_tokens": 200}
    blocks = asked(served, MESSAGES, body, "B")["content"]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    assert [call["name"] for call in calls] == ["stop", "weather"]
    results = [{"type": "tool_result", "tool_use_id": call["id"]} for call in calls]
    body["messages"].append({"role": "assistant", "content": blocks})
    body["messages"].append({"role": "user", "content": results})
    [block] = asked(served, MESSAGES, body, "D")["content"]
    assert block["text"] == "Done."
