"""Measures how often a draft samples the same next token as its target.

Teacher-forced on the target's own text: at every position the draft reads the target's keys and
values for all earlier positions, as the first token of a proposal does. Both sample with the same
noise. Knows tokens, but neither text nor draft formats.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

import numpy as np

from specqd._native import PAGE_POSITIONS, Rows, Sequence
from specqd.bench.rounds import RESAMPLES
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
        count = len(self.judged)
        drawn = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
        agreed, judged = (np.asarray(each)[drawn].sum(1) for each in (self.agreed, self.judged))
        low, high = np.percentile(agreed / judged, [2.5, 97.5])
        return float(low), float(high)

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
    draft: Model | None = None,
    stop_ids: frozenset[int] = frozenset(),
) -> Agreement:
    """Compares the tokens that a target and its draft sample along the text that the target writes.

    prompts: token ids of each; prompt and new tokens must fit into the context.
    params: resolved; `max_tokens` positions at most are judged after each prompt, up to and
        including the first of `stop_ids`. The noise of a prompt follows from the seed (0 by
        default) plus its number.
    draft: shares the target's cache; None: the fp4 precision of its weights.

    Raises RequestError for bad prompts, and for a model of one precision.
    """
    assert params.max_tokens is not None
    if target.config.is_mxfp4 and draft is None:
        raise RequestError("the weights are MXFP4 already: they have no draft to compare them with")
    if not prompts:
        raise RequestError("agreement needs a prompt; give at least one")
    for prompt in prompts:
        target.check_tokens(prompt)
    draft = draft or target.as_draft()
    longest = max(map(len, prompts)) + params.max_tokens
    pages = target.cache.free_pages // -(-longest // PAGE_POSITIONS)
    at_once = max(1, min(MOST_AT_ONCE, target.max_rows, pages))
    counts: list[tuple[int, int]] = []
    for begin in range(0, len(prompts), at_once):
        sequences = [
            new_sequence(prompt, params, number, stop_ids)
            for number, prompt in enumerate(prompts[begin : begin + at_once], begin)
        ]
        try:
            counts += _compare(target, draft, sequences, params.max_tokens)
        finally:
            for sequence in sequences:
                target.release(sequence)
    agreed, judged = zip(*counts, strict=True)
    return Agreement(params.temperature or 0.0, agreed, judged)


def new_sequence(
    prompt: SequenceOf[int], params: SamplingParams, number: int, stop_ids: frozenset[int]
) -> Sequence:
    """A sequence that begins with a prompt; its noise follows from the seed plus its number."""
    return Sequence(
        list(prompt),
        params.sampler((params.seed or 0) + number, 0),
        len(prompt),
        is_sampled=bool(params.temperature),
        needs_history=params.needs_history,
        stop_ids=stop_ids,
    )


def _compare(
    target: Model, draft: Model, sequences: SequenceOf[Sequence], most: int
) -> list[tuple[int, int]]:
    """Counts positions agreed and judged by sequence; extends each by the target's tokens."""
    for each in sequences:
        if len(each.tokens) > 1:
            target.forward([Rows(target.context(each), 0, each.tokens[:-1], 0)])
    agreed, judged = dict.fromkeys(sequences, 0), dict.fromkeys(sequences, 0)
    running = list(sequences)
    while running:
        rows = [
            Rows(target.context(each), len(each.tokens) - 1, [each.tokens[-1]], 1)
            for each in running
        ]
        drafted = _sampled(draft, running, rows)
        sampled = _sampled(target, running, rows)  # overwrites the draft's keys and values
        for each, guess, token in zip(running, drafted, sampled, strict=True):
            agreed[each] += guess == token
            judged[each] += 1
            each.tokens.append(token)
        running = [
            each
            for each, token in zip(running, sampled, strict=True)
            if judged[each] < most and not each.is_stop(token)
        ]
    return [(agreed[each], judged[each]) for each in sequences]


def _sampled(model: Model, sequences: SequenceOf[Sequence], rows: SequenceOf[Rows]) -> list[int]:
    """The token that the model samples after each sequence, whose last token is its row."""
    model.forward(rows)
    return [model.verify(row, [], each)[0][0] for row, each in enumerate(sequences)]
