"""Measures how often a draft samples the same next token as its target.

Teacher-forced on the target's own text: at every position the draft reads the target's keys and
values for all earlier positions, as the first token of a proposal does; in longer rounds, for all
positions before the round. Both sample with the same noise. Knows tokens, but neither text nor
draft formats.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from operator import eq
from typing import Any

import numpy as np

from specqd._native import PAGE_POSITIONS, Rows, Sequence
from specqd.bench.resampling import Floats, draw_sets, limits
from specqd.errors import RequestError
from specqd.model.model import Model
from specqd.sampling import SamplingParams

MOST_AT_ONCE = 16  # sequences of one forward


@dataclass(frozen=True, slots=True)
class Agreement:
    """By prompt: the positions judged, and those where the draft sampled the target's token."""

    temperature: float
    agreed: tuple[int, ...]
    judged: tuple[int, ...]

    @property
    def share(self) -> float:
        """The share of all positions at which both sampled the same token."""
        return sum(self.agreed) / sum(self.judged)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share, bootstrapped over prompts."""
        return limits(self._shares)

    def above(self, other: "Agreement") -> tuple[float, float, float]:
        """By how much the share is above that of another draft of the same text, and the 95 %
        interval of this difference, bootstrapped over prompts."""
        assert self.judged == other.judged, "the drafts judge the same positions"
        return self.share - other.share, *limits(self._shares - other._shares)

    @property
    def _shares(self) -> Floats:
        """The shares of sets of prompts drawn with replacement; the same sets in each call."""
        drawn = draw_sets(len(self.judged))
        agreed, judged = (np.asarray(each)[drawn].sum(1) for each in (self.agreed, self.judged))
        return np.asarray(agreed / judged)

    def described(self) -> dict[str, Any]:
        """The agreement as a JSON object."""
        low, high = self.interval
        return {
            "temperature": self.temperature,
            "prompts": len(self.judged),
            "positions": sum(self.judged),
            "agreement": {"share": self.share, "low": low, "high": high},
        }


def agreement(
    target: Model,
    prompts: SequenceOf[SequenceOf[int]],
    params: SamplingParams,
    *,
    stop_ids: frozenset[int] = frozenset(),
) -> Agreement:
    """Compares a target with the fp4 precision of its own weights, as `agreements` does.

    Raises RequestError for bad prompts, and for a model of one precision.
    """
    if target.config.is_mxfp4:
        raise RequestError("the weights are MXFP4 already: they have no draft to compare them with")
    [found] = agreements(target, [target.as_draft()], prompts, params, stop_ids=stop_ids)
    return found


def agreements(
    target: Model,
    drafts: SequenceOf[Model],
    prompts: SequenceOf[SequenceOf[int]],
    params: SamplingParams,
    *,
    stop_ids: frozenset[int] = frozenset(),
    round_length: int = 1,
) -> list[Agreement]:
    """Compares the tokens that a target and each draft sample along the target's own text.

    drafts: share the target's cache.
    prompts: token ids of each; prompt and new tokens must fit into the context.
    params: resolved; `max_tokens` positions at most are judged after each prompt, up to and
        including the first of `stop_ids`. The noise of a prompt follows from the seed (0 by
        default) plus its number.
    round_length: the tokens that a draft judges before they are verified. After the first one, the
        draft reads keys and values of its own, and its choice of pages grows old, as in a proposal
        of which all is accepted.

    Raises RequestError for bad prompts.
    """
    assert params.max_tokens is not None
    if not prompts:
        raise RequestError("agreement needs a prompt; give at least one")
    for prompt in prompts:
        target.check_tokens(prompt)
    longest = max(map(len, prompts)) + params.max_tokens
    pages = target.cache.free_pages // -(-longest // PAGE_POSITIONS)
    most_rows = target.max_rows // round_length
    at_once = max(1, min(MOST_AT_ONCE, most_rows, pages))
    judged, agreed = list[int](), [list[int]() for _ in drafts]
    for begin in range(0, len(prompts), at_once):
        texts = [
            _Text(prompt, partial(new_sequence, prompt, params, number, stop_ids), len(drafts))
            for number, prompt in enumerate(prompts[begin : begin + at_once], begin)
        ]
        try:
            _compare(target, drafts, texts, params.max_tokens, round_length)
        finally:
            for text in texts:
                target.release(text.written)
        judged += [text.judged for text in texts]
        for number, each in enumerate(agreed):
            each += [text.agreed[number] for text in texts]
    return [Agreement(params.temperature or 0.0, tuple(each), tuple(judged)) for each in agreed]


def new_sequence(
    prompt: SequenceOf[int],
    params: SamplingParams,
    number: int,
    stop_ids: frozenset[int],
    known: int | None = None,
) -> Sequence:
    """A sequence that begins with a prompt, or for now with `known` tokens of it; its noise follows
    from the seed plus its number."""
    return Sequence(
        list(prompt[:known]),
        params.sampler((params.seed or 0) + number, 0),
        len(prompt),
        is_sampled=bool(params.temperature),
        needs_history=params.needs_history,
        stop_ids=stop_ids,
    )


class _Text:
    """One text: the same sequence several times, because each grows at its own time."""

    def __init__(self, prompt: SequenceOf[int], make: Callable[..., Sequence], drafts: int) -> None:
        self.prompt = prompt
        self._sequences = [make(known=len(prompt) - 1) for _ in range(2 + drafts)]
        self.written, self.verified, *self.drafted = self._sequences
        for each in self._sequences:
            each.key = self.written.key  # all have one context
        self.judged, self.agreed = 0, [0] * drafts

    @property
    def unverified(self) -> list[int]:
        return self.written.tokens[len(self.verified.tokens) :]

    @property
    def is_finished(self) -> bool:
        return self.judged > 0 and self.written.is_stop(self.written.tokens[-1])

    def read_prompt(self, target: Model) -> None:
        """Reads all tokens but the last, which the first round reads. The target weighs the pages
        of the context for the drafts where it verifies a token."""
        if before := self.written.tokens[:]:
            target.forward([Rows(target.context(self.written), 0, before, 1)])
            target.verify(0, [], self.written)
        for each in self._sequences:
            each.tokens.append(self.prompt[-1])

    def end_round(self) -> None:
        self.judged += len(self.unverified)
        for each in (self.verified, *self.drafted):
            each.tokens.extend(self.written.tokens[len(each.tokens) :])


def _compare(
    target: Model, drafts: SequenceOf[Model], texts: SequenceOf[_Text], most: int, length: int
) -> None:
    """Counts the tokens of each text that the target makes, and those that each draft makes too."""
    for text in texts:
        text.read_prompt(target)
    while running := [text for text in texts if text.judged < most and not text.is_finished]:
        _write(target, running, min(length, most - running[0].judged) - 1)
        guesses = [_guess(draft, running, number) for number, draft in enumerate(drafts)]
        _verify(target, running)
        for number, guessed in enumerate(guesses):
            for text, tokens in zip(running, guessed, strict=True):
                text.agreed[number] += sum(map(eq, tokens, text.unverified))
        for text in running:
            text.end_round()


def _write(target: Model, texts: SequenceOf[_Text], count: int) -> None:
    """Extends each text by the target's tokens, at most `count`, and at most up to its end."""
    for _ in range(count):
        writing = [
            each.written
            for each in texts
            if not each.unverified or not each.written.is_stop(each.unverified[-1])
        ]
        for sequence, token in zip(writing, _sampled(target, writing), strict=True):
            sequence.tokens.append(token)


def _guess(draft: Model, texts: SequenceOf[_Text], number: int) -> list[list[int]]:
    """By text: the tokens that a draft samples at the place of each token that the target wrote
    since the last verification, and at the next place."""
    guesses = [list[int]() for _ in texts]
    for text in texts:
        draft.context(text.written).begin(len(text.verified.tokens))
    for place in range(1 + max(len(text.unverified) for text in texts)):
        open_ones = [at for at, text in enumerate(texts) if place <= len(text.unverified)]
        drafted = [texts[at].drafted[number] for at in open_ones]
        for at, sequence, token in zip(open_ones, drafted, _sampled(draft, drafted), strict=True):
            guesses[at].append(token)
            sequence.tokens.extend(texts[at].unverified[place : place + 1])
    return guesses


def _verify(target: Model, texts: SequenceOf[_Text]) -> None:
    """Reads what was written once more, as a proposal, and writes the token after it."""
    rows, row = [], 0
    for text in texts:
        tokens = [text.verified.tokens[-1], *text.unverified]
        start = len(text.verified.tokens) - 1
        rows.append(Rows(target.context(text.written), start, tokens, len(tokens)))
    target.forward(rows)
    for text, each in zip(texts, rows, strict=True):
        tokens, _ = target.verify(row, text.unverified, text.verified)
        row += each.logits
        text.written.tokens.append(tokens[-1])


def _sampled(model: Model, sequences: SequenceOf[Sequence]) -> list[int]:
    """The token that the model samples after each sequence, whose last token is its row."""
    model.forward(
        [
            Rows(model.context(each), len(each.tokens) - 1, [each.tokens[-1]], 1)
            for each in sequences
        ]
    )
    return [model.verify(row, [], each)[0][0] for row, each in enumerate(sequences)]
