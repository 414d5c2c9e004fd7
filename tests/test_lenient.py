"""Lenient requests: unknown fields are dropped and reported, and wrong ones are still rejected."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specqd.anthropic.requests import messages_request
from specqd.config.fields import LenientObject
from specqd.errors import FieldError
from specqd.openai.requests import chat_request, completion_request
from specqd.openai.responses_requests import responses_request
from support.openai_client import CHAT, COMPLETIONS, chosen, function
from support.refusals import refused
from support.served import serving

TURN = [{"role": "user", "content": "Hi"}]
SEARCH = {"type": "web_search_preview"}
FLAT = {"type": "function", "name": "f"}
CUSTOM = {"name": "f", "input_schema": {"type": "object"}}
Parse = Callable[[object], Any]
CHATS: list[tuple[Parse, dict[str, Any]]] = [
    (chat_request, {"messages": TURN}),
    (responses_request, {"input": "Hi"}),
    (messages_request, {"messages": TURN, "max_tokens": 3}),
]


def lenient(body: object) -> tuple[object, list[str]]:
    """Returns the body as a lenient server reads it, and a list for the names it reports."""
    reported: list[str] = []
    hook = lambda members: LenientObject(members, reported.append)  # noqa: E731
    return json.loads(json.dumps(body), object_hook=hook), reported


@pytest.mark.parametrize(("parse", "given"), [*CHATS, (completion_request, {"prompt": "Hi"})])
def test_an_unknown_field_is_dropped_and_reported(parse: Parse, given: dict[str, Any]) -> None:
    body, reported = lenient(given | {"wonders": [1], "more": {"a": 1}})
    assert parse(body) == parse(given)
    assert reported == ["wonders", "more"]
    refused(FieldError, parse, given | {"wonders": [1]})


def test_an_unknown_field_within_an_object_is_reported_by_its_full_name() -> None:
    given = {"messages": TURN, "stream": True, "stream_options": {"include_usage": True}}
    more = given | {"stream_options": {"include_usage": True, "wonders": 1}}
    body, reported = lenient(more)
    assert chat_request(body) == chat_request(given)
    assert reported == ["stream_options.wonders"]


@pytest.mark.parametrize(
    ("parse", "given", "tool"),
    [
        (*CHATS[0], function("f")),
        (*CHATS[1], FLAT),
        (*CHATS[2], CUSTOM),
    ],
)
def test_tools_of_other_types_are_dropped(parse: Parse, given: Any, tool: Any) -> None:
    body, reported = lenient(given | {"tools": [SEARCH, tool]})
    read, expected = parse(body), parse(given | {"tools": [tool]})
    assert getattr(read, "chat", read) == getattr(expected, "chat", expected)
    assert reported == ["tools[0] of type 'web_search_preview'"]
    only, _ = lenient(given | {"tools": [SEARCH]})
    nothing = parse(only)
    assert getattr(nothing, "chat", nothing).tool_use is None


@pytest.mark.parametrize(
    ("parse", "given", "choice"),
    [
        (*CHATS[0], "required"),
        (*CHATS[0], chosen("f")),
        (*CHATS[1], "required"),
        (*CHATS[2], {"type": "any"}),
    ],
)
def test_a_call_of_a_dropped_tool_cannot_be_required(parse: Parse, given: Any, choice: Any) -> None:
    body, _ = lenient(given | {"tools": [SEARCH], "tool_choice": choice})
    assert "tool_choice: " in refused(FieldError, parse, body)


@pytest.mark.parametrize(
    "wrong", [{"temperature": "hot"}, {"messages": [{"role": "user", "content": [SEARCH]}]}]
)
def test_known_fields_with_wrong_values_are_still_rejected(wrong: dict[str, Any]) -> None:
    body, _ = lenient({"messages": TURN} | wrong)
    refused(FieldError, chat_request, body)


def test_the_server_is_lenient_only_with_its_option(chat_model: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    chat = {"messages": TURN, "tools": [SEARCH], "thinking_budget": {"of": 1}, "seed": 3}
    chat |= {"max_tokens": 60, "response_format": form | {"extra": 1}}
    with serving(str(chat_model), "--lenient") as served:
        for wonder in range(3):
            body = {"prompt": "x", "wonders": wonder, "max_tokens": 1}
            assert served.ask("POST", COMPLETIONS, body).status == 200
        assert served.ask("POST", CHAT, chat).status == 200
        wrong = served.ask("POST", COMPLETIONS, {"prompt": "x", "suffix": "y"})
        assert (wrong.status, wrong.error["param"]) == (400, "suffix")
    assert served.process.stderr is not None
    log = served.process.stderr.read()
    for name in ("wonders", "thinking_budget", "response_format.extra", "tools[] of type"):
        assert log.count(f"ignored an unknown field of a request: {name}") == 1, log
