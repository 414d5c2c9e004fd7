"""Owns the tools that a text may or must call, and the form in which a model writes calls.

Finds the form by a probe: the model's chat template renders a call, and the form is read from the
result. If the template has no known form, plain messages describe tools and calls instead. Knows
templates and tokens. Knows nothing of the bodies of requests and answers.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specqd.errors import FieldError, SpecqdError
from specqd.text.json_schema import prepared
from specqd.text.messages import Message
from specqd.text.plain_tools import Place, in_messages
from specqd.text.single_calls import has_several_calls, one_by_one
from specqd.text.tokenizer import Tokenizer

OPENER, CLOSER = "<tool_call>", "</tool_call>"  # of Hermes, Qwen and others
PYTHON_TAG = "<|python_tag|>"  # may precede a call of Llama 3
# Mistral writes these since version 11 of its tokenizers. An id of nine characters may follow the
# name.
CALL_MARK, ID_MARK, ARGUMENTS_MARK = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}

_PROBE = "probe_of_the_form"
_ASKED: Message = {"role": "user", "content": "?"}
_PROBED = re.compile(
    rf'(\{{"name":\s*"){_PROBE}("\s*,\s*"(?:arguments|parameters)":\s*)\{{"mark":\s*1\}}(\s*\}})'
)
_MARKED = re.compile(
    rf'{re.escape(CALL_MARK)}{_PROBE}({re.escape(ID_MARK)}\w+)?{re.escape(ARGUMENTS_MARK)}\{{"mark"'
)
_EXPLAINED = re.compile(rf'{OPENER}\s*\{{(?=.{{0,80}}"name":)(?=.{{0,80}}"arguments":)')


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers."""

    name: str
    parameters: Mapping[str, Any]  # a JSON schema
    is_strict: bool
    description: str | None = None

    def described(self) -> dict[str, Any]:
        """Returns the JSON for chat templates, with the members and order that models know."""
        text = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **text, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request."""

    tools: tuple[Tool, ...]  # all tools in the prompt
    allowed: frozenset[str] | None = None  # the names of those that may be called; None: all
    must_call: bool = False
    is_parallel: bool = True  # a text may have several calls

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        return tuple(
            tool for tool in self.tools if self.allowed is None or tool.name in self.allowed
        )

    @property
    def has_rules(self) -> bool:
        """Whether a grammar enforces the calls. Otherwise the text is only searched for them."""
        is_free = not self.must_call and self.is_parallel and self.callable == self.tools
        return not is_free or any(tool.is_strict for tool in self.tools)


@dataclass(frozen=True, slots=True)
class CallForm:
    """One call is `begin`, the name, `middle`, the arguments as a JSON object, and `end`."""

    begin: str
    middle: str
    end: str
    is_tagged: bool  # calls are within text, after `opener`; otherwise a call is the whole text
    # The ids of those tags that are added tokens. Grammars do not see their texts: llguidance takes
    # all added tokens of the form <...> as special.
    special_ids: Mapping[str, int]
    # Where plain messages describe the tools; None: the template does.
    described_in: Place | None = None
    has_hidden_tags: bool = False  # which decoding skips by default
    opener: str = OPENER  # or CALL_MARK; `begin` begins with it
    has_ids: bool = False  # ID_MARK and an id may precede `middle`

    def rendered(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> str:
        """Returns the text of a chat's prompt. tools: as templates expect them.

        If the template takes no message with several calls, the calls come one by one. Raises
        RequestError if it rejects the chat, TokenizerError if it fails.
        """
        if self.opener == CALL_MARK:
            messages = [_with_short_ids(message) for message in messages]
        if self.described_in is None:
            has_several = any(map(has_several_calls, messages))
            if has_several and _needs_single_calls(tokenizer, tools, variables):
                messages = one_by_one(messages)
            return tokenizer.render_chat(messages, tools=tools, **variables)
        plain = in_messages(messages, tools or (), self.described_in)
        return tokenizer.render_chat(plain, **variables)

    def rules(self, use: ToolUse, answer: Mapping[str, Any] | None) -> str:
        """Returns the grammar in llguidance's Lark. answer: the schema of a text without calls.

        [lazy] makes the lexer decide at once when a call begins in free text. Raises FieldError if
        this form cannot be combined with `answer`.
        """
        call = f"call: {self._calls(use, self.begin)}\n"
        repeated = 'call ("\\n" call)*' if self.end else "call+"
        calls = repeated if use.is_parallel and self.is_tagged else "call"
        if use.must_call:
            return f"start: {calls}\n{call}"
        if answer is not None and self.is_tagged:
            return f"start: {calls} | {_json(answer)}\n{call}"
        if answer is not None:
            raise FieldError(
                "response_format",
                "cannot be combined with tools: this model writes calls as JSON too; remove one",
            )
        if self.is_tagged:
            return self._rules_within_text(use)
        return f"start: call | FREE |\n{call}FREE: /\\s*[^{{\\s](?s:.*)/\n"

    def _rules_within_text(self, use: ToolUse) -> str:
        start = "start: called* FREE\n" if use.is_parallel else "start: FREE | called FREE\n"
        rest = self._calls(use, self.begin.removeprefix(self.opener))
        if self.opener in self.special_ids:
            called = f"called: FREE {self._lark(self.opener)} ({rest})\n"
            return f"{start}{called}FREE: /(?s:.*)/\n"
        opener = re.escape(self.opener)
        called = f"called: to_call ({rest})\nto_call[lazy]: /(?s:.*){opener}/\n"
        return f"{start}{called}FREE: /(?s:.*)/ & ~/(?s:.*){opener}(?s:.*)/\n"

    def _calls(self, use: ToolUse, begin: str) -> str:
        return " | ".join(
            f"{self._head(begin + tool.name)} {_json(tool.parameters)} {self._lark(self.end)}"
            for tool in use.callable
        )

    def _head(self, begin: str) -> str:
        if not self.has_ids:
            return self._lark(begin + self.middle)
        id_ = f"({self._lark(ID_MARK)} /[a-zA-Z0-9]{{9}}/)?"
        return f"{self._lark(begin)} {id_} {self._lark(self.middle)}"

    def _lark(self, text: str) -> str:
        tags = "|".join(map(re.escape, self.special_ids)) or f"{OPENER}|{CLOSER}"
        parts = re.split(f"({tags})", text)
        return " ".join(
            f"<[{self.special_ids[part]}]>" if part in self.special_ids else json.dumps(part)
            for part in parts
            if part
        )


def _json(schema: Mapping[str, Any]) -> str:
    """Returns the rule of a JSON schema, in llguidance's Lark."""
    return f"%json {json.dumps(prepared(schema))}"


def call_form(tokenizer: Tokenizer) -> CallForm:
    """Finds the form in which this tokenizer's model writes calls.

    If its chat template uses no known form, it is that of Hermes, described in plain messages.
    Raises RequestError if there is no template.
    """
    tools = [Tool(_PROBE, NO_PARAMETERS, False, "?").described()]
    prompt = tokenizer.render_chat([_ASKED], tools=tools)
    probed = [_ASKED, _calling("call00000")]
    try:
        text = tokenizer.render_chat(probed, tools=tools, add_generation_prompt=False)
    except SpecqdError:  # the template rejects such messages
        text = prompt
    form = _form_in(prompt, text, tokenizer) or _hermes(tokenizer, _place_in(tokenizer))
    return replace(form, has_hidden_tags=any(map(tokenizer.is_special, form.special_ids)))


def _with_short_ids(message: Message) -> Message:
    """Returns a message whose ids of calls have nine letters and digits, as Mistral's always do."""
    calls = message.get("tool_calls")
    if calls:
        calls = [{**call, "id": _short(call["id"])} if call.get("id") else call for call in calls]
        message = {**message, "tool_calls": calls}
    if message.get("tool_call_id"):
        message = {**message, "tool_call_id": _short(message["tool_call_id"])}
    return message


def _short(call_id: object) -> str:
    return re.sub("[^a-zA-Z0-9]", "", str(call_id))[-9:].rjust(9, "0")


def _needs_single_calls(
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
) -> bool:
    """Returns whether the template rejects a message with two calls, but takes one with one."""

    def takes(*ids: str) -> bool:
        try:
            tokenizer.render_chat([_ASKED, _calling(*ids)], tools=tools, **variables)
        except SpecqdError:
            return False
        return True

    return not takes("call00000", "call00001") and takes("call00000")


def _calling(*ids: str) -> Message:
    """Returns a message that calls the probe once for each id."""
    function = {"name": _PROBE, "arguments": {"mark": 1}}
    calls = [{"id": each, "type": "function", "function": function} for each in ids]
    return {"role": "assistant", "tool_calls": calls}


def _place_in(tokenizer: Tokenizer) -> Place:
    """Returns which message can describe tools: some templates reject system messages or omit
    them."""
    messages = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "?"}]
    try:
        return "system" if _PROBE in tokenizer.render_chat(messages) else "user"
    except SpecqdError:
        return "user"


def _form_in(prompt: str, text: str, tokenizer: Tokenizer) -> CallForm | None:
    """Finds the form in `text`: the prompt and the probe's call, rendered by the template."""
    marked = _MARKED.search(text)
    if marked is not None:
        special = _special(tokenizer, CALL_MARK, ID_MARK, ARGUMENTS_MARK)
        form = CallForm(CALL_MARK, ARGUMENTS_MARK, "", True, special, opener=CALL_MARK)
        return replace(form, has_ids=marked[1] is not None)
    found = _PROBED.search(text)
    if found is not None:
        before, after = text[: found.start()], text[found.end() :]
        tail = before[len(before.rstrip()) :]
        if before.rstrip().endswith(OPENER) and after.lstrip().startswith(CLOSER):
            space = after[: len(after) - len(after.lstrip())]
            begin, end = OPENER + tail + found[1], found[3] + space + CLOSER
            return CallForm(begin, found[2], end, True, _special(tokenizer, OPENER, CLOSER))
        content = before.removeprefix(prompt.rstrip()).replace(PYTHON_TAG, "")
        if not content.strip():
            special = _special(tokenizer, PYTHON_TAG)
            return CallForm(found[1], found[2], found[3], False, special)
    if _EXPLAINED.search(text):  # the template explains the form, but does not render calls in it
        return _hermes(tokenizer)
    return None


def _hermes(tokenizer: Tokenizer, described_in: Place | None = None) -> CallForm:
    special = _special(tokenizer, OPENER, CLOSER)
    begin, end = f'{OPENER}\n{{"name": "', f"}}\n{CLOSER}"
    return CallForm(begin, '", "arguments": ', end, True, special, described_in)


def _special(tokenizer: Tokenizer, *tags: str) -> dict[str, int]:
    ids = {tag: tokenizer.id_of(tag) for tag in tags if tokenizer.is_added(tag)}
    return {tag: token for tag, token in ids.items() if token is not None}
