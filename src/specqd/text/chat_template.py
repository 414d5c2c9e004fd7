"""Renders messages with a model's chat template.

Owns a template's variables and its errors. Knows nothing of tokens or Jinja: `template_process`
renders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from specqd.errors import ChatTemplateError, FieldError, RequestError, shown
from specqd.text.template_process import (
    CPU_SECONDS,
    TemplateFailureError,
    TemplateLimitError,
    TemplateRefusalError,
    template_process,
)

ROLES = ("system", "developer", "user", "assistant", "tool")
REASONING = ("reasoning_content", "thinking", "reasoning")  # synonyms; the first is the usual one


class ChatTemplate:
    """One template, compiled when first rendered, so that a broken one only prevents chats.

    `origin` names it in errors. Tests set `now` and `cpu_seconds`.
    """

    def __init__(
        self,
        source: str,
        origin: str,
        *,
        now: Callable[[], datetime] = datetime.now,
        cpu_seconds: float = CPU_SECONDS,
    ) -> None:
        self.source = source
        self._origin = origin
        self._now = now
        self._cpu_seconds = cpu_seconds

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Renders `messages` to the text of a prompt.

        Raises RequestError if the template rejects the messages. Raises ChatTemplateError if it
        fails or needs more than two seconds of processor time, 512 MiB of memory or 4 MiB of text.
        Longer messages raise the two limits in bytes.
        """
        seen = {
            **plain_data(variables or {}, "template variables"),
            "messages": visible_messages(messages),
            "tools": plain_data(tools, "tools"),
            "documents": plain_data(documents, "documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return template_process().render(self.source, seen, self._now(), self._cpu_seconds)
        except TemplateRefusalError as error:
            raise RequestError(f"the chat template rejects this request: {error}") from error
        except TemplateLimitError as error:
            raise self._failure(f"is stopped because {error}") from error
        except TemplateFailureError as error:
            raise self._failure(f"fails: {error}") from error

    def _failure(self, what: str) -> ChatTemplateError:
        problem = f"the chat template {what}; use plain prompts or another template"
        return ChatTemplateError(self._origin, problem)


def role_of(where: str, message: Mapping[str, Any]) -> str:
    """Returns the role that templates know: a developer's message is a system message.

    Raises FieldError for an unknown role: most templates would print it, but no model knows it.
    where: names the message in the error.
    """
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        found = "is missing" if role is None else f"is {shown(role)}"
        raise FieldError(f"{where}.role", f"{found}; use one of {', '.join(ROLES)}")
    return "system" if role == "developer" else role


def visible_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages as plain data without None, with reasoning under its usual names.

    Templates handle a missing key, but print `content: null` as "None". A message with calls alone
    gets an empty content. Raises RequestError for messages that are not mappings of plain data,
    FieldError for an unknown role.
    """
    if not messages:
        raise RequestError("messages: the list is empty; give at least one message")
    visible = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise RequestError(
                f"{where}: is a {type(message).__name__}; give a mapping with a role"
            )
        plain = plain_data(
            {key: value for key, value in message.items() if value is not None}, where
        )
        plain["role"] = role_of(where, plain)
        if plain.get("tool_calls"):  # some templates read the content of any message
            plain.setdefault("content", "")
        reasoning = next((plain[name] for name in REASONING if name in plain), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        visible.append(plain)
    return visible


def plain_data(value: Any, where: str, depth: int = 0) -> Any:
    """Copies `value` in plain JSON types, so that a template gets no methods of other classes.

    Raises RequestError, which names `where`, for other types.
    """
    if depth > 60:
        raise RequestError(f"{where}: is nested more than 60 levels deep; make it flatter")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value) if type(value) is not kind else value
    if isinstance(value, Mapping):
        if any(isinstance(key, tuple) for key in value):
            raise RequestError(f"{where}: a key is a tuple; use a string")
        return {
            plain_data(key, where, depth + 1): plain_data(item, where, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain_data(item, where, depth + 1) for item in value]
    raise RequestError(
        f"{where}: holds a {type(value).__name__}; use strings, numbers, lists and mappings"
    )
