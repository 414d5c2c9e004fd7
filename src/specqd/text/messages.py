"""Reads the messages of chats, which HTTP and Python share, into the form that templates expect.

Errors name the field. Knows no templates and no tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from specqd.config.fields import Fields
from specqd.errors import FieldError, RequestError, shown
from specqd.text.chat_template import role_of
from specqd.text.json_text import check_characters, read_json

Message = Mapping[str, Any]

_WITH_CONTENT = ("system", "user", "tool")  # roles; an assistant may call tools without content


def read_messages(messages: Sequence[object]) -> tuple[Message, ...]:
    """Returns messages with one text each, roles that all templates know, arguments of calls as
    objects, and results with the names of their functions. Other members are passed on.

    Raises FieldError.
    """
    return with_names([_message(f"messages[{i}]", each) for i, each in enumerate(messages)])


def _message(name: str, message: object) -> Message:
    if not isinstance(message, Mapping):
        raise FieldError(name, f"{shown(message)} is not an object with a role")
    role = role_of(name, message)
    if message.get("tool_calls") is not None:
        message = {**message, "tool_calls": calls_of(f"{name}.tool_calls", message["tool_calls"])}
    content = message.get("content")
    if _is_list(content):
        texts = [_part(f"{name}.content[{i}]", part) for i, part in enumerate(content)]
        return {**message, "role": role, "content": "\n".join(texts)}
    if content is not None and not isinstance(content, str):
        raise FieldError(f"{name}.content", f"{shown(content)} is not a string or a list of parts")
    if content is None and role in _WITH_CONTENT:
        raise FieldError(f"{name}.content", "is missing; a string is needed")
    return {**message, "role": role}


def _part(name: str, part: object) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else part
        raise FieldError(
            name, f'is {shown(kind)}; only {{"type": "text", "text": ...}} is supported'
        )
    return Fields.of(part, ("type", "text"), name).needed_text("text")


def with_names(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Adds the function's name to each result of a call.

    Some templates need it, but clients send only the call's id. Of calls with the same id, the
    latest one before the result counts.
    """
    names: dict[str, str] = {}
    named: list[Message] = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            if call.get("id") is not None:
                names[str(call["id"])] = call["function"]["name"]
        name = names.get(str(message.get("tool_call_id")))
        is_result = message["role"] == "tool" and name is not None
        named.append({"name": name, **message} if is_result else message)
    return tuple(named)


def calls_of(name: str, calls: object) -> list[dict[str, Any]]:
    """Returns the calls of an assistant's message as templates expect them. Raises FieldError.

    Clients send arguments as a string of JSON, templates expect an object. A string that is not a
    JSON object, or has a lone surrogate, stays as it is: a model may have written it.
    """
    if not _is_list(calls) or not all(isinstance(call, Mapping) for call in calls):
        raise FieldError(name, f"{shown(calls)} is not a list of calls")
    return [_call(f"{name}[{i}]", call) for i, call in enumerate(calls)]


def _call(name: str, call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise FieldError(name, "a call with a function's name and arguments is needed")
    arguments = function.get("arguments")
    try:
        value = arguments
        if isinstance(arguments, str):
            value = read_json(arguments or "{}")  # some clients write so that there are none
            check_characters(value, arguments)
    except (ValueError, RecursionError, RequestError):
        value = arguments
    kept = value if isinstance(value, Mapping) else arguments
    return {**call, "function": {**function, "arguments": kept}}


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
