"""A grammar that lets a text reason before its answer, for a limited number of tokens.

Masks depend on tokens alone, so they do not depend on drafts.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specqd.engine.generation import MakeGrammar
from specqd.engine.roles import Grammar
from specqd.errors import FieldError
from specqd.text.reasoning import Reasoning
from specqd.text.tokenizer import Tokenizer

_ALL = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Thinking:
    """The tokens around the reasoning of one prompt's answer."""

    opener: int | None  # None: the answer cannot begin with reasoning of its own
    closer: str
    closing: tuple[int, ...]  # the tokens of the closing mark, as they are forced
    is_open: bool  # the prompt ends within the reasoning
    spelling: Callable[[int], str]  # of a token; the model may write the mark in other ones
    budget: int | None = None  # most tokens of the reasoning; then the closing mark is forced

    @classmethod
    def of(cls, tokenizer: Tokenizer, reasoning: Reasoning, budget: int | None) -> "Thinking":
        """Raises FieldError if the tokenizer cannot spell the closing mark."""
        assert reasoning.marks is not None
        opener, closer = reasoning.marks
        first = tokenizer.encode(opener, add_special_tokens=False)[0]
        is_one = tokenizer.token_text(first) == opener or first in tokenizer.special_ids
        closing = _tokens_of(tokenizer, closer)
        if not closing:
            problem = f"needs a model with tokens for {closer}; leave it out"
            raise FieldError("thinking_token_budget", problem)
        may_begin = is_one and not reasoning.is_open and not reasoning.is_off
        opener_id = first if may_begin else None
        return cls(opener_id, closer, closing, reasoning.is_open, tokenizer.token_text, budget)


def _tokens_of(tokenizer: Tokenizer, mark: str) -> tuple[int, ...]:
    """The tokens that spell a mark; none if the vocabulary has no such tokens."""
    tokens = tuple(tokenizer.encode(mark, add_special_tokens=False))
    return tokens if mark in "".join(map(tokenizer.token_text, tokens)) else ()


@dataclass(slots=True)
class _Place:
    """Where a text is: within the reasoning (its tokens so far), or after it (None). -1: at the
    beginning, where the reasoning may follow."""

    thoughts: int | None
    end: str = ""  # of the reasoning so far, which may begin the closing mark

    def after(self, token: int, thinking: Thinking) -> "_Place":
        """The place after one more token."""
        if self.thoughts is None or (self.thoughts < 0 and token != thinking.opener):
            return _Place(None)
        if self.thoughts < 0:
            return _Place(0)
        text = self.end + thinking.spelling(token)
        if thinking.closer in text:
            return _Place(None)
        return _Place(self.thoughts + 1, text[-len(thinking.closer) :])

    def is_before_answer(self, token: int, thinking: Thinking) -> bool:
        """Whether this next token belongs to the reasoning or its marks."""
        return self.thoughts is not None and (self.thoughts >= 0 or token == thinking.opener)


class ThinkingGrammar:
    """The grammar of one sample. answer: that of the text after the reasoning; None: any text."""

    def __init__(
        self,
        answer: Grammar | None,
        thinking: Thinking,
        vocabulary: int,
        eos_token_ids: SequenceOf[int],
    ) -> None:
        self._answer = answer
        self._thinking = thinking
        self._words = -(-vocabulary // 32)
        # An answer that must follow rules must not be missing.
        self._forbidden = tuple(eos_token_ids) if answer is not None else ()
        begins = None if thinking.opener is None else -1
        self._place = _Place(0 if thinking.is_open else begins)

    def accept(self, token: int) -> None:
        if not self._place.is_before_answer(token, self._thinking) and self._answer is not None:
            self._answer.accept(token)
        self._place = self._place.after(token, self._thinking)

    def masks(self, proposal: SequenceOf[int]) -> NDArray[np.uint32]:
        masks = np.full((len(proposal) + 1, self._words), _ALL, np.uint32)
        place = self._place
        for i in range(len(proposal) + 1):
            if place.thoughts is None or place.thoughts < 0:
                is_thought = i < len(proposal) and place.is_before_answer(
                    proposal[i], self._thinking
                )
                rest = proposal[i : i if is_thought else None]
                if self._answer is not None:
                    masks[i : i + len(rest) + 1] = self._answer.masks(rest)
                    if place.thoughts is not None:
                        _set(masks[i], self._thinking.opener)
                if not is_thought:
                    break
            else:
                self._restrict(masks[i], place.thoughts)
            if i < len(proposal):
                place = place.after(proposal[i], self._thinking)
        return masks

    def _restrict(self, mask: NDArray[np.uint32], thoughts: int) -> None:
        """Restricts the token that follows this number of tokens of the reasoning."""
        budget, closing = self._thinking.budget, self._thinking.closing
        if budget is not None and thoughts >= budget:
            mask[:] = 0
            _set(mask, closing[(thoughts - budget) % len(closing)])
            return
        for token in self._forbidden:
            mask[token // 32] &= ~np.uint32(1 << (token % 32))


def _set(mask: NDArray[np.uint32], token: int | None) -> None:
    if token is not None:
        mask[token // 32] |= np.uint32(1 << (token % 32))


def after_reasoning(
    make_answer: MakeGrammar | None,
    reasoning: Reasoning | None,
    budget: int | None,
    tokenizer: Tokenizer,
    vocabulary: int,
    eos_token_ids: SequenceOf[int],
) -> MakeGrammar | None:
    """Lets the grammars of answers, if there are any, begin after the reasoning.

    budget: most tokens of the reasoning, or None. Returns None if nothing restricts the text.
    Raises FieldError if the model's marks cannot be enforced.
    """
    if reasoning is None or reasoning.marks is None or (make_answer is None and budget is None):
        return make_answer
    if budget is None and not reasoning.is_open and not _tokens_of(tokenizer, reasoning.marks[1]):
        return make_answer  # such a model answers at once
    thinking = Thinking.of(tokenizer, reasoning, budget)

    def make() -> ThinkingGrammar:
        answer = None if make_answer is None else make_answer()
        return ThinkingGrammar(answer, thinking, vocabulary, eos_token_ids)

    return make
