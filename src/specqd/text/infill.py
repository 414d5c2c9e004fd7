"""Fills the middle between two texts, with the tokens that some models have for it.

Knows the tokens of several families. Knows no requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specqd.text.tokenizer import Tokenizer

# The tokens before the prefix, before the suffix, and before the middle.
_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, Qwen3-Coder
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder 2, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
)  # the last: DeepSeek
# Tokens that also end a middle: padding, and the beginning of another file.
_ENDS = ("<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<|file_sep|>", "<file_sep>")


@dataclass(frozen=True, slots=True)
class Infill:
    """A prompt whose continuation is the middle."""

    prompt: list[int]
    stop_token_ids: tuple[int, ...]  # which end the middle


def infill(tokenizer: Tokenizer, prefix: str, suffix: str) -> Infill | None:
    """Returns the prompt for the text between two texts; None if the model has no tokens for it."""
    marks = next((each for each in _MARKS if all(map(tokenizer.is_added, each))), None)
    if marks is None:
        return None
    begin, hole, end = (tokenizer.id_of(mark) for mark in marks)
    assert begin is not None
    assert hole is not None
    assert end is not None
    bos = tokenizer.id_of(tokenizer.named_tokens.get("bos_token"))
    first = [token for token in tokenizer.encode("") if token == bos]
    before, after = (tokenizer.encode(text, add_special_tokens=False) for text in (prefix, suffix))
    stops = (tokenizer.id_of(each) for each in (*marks, *_ENDS) if tokenizer.is_added(each))
    return Infill(
        [*first, begin, *before, hole, *after, end], tuple(i for i in stops if i is not None)
    )
