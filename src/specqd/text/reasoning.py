"""Finds the reasoning that precedes an answer, by the marks that the model's chat template writes.

Knows templates, prompts and the marks of several families. Knows no requests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from specqd.text.channels import ChannelReader, has_channels
from specqd.text.stream import overlap

if TYPE_CHECKING:
    from specqd.text.tokenizer import Tokenizer

# What opens and closes the reasoning, by family.
_MARKS = (
    ("<think>", "</think>"),  # Qwen, DeepSeek, GLM, SmolLM, Granite, MiMo
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<thought>", "</thought>"),  # Exaone
    ("[THINK]", "[/THINK]"),  # Mistral
    ("<|channel>thought", "<channel|>"),  # Gemma 4
)
# Template variables that switch the reasoning on and off.
SWITCHES = ("enable_thinking", "thinking")
_TAG = re.compile(r"\{[{%].*?[%}]\}", re.DOTALL)
# A name that is neither a member, nor a string, nor a part of a longer name.
_VARIABLE = re.compile(rf"(?<![\w.\"'])({'|'.join(SWITCHES)})(?![\w\"'])")
_LAST_TOKENS = 64  # of a prompt, which hold an opening mark and white space


class Splitter(Protocol):
    """Splits one text, piece by piece."""

    def split(self, piece: str, *, is_last: bool) -> tuple[str, str]:
        """Returns the new text of the answer, and that of the reasoning."""
        ...


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The marks of reasoning in one prompt's answer; None for gpt-oss, which has channels."""

    marks: tuple[str, str] | None
    is_open: bool = False  # the prompt ends within the reasoning
    is_off: bool = False  # the prompt ends after it
    has_special_marks: bool = False  # which decoding skips by default

    def splitter(self) -> Splitter:
        if self.marks is None:
            return ChannelReader()
        return ThoughtReader(*self.marks, is_open=self.is_open, is_off=self.is_off)


def reasoning_of(tokenizer: Tokenizer, prompt: Sequence[int]) -> Reasoning | None:
    """Returns how the answer to a chat's prompt marks its reasoning; None if it has none."""
    if has_channels(tokenizer):
        return Reasoning(None, has_special_marks=True)
    source = tokenizer.template_source
    end = tokenizer.decode(prompt[-_LAST_TOKENS:], skip_special_tokens=False).rstrip()
    marks = next((pair for pair in _MARKS if _has(source, end, *pair)), None)
    if marks is None:
        return None
    opener, closer = marks
    is_special = tokenizer.is_special(closer) or tokenizer.is_special(opener)
    return Reasoning(marks, end.endswith(opener), end.endswith(closer), is_special)


def _has(template: str, prompt: str, opener: str, closer: str) -> bool:
    """Whether a template has these marks. One that begins the reasoning need not know how the model
    ends it (Olmo 3)."""
    return closer in template or (opener in template and prompt.endswith(opener))


def answer_begun(tokenizer: Tokenizer, prompt: str, answer: str) -> str:
    """Returns a chat's prompt with the beginning of its answer. Reasoning that the prompt has begun
    is closed, empty."""
    for opener, closer in _MARKS:
        has_marks = _has(tokenizer.template_source, prompt.rstrip(), opener, closer)
        if has_marks and prompt.rstrip().endswith(opener) and closer not in answer:
            return f"{prompt.rstrip()}\n\n{closer}\n\n{answer}"
    return prompt + answer


def switched(tokenizer: Tokenizer, thinks: bool) -> dict[str, bool]:
    """The variables of the chat template that switch its reasoning; empty if it has no switch."""
    names = set(_VARIABLE.findall("".join(_TAG.findall(tokenizer.template_source))))
    return {name: thinks for name in SWITCHES if name in names}


class ThoughtReader:
    """Splits a text whose reasoning, at its beginning, is between two marks.

    White space around the marks is dropped.
    """

    def __init__(
        self, opener: str, closer: str, *, is_open: bool = False, is_off: bool = False
    ) -> None:
        """is_open, is_off: the prompt ends within the reasoning, or after it."""
        self._is_off = is_off
        self._opener = opener
        self._closer = closer
        self._held = ""  # text that may be white space before a mark, or begin one
        # What comes next: a mark or its absence, the first word of the reasoning or more of it,
        # the first word of the answer or more of it.
        self._state = "thought begins" if is_open else "begin"

    def split(self, piece: str, *, is_last: bool) -> tuple[str, str]:
        """Returns the new text of the answer, and that of the reasoning."""
        text, self._held = self._held + piece, ""
        thought = ""
        if self._state == "begin":
            text = self._begin(text, is_last=is_last)
        if self._state.startswith("thought"):
            thought, text = self._thought(text, is_last=is_last)
        if self._state == "answer begins":
            text = text.lstrip()
            self._state = "answer" if text else self._state
        return (text if self._state == "answer" else "", thought)

    def _begin(self, text: str, *, is_last: bool) -> str:
        """Returns the rest of a text that begins with the opening mark or without it."""
        rest = text.lstrip()
        if rest.startswith(self._opener):
            self._state = "thought begins"
            return rest[len(self._opener) :]
        if self._opener.startswith(rest) and not is_last:
            self._held = text
            return ""
        self._state = "answer begins" if self._is_off else "answer"
        return text

    def _thought(self, text: str, *, is_last: bool) -> tuple[str, str]:
        """Returns new text of the reasoning, and the text after it."""
        if self._state == "thought begins":
            text = text.lstrip()
            if not text and not is_last:
                return "", ""
            self._state = "thought"
        at = text.find(self._closer)
        if at >= 0:
            self._state = "answer begins"
            return text[:at].rstrip(), text[at + len(self._closer) :]
        end = len(text) if is_last else len(text) - overlap(text, self._closer)
        thought = text[:end].rstrip()
        self._held = "" if is_last else text[len(thought) :]
        return thought, ""
