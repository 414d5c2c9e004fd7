"""Models whose chat template knows no tools get them described in plain messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from specqd.openai.requests import Prepared, chat_request
from specqd.text.plain_tools import in_messages
from specqd.text.tokenizer import Tokenizer
from support.openai_client import CHAT, MESSAGES, closed, function
from support.random_models import write_tokenizer
from support.scripted_models import CALLING, make_scripted_model
from support.served import add_template, serving

PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{{ script }}{% endif %}"
)
# Like Gemma's: no system message, and roles alternate.
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' or "
    "(m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{{ script }}{% endif %}"
)
TOOLS = [
    function("weather", description="Of a city.", parameters=closed(city={"type": "string"})),
    function("stop", parameters=closed(is_now={"type": "boolean"})),
]
CALL = {"id": "call_1"} | function("weather", arguments='{"city": "Bern"}')
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is Bern?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
    {"role": "user", "content": "And now?"},
]


def prompt_of(directory: Path, template: str, **body: Any) -> str:
    write_tokenizer(directory, 320)
    tokenizer = Tokenizer.open(add_template(directory, template))
    [ids] = Prepared.of(chat_request({"messages": TURNS, **body}), tokenizer).prompts
    return tokenizer.decode(ids)


def test_tools_calls_and_results_are_in_the_messages(tmp_path: Path) -> None:
    text = prompt_of(tmp_path, PLAIN, tools=TOOLS)
    system, user, called, result, end = parts(text)
    assert system.startswith("system]Be brief.\n\nYou can call functions.")
    for tool in TOOLS:
        assert json.dumps({"name": tool["function"]["name"]})[:-1] in system
    assert user == "user]How is Bern?"
    call = '{"name": "weather", "arguments": {"city": "Bern"}}'
    assert called == f"assistant]I look.\n<tool_call>\n{call}\n</tool_call>"
    assert result == "user]<tool_response>\nSunny.\n</tool_response>\n\nAnd now?"
    assert end == "assistant]"


def parts(text: str) -> list[str]:
    for role in ("system", "user", "assistant"):
        text = text.replace(f"[{role}]", f"\x00{role}]")
    return text.split("\x00")[1:]


def test_templates_without_system_messages_and_with_alternating_roles_work(tmp_path: Path) -> None:
    user, called, result, end = parts(prompt_of(tmp_path, STRICT, tools=TOOLS))
    assert user.startswith("user]Be brief.\n\nYou can call functions.")
    assert user.endswith("\n\nHow is Bern?")
    assert called.startswith("assistant]I look.")
    assert result.endswith("And now?")
    assert end == "assistant]"


def test_earlier_calls_stay_readable_if_no_tool_may_be_called(tmp_path: Path) -> None:
    text = prompt_of(tmp_path, PLAIN)
    assert "You can call" not in text
    assert "<tool_call>" in text
    assert "<tool_response>" in text


def test_a_conversation_without_tools_is_left_as_it_is() -> None:
    assert in_messages(TURNS[:2], [], "system") == TURNS[:2]


@pytest.mark.parametrize("template", [PLAIN, STRICT], ids=["plain", "strict"])
def test_a_server_reads_calls_of_any_template(tmp_path: Path, seed: int, template: str) -> None:
    pytest.importorskip("llguidance", reason="needs specqd[structured]")
    model = make_scripted_model(tmp_path / "small", CALLING, template, seed)
    body = {"messages": TURNS[1:2], "tools": TOOLS, "temperature": 0, "max_tokens": 400}
    body |= {"chat_template_kwargs": {"script": "B"}, "return_token_ids": True}
    held = body | {"tool_choice": "required", "logit_bias": {str(ord(c)): -100 for c in "\n\t\r "}}
    found = []
    for draft in ("none", "fp4:k=4"):
        with serving(str(model), "--draft", draft) as served:
            replies = [served.ask("POST", CHAT, each).content for each in (body, held)]
            claude = {"messages": TURNS[1:2], "max_tokens": 400, "temperature": 0}
            claude["tools"] = [{"name": "weather", "input_schema": closed(city={})}]
            claude["chat_template_kwargs"] = {"script": "B"}
            counted = served.ask("POST", f"{MESSAGES}/count_tokens", without(claude)).content
            blocks = served.ask("POST", MESSAGES, claude).content
        found.append([reply["choices"][0]["token_ids"] for reply in replies])
        usage = blocks["usage"]
        read = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert counted["input_tokens"] == read
        assert blocks["content"][-1]["name"] == "weather"
        free, must = (reply["choices"][0] for reply in replies)
        assert free["message"]["content"] == "Let me look."
        [call] = free["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": "Zürich <3"}
        assert must["finish_reason"] in ("tool_calls", "length")
        assert must["message"]["tool_calls"]
    assert found[0] == found[1]


def without(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in body if name not in ("max_tokens", "temperature")}
