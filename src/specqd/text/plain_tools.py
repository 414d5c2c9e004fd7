"""Describes tools, calls and their results in plain messages.

For chat templates that have no form of their own for them. The form of calls is that of Hermes,
which many models have seen in training. Knows messages. Knows no templates and no tokens.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from specqd.text.messages import Message

Place = Literal["system", "user"]  # the message that describes the tools

_INSTRUCTION = """\
You can call functions. To call one, write its name and its arguments as JSON between the tags \
<tool_call> and </tool_call>, as in this example:
<tool_call>
{"name": "function_name", "arguments": {"parameter": "value"}}
</tool_call>
For several calls, repeat this. The results come between <tool_response> and </tool_response>. \
If no function helps, answer as usual, without a call. The functions, as JSON, one per line:
"""


def in_messages(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], place: Place
) -> list[Message]:
    """Returns the conversation in plain messages of the roles system, user and assistant.

    tools: as chat templates expect them; described at the beginning. place: "user" for templates
    that show no system message; the first user message then begins with it.
    """
    plain = [_plain(message) for message in messages]
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    if described:
        plain.insert(0, {"role": "system", "content": _INSTRUCTION + described})
        if len(plain) > 1 and plain[1]["role"] == "system":  # the client's own words come first
            plain[0], plain[1] = plain[1], plain[0]
    merged: list[dict[str, Any]] = []
    for message in plain:
        if place == "user" and message["role"] == "system":
            message = {"role": "user", "content": message["content"]}
        if merged and message["role"] == merged[-1]["role"] != "assistant":
            merged[-1]["content"] += f"\n\n{message['content']}"
        else:
            merged.append(message)
    return list(merged)


def _plain(message: Message) -> dict[str, Any]:
    """Returns a message without calls and without the role of tools."""
    if message["role"] == "tool":
        content = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
        return {"role": "user", "content": content}
    plain = {name: value for name, value in message.items() if name != "tool_calls"}
    calls = [_call(call["function"]) for call in message.get("tool_calls") or ()]
    plain["content"] = "\n".join([*filter(None, [message.get("content")]), *calls])
    return plain


def _call(function: Mapping[str, Any]) -> str:
    """Returns the text of a call, as the model writes it."""
    call = {"name": function["name"], "arguments": function.get("arguments")}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
