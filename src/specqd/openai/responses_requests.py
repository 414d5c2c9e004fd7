"""Checks the bodies of OpenAI's requests to /v1/responses, and converts them to chats.

The server stores nothing: `input` must have the whole conversation. Errors name the field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specqd.config.fields import Fields
from specqd.errors import FieldError, shown
from specqd.openai import tools as openai_tools
from specqd.openai.options import (
    MOST_INT32,
    SAMPLING,
    WITHOUT_EFFECT,
    Options,
    flat_schema,
    options_of,
    sampling_params,
)
from specqd.openai.requests import ChatRequest, effort_variable, template_variables
from specqd.sampling import Defaults, request_sampling
from specqd.text.messages import calls_of, with_names
from specqd.text.tool_calls import ToolUse

Json = dict[str, Any]

_STORED = ("previous_response_id", "conversation", "prompt")
_TEXTS = ("prompt_cache_retention",)  # strings without effect
_FIELDS = {*SAMPLING, *WITHOUT_EFFECT, *_STORED, *_TEXTS, *openai_tools.FIELDS}
_FIELDS |= {"model", "input", "instructions", "max_output_tokens", "max_tool_calls", "text"}
_FIELDS |= {"reasoning", "include", "truncation", "background", "stream", "stream_options"}
_FIELDS |= {"metadata", "client_metadata", "store", "top_k", "logit_bias", "cache_salt", "draft"}
_FIELDS |= {"chat_template_kwargs"}
_INCLUDED = ("reasoning.encrypted_content",)  # accepted, but reasoning is never encrypted
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_ITEMS: Mapping[str, tuple[str, ...]] = {
    "message": ("type", "role", "content", "id", "status", "phase"),
    "function_call": ("type", "call_id", "name", "arguments", "id", "status"),
    "function_call_output": ("type", "call_id", "output", "id", "status"),
    "reasoning": ("type", "id", "summary", "content", "encrypted_content", "status"),
}
_TEXT_PARTS = ("input_text", "output_text", "text")


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A request as a chat, with its original fields, which the answer repeats."""

    chat: ChatRequest
    given: Mapping[str, Any]  # fields of the body

    def echoed(self, defaults: Defaults) -> Json:
        """Returns the members of the answer that repeat the request, with the defaults applied."""
        given, params = self.given, request_sampling(self.chat.params, defaults)
        text, use = given.get("text") or {}, self.chat.tool_use
        reasoning = {"effort": None, "summary": None}
        return {
            "instructions": given.get("instructions"),
            "max_output_tokens": params.max_tokens,
            "metadata": given.get("metadata") or {},
            "parallel_tool_calls": use.is_parallel if use is not None else True,
            "reasoning": reasoning | dict(given.get("reasoning") or {}),
            "temperature": params.temperature,
            "text": {"format": {"type": "text"}} | text,
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools") or [],
            "top_p": params.top_p,
        }


def responses_request(body: object) -> ResponsesRequest:
    """Reads a body of /v1/responses. Raises RequestError, mostly FieldError."""
    fields = Fields.of(body, _FIELDS)
    _check_stateless(fields)
    most = fields.whole("max_output_tokens", 1, MOST_INT32)
    options = _with_schema(options_of(fields), fields)
    request = ChatRequest(
        with_names(_messages(fields)),
        sampling_params(fields, most, None),
        options,
        _reasoning(fields) | template_variables(fields),
        _tool_use(fields),
    )
    request.check_rules()
    return ResponsesRequest(request, fields.values)


def _check_stateless(fields: Fields) -> None:
    for name in _STORED:
        if fields.get(name) is not None:
            raise FieldError(name, "nothing is stored; send the whole conversation in input")
    if fields.flag("background"):
        raise FieldError("background", "this server stores no answers to fetch later; leave it out")
    if fields.text("truncation") not in (None, "disabled"):
        raise fields.wrong("truncation", '"disabled"')
    included = fields.get("include") or []
    if not isinstance(included, list) or not all(each in _INCLUDED for each in included):
        raise fields.wrong("include", f"a list of {', '.join(_INCLUDED)}")
    for name in _TEXTS:
        fields.text(name)
    fields.object("client_metadata")
    fields.whole("max_tool_calls", 1, MOST_INT32)  # limits tools run by the server, which has none


def _tool_use(fields: Fields) -> ToolUse | None:
    """Reads the tools as in chats. Without tools, the other fields have no effect."""
    if fields.get("tools"):
        return openai_tools.tool_use(fields, openai_tools.FLAT)
    fields.flag("parallel_tool_calls")
    if fields.get("tool_choice") not in (None, "none", "auto"):
        raise FieldError("tool_choice", "needs tools")
    return None


def _reasoning(fields: Fields) -> Json:
    reasoning = fields.nested("reasoning", ("effort", "summary", "generate_summary"))
    if reasoning is None:
        return {}
    reasoning.text("summary")
    return effort_variable(reasoning, "effort")


def _with_schema(options: Options, fields: Fields) -> Options:
    text = fields.nested("text", ("format", "verbosity"))
    if text is None:
        return options
    text.text("verbosity")
    form = text.nested("format", ("type", "name", "description", "schema", "strict"))
    if form is None:
        return options
    return replace(options, schema=flat_schema(form), rules_field="text.format")


# --- Items of the input -------------------------------------------------------------------------


def _messages(fields: Fields) -> list[Json]:
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise fields.wrong("input", "a string, or a list of at least one item")
    instructions = fields.text("instructions")
    messages = [] if instructions is None else [{"role": "system", "content": instructions}]
    for i, item in enumerate(items):
        _add(messages, _message(f"input[{i}]", item))
    return messages


def _message(name: str, item: object) -> Json:
    """Converts an item to a message of a chat. `_add` joins adjacent ones of the assistant."""
    if not isinstance(item, Mapping):
        raise FieldError(name, f"{shown(item)} is not an item")
    kind = item.get("type", "message")
    if not isinstance(kind, str) or kind not in _ITEMS:
        known = ", ".join(_ITEMS)
        raise FieldError(name, f"is of type {shown(kind)}; known: {known}; leave it out")
    fields = Fields.of(item, _ITEMS[kind], name)
    if kind == "reasoning":
        parts = fields.get("content") or fields.get("summary") or []
        text = _text(f"{name}.content", parts, ("reasoning_text", "summary_text"))
        return {"role": "assistant", "reasoning_content": text}
    if kind == "message":
        role = fields.text("role")
        if role not in _ROLES:
            raise fields.wrong("role", f"one of {', '.join(_ROLES)}")
        content = _text(f"{name}.content", fields.get("content"), _TEXT_PARTS)
        return {"role": _ROLES[role], "content": content}
    call_id = fields.needed_text("call_id")
    if kind == "function_call":
        function = {"name": fields.text("name"), "arguments": fields.text("arguments") or ""}
        call = {"id": call_id, "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": calls_of(name, [call])}
    output = _text(f"{name}.output", fields.get("output"), _TEXT_PARTS)
    return {"role": "tool", "tool_call_id": call_id, "content": output}


def _text(name: str, content: object, kinds: Sequence[str]) -> str:
    """Returns a string as it is, or the joined texts of a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise FieldError(name, f"{shown(content)} is not a string or a list of parts")
    return "\n".join(_part(f"{name}[{i}]", part, kinds) for i, part in enumerate(content))


def _part(name: str, part: object, kinds: Sequence[str]) -> str:
    if not isinstance(part, Mapping) or part.get("type") not in kinds:
        kind = part.get("type") if isinstance(part, Mapping) else part
        raise FieldError(name, f"is {shown(kind)}; only text is supported")
    known = ("type", "text", "annotations", "logprobs")
    return Fields.of(part, known, name).needed_text("text")


def _add(messages: list[Json], new: Json) -> None:
    """Appends a message, or joins it with the last one.

    Joins system messages at the start, of which templates expect one, and what the assistant wrote
    in one turn.
    """
    last = messages[-1] if messages else None
    role = new["role"]
    is_start = role == "system" and len(messages) == 1
    if last is None or last["role"] != role or not (is_start or role == "assistant"):
        messages.append({"content": ""} | new if role == "assistant" else new)
        return
    for member, value in new.items():
        before = last.get(member)
        if member == "tool_calls":
            last[member] = [*(before or ()), *value]
        elif member != "role":
            last[member] = f"{before}\n{value}" if before else value
