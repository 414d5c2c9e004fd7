"""Renders messages with a model's chat template.

Owns a template's variables, and what goes wrong. Knows nothing of tokens, nor of Jinja:
`template_process` renders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from specqd.errors import ChatTemplateError, RequestError
from specqd.text.template_process import (
    CPU_SECONDS,
    TemplateFailureError,
    TemplateLimitError,
    TemplateRefusalError,
    template_process,
)

REASONING = ("reasoning_content", "thinking", "reasoning")  # synonyms, the usual one first


class ChatTemplate:
    """One template, compiled when first rendered: a broken one must not prevent plain prompts.

    `origin` names it in errors. `now` and `cpu_seconds` are parameters for tests.
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
        """The text of `messages`.

        Raises RequestError if the template rejects them, and ChatTemplateError if it fails or takes
        more than two seconds of processor time, 512 MiB of memory, or 4 MiB of text (both sizes
        grow with the input).
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
            raise RequestError(f"the chat template refuses: {error}") from error
        except TemplateLimitError as error:
            raise self._failure(f"is stopped because {error}") from error
        except TemplateFailureError as error:
            raise self._failure(f"fails: {error}") from error

    def _failure(self, what: str) -> ChatTemplateError:
        problem = f"the chat template {what}; use plain prompts or another template"
        return ChatTemplateError(self._origin, problem)


def visible_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages for a template: plain data, no None, reasoning under its usual names.

    Templates handle a missing key, but print `content: null` as "None".
    """
    if not messages:
        raise RequestError("messages: there is none; give at least one")
    visible = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise RequestError(f"{where}: a {type(message).__name__}; give a mapping with a role")
        plain = plain_data(
            {key: value for key, value in message.items() if value is not None}, where
        )
        reasoning = next((plain[name] for name in REASONING if name in plain), None)
        if reasoning is not None:
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        visible.append(plain)
    return visible


def plain_data(value: Any, where: str, depth: int = 0) -> Any:
    """A copy of `value` in plain JSON types: a template must not get objects with own methods."""
    if depth > 60:
        raise RequestError(f"{where}: nested too deeply; make it flatter")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value) if type(value) is not kind else value
    if isinstance(value, Mapping):
        if any(isinstance(key, tuple) for key in value):
            raise RequestError(f"{where}: a key is a tuple; give a text")
        return {
            plain_data(key, where, depth + 1): plain_data(item, where, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain_data(item, where, depth + 1) for item in value]
    raise RequestError(
        f"{where}: holds a {type(value).__name__}; give text, numbers, lists, mappings"
    )
