"""What a chat's answer says, in Python: reasoning, content and calls of tools."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specqd import LLM, AsyncLLM, SamplingParams
from specqd.errors import FieldError
from specqd.llm import Reply, ToolCall
from specqd.text.tool_reader import CallPiece
from support.openai_client import closed, function
from support.scripted_models import CALLING, HERMES, make_scripted_model
from support.served import TEMPLATE

PARAMS = SamplingParams(max_tokens=None, temperature=0)
TOOLS = [
    function("weather", description="Of a city.", parameters=closed(city={"type": "string"})),
    function("stop", parameters=closed(is_now={"type": "boolean"})),
]
ASKED = [{"role": "user", "content": "Go on."}]
# The template's own marks are special tokens, which the text leaves out.
SPECIAL = ("<tool_call>", "</tool_call>")
THINKING = (
    "{% for m in messages %}[{{ m.role }}]{{ (m.content or '').split('</think>') | last }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]A{% endif %}"
)


def calls_of(reply: Reply | None) -> list[tuple[str, Any]]:
    assert reply is not None
    return [(call.name, call.arguments) for call in reply.tool_calls]


EXPECTED = {
    "A": ("Grüezi, no call.", []),
    "B": ("Let me look.", [("weather", {"city": "Zürich <3"})]),
    "C": ("", [("stop", {"is_now": True}), ("weather", {"city": "Zürich <3"})]),
}


@pytest.mark.parametrize(
    "template", [HERMES, TEMPLATE[: -len("{% endif %}")] + "{{ script }}{% endif %}"]
)
def test_calls_are_parsed_in_all_ways_to_ask(tmp_path: Path, template: str, seed: int) -> None:
    """Also where the template knows no tools."""
    llm = LLM(make_scripted_model(tmp_path / "model", CALLING, template, seed), "none", threads=1)
    for script, (content, calls) in EXPECTED.items():
        options = {"tools": TOOLS, "script": script}
        result = llm.chat(ASKED, PARAMS, **options)
        assert result.reply is not None
        assert (result.reply.content, calls_of(result.reply)) == (content, calls)
        stream = llm.stream_chat(ASKED, PARAMS, **options)
        assert "".join(stream) == result.text == CALLING[script]
        assert stream.result is not None
        assert stream.result.reply == result.reply

    async def ask() -> tuple[Reply | None, Reply | None]:
        async with AsyncLLM(llm) as model:
            whole = await model.chat(ASKED, PARAMS, **options)
            streamed = model.stream_chat(ASKED, PARAMS, **options)
            assert [piece async for piece in streamed]
            assert streamed.result is not None
            return whole.reply, streamed.result.reply

    assert asyncio.run(ask()) == (result.reply, result.reply)


def test_special_tokens_mark_calls_and_stay_out_of_the_text(tmp_path: Path, seed: int) -> None:
    scripts = {"B": CALLING["B"]}
    model = make_scripted_model(tmp_path / "model", scripts, HERMES, seed, SPECIAL)
    result = LLM(model, "none", threads=1).chat(ASKED, PARAMS, tools=TOOLS, script="B")
    assert "<tool_call>" not in result.text
    assert result.reply is not None
    assert result.reply.content == "Let me look."
    assert calls_of(result.reply) == EXPECTED["B"][1]


def test_a_string_that_ends_the_text_ends_the_reply(tmp_path: Path, seed: int) -> None:
    scripts = {"B": CALLING["B"]}
    model = make_scripted_model(tmp_path / "model", scripts, HERMES, seed, SPECIAL)
    params = replace(PARAMS, stop=["look"])
    result = LLM(model, "none", threads=1).chat(ASKED, params, tools=TOOLS, script="B")
    assert result.text == "Let me "
    assert result.reply is not None
    assert result.reply.content.strip() == "Let me"


def test_the_message_of_a_reply_and_its_results_continue_the_chat(
    tmp_path: Path, seed: int
) -> None:
    llm = LLM(make_scripted_model(tmp_path / "model", CALLING, HERMES, seed), "none", threads=1)
    reply = llm.chat(ASKED, PARAMS, tools=TOOLS, script="B").reply
    assert reply is not None
    [call] = reply.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": "Sunny."}
    messages = [*ASKED, reply.message, result]
    answer = llm.chat(messages, PARAMS, tools=TOOLS, script="A")
    assert answer.reply == Reply("Grüezi, no call.")
    assert answer.prompt is not None
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Z' in answer.prompt
    assert "[tool]Sunny." in answer.prompt


def test_reasoning_is_apart_from_the_answer(tmp_path: Path, seed: int) -> None:
    script = {"A": "<think>Let me see.\n</think>\n\nFour."}
    model = make_scripted_model(tmp_path / "model", script, THINKING, seed)
    reply = LLM(model, "none", threads=1).chat(ASKED, PARAMS).reply
    assert reply == Reply("Four.", "Let me see.")
    expected = {"role": "assistant", "content": "Four.", "reasoning_content": "Let me see."}
    assert reply.message == expected


def test_arguments_that_are_no_object_are_kept_as_written() -> None:
    parts = [CallPiece(0, "stop", ""), CallPiece(0, None, '{"is_now": tr')]
    [call] = Reply.of(parts, "key").tool_calls
    assert call == ToolCall(call.id, "stop", None, '{"is_now": tr')
    assert len(call.id) == 9
    assert call.id.isalnum()


@pytest.mark.parametrize("name", ["messages", "self"])
def test_variables_of_the_template_that_are_its_own_are_refused(
    small_model: Path, name: str
) -> None:
    llm = LLM(small_model, "none", threads=1)
    with pytest.raises(FieldError, match=f"chat_template_kwargs: {name} cannot be set"):
        llm.chat(ASKED, PARAMS, chat_template_kwargs={name: []})


@pytest.mark.parametrize("tools", [[{"name": "stop"}], "stop", [print], 3])
def test_tools_of_another_form_are_refused(small_model: Path, tools: Any) -> None:
    llm = LLM(small_model, "none", threads=1)
    with pytest.raises(FieldError, match="is not a function like"):
        llm.chat(ASKED, PARAMS, tools=tools)
