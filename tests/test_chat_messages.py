"""`LLM.chat` reads the messages of a chat as the server does."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from specqd import LLM, SamplingParams
from specqd.errors import FieldError
from specqd.llm.chats import Chat
from specqd.openai.requests import chat_request
from specqd.text.tokenizer import Tokenizer
from support.openai_client import CHAT, closed, function
from support.random_models import write_tokenizer
from support.refusals import refused
from support.scripted_models import CALLING, HERMES, LLAMA, make_scripted_model
from support.served import TEMPLATE, add_template, serving

NAMING = HERMES.replace("[{{ m.role }}]", "[{{ m.role }} {{ m.name }}]")
TOOLS = [
    function("weather", description="Of a city.", parameters=closed(city={"type": "string"})),
    function("stop", parameters=closed()),
]
ASKED = {"role": "user", "content": "Go on."}


def texts(*each: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in each]


def called(arguments: object) -> list[dict[str, Any]]:
    """A turn that calls a tool, as OpenAI's clients send it back, and its result."""
    call = {"id": "c1", **function("weather", arguments=arguments)}
    return [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": texts("7", "degrees")},
    ]


CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one part": [{"role": "user", "content": texts("Go on.")}],
    "parts": [
        {"role": "developer", "content": texts("Be brief.", "Be kind.")},
        {"role": "user", "content": texts("Go", "on.")},
        {"role": "assistant", "content": texts("Where", "to?")},
        ASKED,
    ],
    "written arguments": called('{"city": "Zürich", "days": [1, 2.5, null]}'),
    "arguments": called({"city": "Zürich"}),
    "empty arguments": called(""),
    "cut arguments": called('{"city": "Z'),
    "a list as arguments": called("[1]"),
    "half a character in arguments": called('{"city": "\\ud83d"}'),
}


def tokenizer_of(directory: Path, template: str) -> Tokenizer:
    write_tokenizer(directory, 320)
    return Tokenizer.open(add_template(directory, template))


def prompt_of(tokenizer: Tokenizer, messages: object, **variables: Any) -> str:
    chat = Chat.of(tokenizer, messages, None, variables)
    return tokenizer.decode(chat.prompt, skip_special_tokens=False)


@pytest.mark.parametrize("template", [NAMING, LLAMA, TEMPLATE], ids=["hermes", "llama", "plain"])
@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_prompts_are_those_of_the_server(
    tmp_path: Path, template: str, messages: list[dict[str, Any]]
) -> None:
    tokenizer = tokenizer_of(tmp_path, template)
    for tools in ({}, {"tools": TOOLS}):
        [ids] = chat_request({"messages": messages, **tools}).encoded(tokenizer)
        assert Chat.of(tokenizer, messages, None, tools).prompt == ids


def test_parts_are_one_text_and_written_arguments_an_object(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, NAMING)
    text = prompt_of(tokenizer, CONVERSATIONS["parts"])
    assert text.startswith("[system ]Be brief.\nBe kind.[user ]Go\non.[assistant ]Where\nto?")
    text = prompt_of(tokenizer, CONVERSATIONS["written arguments"])
    call = '{"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2.5, null]}}'
    assert f"<tool_call>\n{call}\n</tool_call>[tool weather]7\ndegrees[assistant]" in text
    assert '"arguments": "[1]"}' in prompt_of(tokenizer, CONVERSATIONS["a list as arguments"])


def test_any_mapping_and_any_sequence_is_read(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, NAMING)

    def frozen(value: Any) -> Any:
        if isinstance(value, dict):
            return MappingProxyType({name: frozen(each) for name, each in value.items()})
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    for messages in CONVERSATIONS.values():
        expected = prompt_of(tokenizer, messages, tools=TOOLS)
        assert prompt_of(tokenizer, frozen(messages), tools=TOOLS) == expected


def test_reading_leaves_the_callers_messages_as_they_are(tmp_path: Path) -> None:
    messages = called('{"city": "Bern"}')
    prompt_of(tokenizer_of(tmp_path, HERMES), messages, tools=TOOLS)
    assert messages == called('{"city": "Bern"}')


@pytest.mark.parametrize("template", [HERMES, TEMPLATE], ids=["hermes", "plain"])
@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("messages[1]", "Hi"),
        ("messages[1].role", {"content": "Hi"}),
        ("messages[1].content", {"role": "user", "content": 3}),
        ("messages[1].content", {"role": "user", "content": b"Hi"}),
        ("messages[1].content", {"role": "tool"}),
        ("messages[1].content", {"role": "assistant"}),
        ("messages[1].content[0]", {"role": "user", "content": ["Hi"]}),
        ("messages[1].content[0]", {"role": "user", "content": [{"type": "image_url"}]}),
        ("messages[1].content[0].text", {"role": "user", "content": [{"type": "text"}]}),
        ("messages[1].tool_calls", {"role": "assistant", "tool_calls": "weather"}),
        ("messages[1].tool_calls", {"role": "assistant", "tool_calls": [3]}),
        ("messages[1].tool_calls[0]", {"role": "assistant", "tool_calls": [{"name": "weather"}]}),
    ],
)
def test_the_error_for_a_bad_message_names_its_field(
    tmp_path: Path, template: str, field: str, message: object
) -> None:
    tokenizer = tokenizer_of(tmp_path, template)
    for tools in ({}, {"tools": TOOLS}):
        said = refused(FieldError, Chat.of, tokenizer, [ASKED, message], None, tools)
        assert said.startswith(f"{field}: ")


def test_answers_are_those_of_the_server(tmp_path: Path, seed: int) -> None:
    model = make_scripted_model(tmp_path / "model", CALLING, HERMES, seed)
    llm = LLM(model, "none", threads=1)
    params = SamplingParams(max_tokens=None, temperature=0)
    with serving(str(model), "--draft", "none") as served:
        for script, messages in zip("ABCABCAB", CONVERSATIONS.values(), strict=True):
            body = {"messages": messages, "tools": TOOLS, "temperature": 0}
            body |= {"chat_template_kwargs": {"script": script}, "return_token_ids": True}
            reply = served.ask("POST", CHAT, body)
            assert reply.status == 200, reply.content
            result = llm.chat(messages, params, tools=TOOLS, script=script)
            [choice] = reply.content["choices"]
            assert result.prompt_token_ids == choice["prompt_token_ids"]
            assert result.tokens == choice["token_ids"]
