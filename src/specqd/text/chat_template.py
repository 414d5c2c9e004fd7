"""Renders messages with chat templates in Hugging Face's dialect of Jinja.

Owns the dialect (its globals, `tojson`, `{% generation %}`) and a template's variables. Knows
nothing of tokens. A template comes with a model and is untrusted; `template_sandbox` bounds it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import CodeType
from typing import Any

import jinja2.ext
from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.utils import pass_environment

from specqd.errors import ChatTemplateError, RequestError
from specqd.text.template_budget import Budget, TemplateLimitError
from specqd.text.template_sandbox import BudgetedEnvironment

LONGEST_SOURCE = 1 << 16  # characters; twice the longest templates in use
LONGEST_MESSAGE = 500  # characters of an error
DEEPEST_INDENT = 64  # columns, of one level of `tojson`
REASONING = ("reasoning_content", "thinking", "reasoning")  # synonyms, the usual one first


class RaisedByTemplateError(TemplateError):
    """The template called `raise_exception`: it rejects these messages."""


class GenerationBlock(Extension):
    """`{% generation %}` marks text for training; rendering treats it as a scope."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplate:
    """One template, compiled when first rendered: a broken one must not prevent plain prompts.

    `origin` names it in errors. `now` and `clock` (seconds) are parameters for tests.
    """

    def __init__(
        self,
        source: str,
        origin: str,
        *,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.source = source
        self._origin = origin
        self._now = now
        self._clock = clock
        self._code: CodeType | None = None

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

        Raises RequestError if the template rejects them, and ChatTemplateError if it fails or
        exceeds about two seconds of processor time, 64 MiB of text in all, or 1 MiB in one value
        (both sizes grow with the input).
        """
        seen = {
            **plain_data(variables or {}, "template variables"),
            "messages": visible_messages(messages),
            "tools": plain_data(tools, "tools"),
            "documents": plain_data(documents, "documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        budget = Budget(input_size(seen), self._clock)
        try:
            environment = self._environment(budget)
            self._code = self._code or self._compile(environment)
            template = Template.from_code(environment, self._code, environment.make_globals(None))
            return joined(template.generate(seen), budget)
        except RaisedByTemplateError as error:
            raise RequestError(one_line(f"the chat template refuses: {error}")) from error
        except TemplateLimitError as error:
            raise self._failure(f"is stopped because {error}") from error
        except Exception as error:  # a template can raise any exception
            raise self._failure(f"fails: {type(error).__name__}: {error}") from error

    def _compile(self, environment: BudgetedEnvironment) -> CodeType:
        if len(self.source) > LONGEST_SOURCE:
            raise TemplateLimitError(f"it is longer than {LONGEST_SOURCE} characters")
        return environment.compile(self.source)

    def _environment(self, budget: Budget) -> BudgetedEnvironment:
        return BudgetedEnvironment(
            budget,
            {"raise_exception": raise_exception, "strftime_now": self._strftime_now},
            {"tojson": tojson},
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, jinja2.ext.loopcontrols],
        )

    def _strftime_now(self, layout: str) -> str:
        if len(layout) > 200:
            raise TemplateLimitError("it formats the time at too great a length")
        return self._now().strftime(layout)

    def _failure(self, what: str) -> ChatTemplateError:
        problem = f"the chat template {what}; use plain prompts or another template"
        return ChatTemplateError(self._origin, one_line(problem))


def raise_exception(message: object) -> None:
    raise RaisedByTemplateError(str(message))


@pass_environment
def tojson(
    environment: BudgetedEnvironment,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, with the options of `json.dumps` that templates use."""
    budget = environment.budget
    budget.weigh(value)
    if (indent if isinstance(indent, int) else len(indent or "")) > DEEPEST_INDENT:
        raise TemplateLimitError(f"it indents JSON by more than {DEEPEST_INDENT}")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return joined(encoder.iterencode(value), budget)


def joined(pieces: Any, budget: Budget) -> str:
    """Joins the pieces; raises TemplateLimitError as soon as they are too long for a value."""
    kept, size = [], 0
    for piece in pieces:
        size += len(piece)
        budget.admit(size)
        budget.spend(len(piece))
        kept.append(piece)
    return "".join(kept)


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
        return {
            plain_data(key, where, depth + 1): plain_data(item, where, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain_data(item, where, depth + 1) for item in value]
    raise RequestError(
        f"{where}: holds a {type(value).__name__}; give text, numbers, lists, mappings"
    )


def input_size(value: Any) -> int:
    """The number of characters in plain data, plus a constant for each other value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return 32 + sum(input_size(key) + input_size(item) for key, item in value.items())
    if isinstance(value, list):
        return 16 + sum(map(input_size, value))
    return 16


def one_line(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"
