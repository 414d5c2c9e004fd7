"""Tools that a text may or must call, and how a model writes such a call.

Knows templates and tokens; knows nothing of requests' bodies or answers. The model's own chat
template says which form its calls have: it is shown a call, and what it makes of that is looked at.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specqd.errors import FieldError, SpecqdError
from specqd.text.tokenizer import Tokenizer

OPENER, CLOSER = "<tool_call>", "</tool_call>"  # Hermes', of Qwen and others
PYTHON_TAG = "<|python_tag|>"  # may stand before a call of Llama 3
NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}

_PROBE = "probe_of_the_form"
_PROBED = re.compile(
    rf'(\{{"name":\s*"){_PROBE}("\s*,\s*"(?:arguments|parameters)":\s*)\{{"mark":\s*1\}}(\s*\}})'
)
_TAUGHT = re.compile(rf'{OPENER}\s*\{{(?=.{{0,80}}"name":)(?=.{{0,80}}"arguments":)')


@dataclass(frozen=True, slots=True)
class Tool:
    """A function of the client's."""

    name: str
    parameters: Mapping[str, Any]  # a JSON schema
    is_strict: bool
    description: str | None = None

    def described(self) -> dict[str, Any]:
        """As chat templates show it, with the members and the order that models were taught."""
        said = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **said, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What one request offers."""

    tools: tuple[Tool, ...]  # that the model is told of
    allowed: frozenset[str] | None = None  # the names of those it may call; None: all
    must_call: bool = False
    is_parallel: bool = True  # a text may have several calls

    @property
    def callable(self) -> tuple[Tool, ...]:
        return tuple(
            tool for tool in self.tools if self.allowed is None or tool.name in self.allowed
        )

    @property
    def has_rules(self) -> bool:
        """Whether the text is held to them, and not only looked through for calls."""
        is_free = not self.must_call and self.is_parallel and self.callable == self.tools
        return not is_free or any(tool.is_strict for tool in self.tools)


@dataclass(frozen=True, slots=True)
class CallForm:
    """One call is `begin`, the name, `middle`, the arguments as a JSON object, and `end`."""

    begin: str
    middle: str
    end: str
    is_tagged: bool  # calls stand in <tool_call> tags, within text; else one is a text of its own
    special_ids: Mapping[str, int]  # of its tags, those that decoding leaves out of texts

    def rules(self, use: ToolUse, answer: Mapping[str, Any] | None) -> str:
        """What texts must follow, in llguidance's Lark. answer: the schema of one without calls.

        Where a call begins in free text, the lexer must decide as it reads: hence [lazy].
        """
        call = f"call: {self._calls(use, self.begin)}\n"
        calls = 'call ("\\n" call)*' if use.is_parallel and self.is_tagged else "call"
        if use.must_call:
            return f"start: {calls}\n{call}"
        if answer is not None and self.is_tagged:
            return f"start: {calls} | %json {json.dumps(answer)}\n{call}"
        if answer is not None:
            raise FieldError("response_format", "this model calls tools in JSON too; drop one")
        if self.is_tagged:
            return self._rules_within_text(use)
        return f"start: call | FREE |\n{call}FREE: /\\s*[^{{\\s](?s:.*)/\n"

    def _rules_within_text(self, use: ToolUse) -> str:
        start = "start: called* FREE\n" if use.is_parallel else "start: FREE | called FREE\n"
        rest = self._calls(use, self.begin.removeprefix(OPENER))
        if OPENER in self.special_ids:
            called = f"called: FREE {self._lark(OPENER)} ({rest})\n"
            return f"{start}{called}FREE: /(?s:.*)/\n"
        called = f"called: to_call ({rest})\nto_call[lazy]: /(?s:.*){OPENER}/\n"
        return f"{start}{called}FREE: /(?s:.*)/ & ~/(?s:.*){OPENER}(?s:.*)/\n"

    def _calls(self, use: ToolUse, begin: str) -> str:
        return " | ".join(
            f"{self._lark(begin + tool.name + self.middle)} %json {json.dumps(tool.parameters)} "
            f"{self._lark(self.end)}"
            for tool in use.callable
        )

    def _lark(self, text: str) -> str:
        parts = re.split(f"({OPENER}|{CLOSER})", text)
        return " ".join(
            f"<[{self.special_ids[part]}]>" if part in self.special_ids else json.dumps(part)
            for part in parts
            if part
        )


def call_form(tokenizer: Tokenizer) -> CallForm:
    """How the model of this tokenizer writes calls.

    Raises FieldError where its template has no form that is known, RequestError where it has no
    template.
    """
    tools = [Tool(_PROBE, NO_PARAMETERS, False, "?").described()]
    asked = [{"role": "user", "content": "?"}]
    call = {"name": _PROBE, "arguments": {"mark": 1}}
    answer = {
        "role": "assistant",
        "tool_calls": [{"id": "call00000", "type": "function", "function": call}],
    }
    prompt = tokenizer.render_chat(asked, tools=tools)
    try:
        text = tokenizer.render_chat([*asked, answer], tools=tools, add_generation_prompt=False)
    except SpecqdError:  # the template refuses such messages
        text = prompt
    form = _form_in(prompt, text, tokenizer)
    if form is None:
        raise FieldError(
            "tools",
            "the chat template of this model calls tools in no form that is known (<tool_call>, or "
            "JSON as Llama 3 writes it); leave tools out",
        )
    return form


def _form_in(prompt: str, text: str, tokenizer: Tokenizer) -> CallForm | None:
    """text: the prompt and then the probe's call, as the template writes them."""
    found = _PROBED.search(text)
    if found is not None:
        before, after = text[: found.start()], text[found.end() :]
        tail = before[len(before.rstrip()) :]
        if before.rstrip().endswith(OPENER) and after.lstrip().startswith(CLOSER):
            space = after[: len(after) - len(after.lstrip())]
            begin, end = OPENER + tail + found[1], found[3] + space + CLOSER
            return CallForm(begin, found[2], end, True, _special(tokenizer, OPENER, CLOSER))
        spoken = before.removeprefix(prompt.rstrip()).replace(PYTHON_TAG, "")
        if not spoken.strip():
            special = _special(tokenizer, PYTHON_TAG)
            return CallForm(found[1], found[2], found[3], False, special)
    if _TAUGHT.search(text):  # but earlier calls are not written, or in another order
        special = _special(tokenizer, OPENER, CLOSER)
        begin, end = f'{OPENER}\n{{"name": "', f"}}\n{CLOSER}"
        return CallForm(begin, '", "arguments": ', end, True, special)
    return None


def _special(tokenizer: Tokenizer, *tags: str) -> dict[str, int]:
    ids = {tag: tokenizer.id_of(tag) for tag in tags if tokenizer.is_special(tag)}
    return {tag: token for tag, token in ids.items() if token is not None}
