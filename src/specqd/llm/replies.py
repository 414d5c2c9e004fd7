"""What a chat's answer says: reasoning, content and calls of tools."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from specqd.text.parts import Part, Thought

_ID_LETTERS = 9  # Mistral's templates require this length


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model calls. `arguments` is None if the model's text of them, `written`,
    is not a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    written: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The parts of one answer."""

    content: str
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    @classmethod
    def of(cls, parts: Iterable[Part], key: str) -> "Reply":
        """key: what the ids of calls depend on."""
        content, reasoning, written = "", "", list[tuple[str, list[str]]]()
        for part in parts:
            if isinstance(part, str):
                content += part
            elif isinstance(part, Thought):
                reasoning += part.text
            else:
                if part.index == len(written):
                    written.append((part.name or "", []))
                written[part.index][1].append(part.arguments)
        calls = [
            _call(name, "".join(pieces), f"{key}.{i}") for i, (name, pieces) in enumerate(written)
        ]
        return cls(content, reasoning, calls)

    @property
    def message(self) -> dict[str, Any]:
        """The assistant's message for the next call of `chat`. The results of its calls follow it,
        each as `{"role": "tool", "tool_call_id": call.id, "name": call.name, "content": ...}`."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments or {}},
                }
                for call in self.tool_calls
            ]
        return message


def _call(name: str, written: str, key: str) -> ToolCall:
    try:
        arguments = json.loads(written)
    except (ValueError, RecursionError):
        arguments = None
    call_id = sha256(key.encode()).hexdigest()[:_ID_LETTERS]
    return ToolCall(call_id, name, arguments if isinstance(arguments, dict) else None, written)
