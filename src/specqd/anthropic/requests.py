"""Checks the bodies of Anthropic's requests to /v1/messages, and converts them to chats.

Errors name the field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specqd.config.fields import Fields
from specqd.errors import FieldError, shown
from specqd.openai.options import MOST_INT32, Options, options_of, sampling_params, stops_of
from specqd.openai.requests import (
    ChatRequest,
    answer_split_off,
    effort_variable,
    template_variables,
    thinking_variables,
)
from specqd.openai.tools import (
    MOST_TOOLS,
    kept_tools,
    name_in,
    tool_of,
    uniquely_named,
)
from specqd.text.messages import with_names
from specqd.text.tool_calls import Tool, ToolUse

Json = dict[str, Any]

_COUNTED = {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"}
_COUNTED |= {"cache_control", "chat_template_kwargs"}
_FIELDS = _COUNTED | {"max_tokens", "stop_sequences", "stream", "metadata", "service_tier"}
_FIELDS |= {"temperature", "top_p", "top_k"}
_FIELDS |= {"min_p", "seed", "logit_bias", "cache_salt", "draft"}  # not in Anthropic's API
_ROLES = ("user", "assistant", "system")
_CHOICES = ("auto", "any", "tool", "none")
_WITHOUT_EFFECT = ("cache_control", "eager_input_streaming")
_TOOL_TYPES = (None, "custom")
_LONGEST_NAME = 128  # of a tool
_TOOL = ("type", "name", "description", "input_schema", "strict", *_WITHOUT_EFFECT)
_BLOCKS: Mapping[str, tuple[str, ...]] = {
    "text": ("type", "text", "cache_control", "citations"),
    "thinking": ("type", "thinking", "signature", "cache_control"),
    "tool_use": ("type", "id", "name", "input", "cache_control", "caller"),
    "tool_result": ("type", "tool_use_id", "content", "is_error", "cache_control"),
}
_BY_ROLE = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}


def messages_request(body: object) -> ChatRequest:
    """Reads a body of /v1/messages. Raises RequestError, mostly FieldError."""
    fields = Fields.of(body, _FIELDS)
    most = fields.whole("max_tokens", 1, MOST_INT32)
    if most is None:
        raise fields.wrong("max_tokens", f"a whole number from 1 to {MOST_INT32}")
    params = sampling_params(fields, most, None)
    stops = stops_of(fields, "stop_sequences")
    chat = _chat(fields, options_of(fields))
    chat = replace(chat, params=replace(params, stop=stops, thinking_token_budget=_budget(fields)))
    chat.check_rules()
    return chat


def count_request(body: object) -> ChatRequest:
    """Reads a body of /v1/messages/count_tokens. Raises RequestError, mostly FieldError."""
    fields = Fields.of(body, _COUNTED)
    return _chat(fields, Options(fields.text("model")))


def _chat(fields: Fields, options: Options) -> ChatRequest:
    variables, schema = _output(fields)
    if schema is not None:
        options = replace(options, schema=schema, rules_field="output_config.format")
    fields.object("cache_control")
    messages, answer = with_names(_messages(fields)), None
    if messages[-1]["role"] == "assistant":
        messages, answer = answer_split_off(messages, "messages")
    return ChatRequest(
        messages,
        sampling_params(Fields.of({}, ()), 1, None),
        options,
        _thinking(fields) | variables | template_variables(fields),
        _tool_use(fields),
        answer,
    )


def _thinking(fields: Fields) -> Json:
    """Returns whether the model thinks, as variables of templates."""
    thinking = fields.nested("thinking", ("type", "budget_tokens", "display"))
    if thinking is None:
        return {}
    kind = thinking.text("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise thinking.wrong("type", "enabled, adaptive or disabled")
    return thinking_variables(kind != "disabled")


def _budget(fields: Fields) -> int | None:
    """Returns the most tokens of the reasoning, or None."""
    thinking = fields.nested("thinking", ("type", "budget_tokens", "display"))
    return None if thinking is None else thinking.whole("budget_tokens", 1, MOST_INT32)


def _output(fields: Fields) -> tuple[Json, Json | None]:
    """Reads output_config: variables for the template, and the schema of the text, or None."""
    config = fields.nested("output_config", ("effort", "format"))
    if config is None:
        return {}, None
    variables = effort_variable(config, "effort")
    form = config.nested("format", ("type", "schema"))
    if form is None:
        return variables, None
    if form.get("type") != "json_schema":
        raise form.wrong("type", '"json_schema"')
    schema = form.object("schema")
    if schema is None:
        raise form.wrong("schema", "an object")
    return variables, schema


# --- Tools --------------------------------------------------------------------------------------


def _tool_use(fields: Fields) -> ToolUse | None:
    choice = fields.nested("tool_choice", ("type", "name", "disable_parallel_tool_use"))
    given = fields.get("tools")
    if not given:
        if choice is not None and choice.get("type") not in ("auto", "none"):
            raise FieldError("tool_choice", "needs tools")
        return None
    if not isinstance(given, list) or len(given) > MOST_TOOLS:
        raise fields.wrong("tools", f"a list of 1 to {MOST_TOOLS} tools")
    tools = uniquely_named(_tool(name, each) for name, each in kept_tools(given, _TOOL_TYPES))
    if not tools and (choice is None or choice.get("type") in ("auto", "none")):
        return None
    if not tools:
        raise FieldError("tool_choice", "needs tools that the client runs itself")
    if choice is None:
        return ToolUse(tools)
    kind = choice.get("type")
    if kind not in _CHOICES:
        raise choice.wrong("type", f"one of {', '.join(_CHOICES)}")
    if kind == "none":
        return None
    is_parallel = not choice.flag("disable_parallel_tool_use")
    if kind == "tool":
        named = name_in(choice, [tool.name for tool in tools])
        return ToolUse(tools, frozenset({named}), must_call=True, is_parallel=False)
    return ToolUse(tools, must_call=kind == "any", is_parallel=is_parallel)


def _tool(name: str, tool: object) -> Tool:
    if isinstance(tool, Mapping) and tool.get("type") not in _TOOL_TYPES:
        kind = shown(tool.get("type"))
        raise FieldError(name, f"is of type {kind}; only tools that the client runs are supported")
    return tool_of(Fields.of(tool, _TOOL, name), "input_schema", _LONGEST_NAME)


# --- Messages -----------------------------------------------------------------------------------


def _messages(fields: Fields) -> list[Json]:
    given = fields.get("messages")
    if not isinstance(given, list) or not given:
        raise fields.wrong("messages", "a list of at least one message")
    messages: list[Json] = []
    if fields.get("system") is not None:
        content = _text("system", fields.get("system"))
        messages.append({"role": "system", "content": content})
    for i, message in enumerate(given):
        for each in _converted(f"messages[{i}]", message):
            if messages and messages[-1]["role"] == each["role"] != "tool":
                messages[-1] = _joined(messages[-1], each)
            else:
                messages.append(each)
    return messages


def _joined(earlier: Json, later: Json) -> Json:
    """Two turns of one role as one: the API combines them, and many templates take no others."""
    joined = earlier | later
    for name in {"content", "reasoning_content"} & set(joined):
        joined[name] = "\n".join(turn[name] for turn in (earlier, later) if turn.get(name))
    if "tool_calls" in joined:
        joined["tool_calls"] = [*earlier.get("tool_calls", ()), *later.get("tool_calls", ())]
    return joined


def _converted(name: str, message: object) -> list[Json]:
    """Converts a message to messages of a chat, where each result of a tool is one of its own."""
    fields = Fields.of(message, ("role", "content"), name)
    role, content = fields.text("role"), fields.get("content")
    if role not in _ROLES:
        raise fields.wrong("role", f"one of {', '.join(_ROLES)}")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise fields.wrong("content", "a string or a list of blocks")
    where = f"{name}.content"
    blocks = [_block(f"{where}[{i}]", each, _BY_ROLE[role]) for i, each in enumerate(content)]
    if role == "assistant":
        return [_turn(blocks)]
    messages: list[Json] = []
    for kind, block in blocks:
        if kind == "tool_result":
            messages.append(_result(block))
        elif messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n{block.needed_text('text')}"
        else:
            messages.append({"role": role, "content": block.needed_text("text")})
    return messages or [{"role": role, "content": ""}]


def _block(name: str, block: object, kinds: Sequence[str]) -> tuple[str, Fields]:
    kind = block.get("type") if isinstance(block, Mapping) else block
    if not isinstance(kind, str) or kind not in kinds:
        raise FieldError(name, f"is {shown(kind)}; known here: {', '.join(kinds)}; leave it out")
    return kind, Fields.of(block, _BLOCKS[kind], name)


def _turn(blocks: Sequence[tuple[str, Fields]]) -> Json:
    """Joins the blocks of an assistant's message."""
    texts = [block.needed_text("text") for kind, block in blocks if kind == "text"]
    thoughts = [block.needed_text("thinking") for kind, block in blocks if kind == "thinking"]
    calls = [_call(block) for kind, block in blocks if kind == "tool_use"]
    turn: Json = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        turn["reasoning_content"] = "\n".join(thoughts)
    return turn | ({"tool_calls": calls} if calls else {})


def _call(block: Fields) -> Json:
    function = {"name": block.needed_text("name"), "arguments": block.object("input") or {}}
    return {"id": block.needed_text("id"), "type": "function", "function": function}


def _result(block: Fields) -> Json:
    content = block.get("content")
    text = "" if content is None else _text(f"{block.within}content", content)
    return {"role": "tool", "tool_call_id": block.needed_text("tool_use_id"), "content": text}


def _text(name: str, content: object) -> str:
    """Returns a string as it is, or the joined texts of a list of blocks."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise FieldError(name, f"{shown(content)} is not a string or a list of blocks")
    blocks = (_block(f"{name}[{i}]", each, ("text",)) for i, each in enumerate(content))
    return "\n".join(block.needed_text("text") for _, block in blocks)
