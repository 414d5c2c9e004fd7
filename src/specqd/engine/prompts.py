"""Divides each round between the prompts that are being read.

Knows lengths and seconds; knows nothing of pages, proposals or text.
"""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from math import ceil

from specqd._native import Level
from specqd.engine.generation import Generation
from specqd.model.model import most_scored

MAX_GAP_S = 0.25
_ENOUGH_TOKENS = 256  # of a forward: more would hardly be read faster
_OLDEST_SHARE = 0.25  # of a round's time for prompts, so that none waits for ever
_DECODING_ROWS = 0.25  # of a forward's rows, which sequences that decode may need


@dataclass(frozen=True, slots=True)
class Reading:
    """What a round reads of one sequence: `count` of the tokens that come before its last one.

    scores: the last so many of them get logits, for log-probabilities of the prompt.
    is_last: no others are left, so the round samples the next token.
    """

    generation: Generation
    count: int
    scores: int
    is_last: bool


@dataclass(slots=True)
class _Prompt:
    generation: Generation
    start: int  # its first token that is not read yet
    left: int  # tokens to read before the last one
    count: int = 0  # of them, those of this round


@dataclass(slots=True)
class _Room:
    """What is left of a round for prompts."""

    budget: float  # seconds; tokens, if their number is fixed
    tokens: int
    scores: int  # rows of logits for log-probabilities


class PromptReader:
    """Plans which prompts a round reads, and how many tokens of each.

    The prompts with the fewest tokens left come first, so that a short one need not wait for a long
    one. A part of the time is for the oldest, so that each is read at last. While other sequences
    decode or several prompts are read, a round takes about `max_gap_s` seconds in all. A prompt
    that delays nobody may take twice that time if its rounds would be too short to be efficient.

    fixed_tokens: tokens that a round reads, however long that takes; None: as time permits.
    """

    def __init__(self, level: Level, max_gap_s: float, fixed_tokens: int | None) -> None:
        self._level = level
        self._max_rows: int = level.model.max_rows
        self._max_scores = most_scored(level.model.vocabulary)
        self._max_gap_s = max_gap_s
        self._fixed_tokens = fixed_tokens
        self._beside_s = max_gap_s  # for prompts, in rounds in which others decode

    def plan(self, running: SequenceOf[Generation]) -> list[Reading]:
        """The sequences of the next round, in their order."""
        prompts = {}
        for generation in running:
            if left := self._level.num_unread(generation.sequence):
                start = len(generation.sequence.tokens) - 1 - left
                prompts[generation] = _Prompt(generation, start, left)
        if prompts:
            self._share(list(prompts.values()), len(running))
        return [
            reading
            for each in running
            if (reading := _reading_of(each, prompts.get(each))).count or reading.is_last
        ]

    def rows_beside(self) -> int:
        """Rows of a forward that takes about as long as a round may take."""
        return max(self._level.tokens_within(self._max_gap_s, 0), 1)

    def learn(self, readings: SequenceOf[Reading], seconds: float) -> None:
        """Corrects the time for prompts after a round of `seconds` in which others decoded."""
        if len({each.count > 0 for each in readings}) == 2:
            corrected = self._beside_s + (self._max_gap_s - seconds) / 2
            self._beside_s = min(max(corrected, self._max_gap_s / 4), self._max_gap_s)

    def _share(self, prompts: list[_Prompt], running: int) -> None:
        """Gives each prompt its tokens of the next round."""
        room = self._room(running, len(prompts))
        if len(prompts) > 1:
            self._take(room, prompts[0], _OLDEST_SHARE)
        elif running == 1 and self._tokens_within(room.budget, prompts[0].start) < _ENOUGH_TOKENS:
            room.budget *= 2
        for prompt in sorted(prompts, key=lambda each: each.left - each.count):
            self._take(room, prompt)

    def _room(self, running: int, prompts: int) -> _Room:
        is_shared = running > prompts
        scores = max(1, min(self._max_scores, self._max_rows - running))
        if self._fixed_tokens is not None:
            return _Room(self._fixed_tokens, self._fixed_tokens, scores)
        kept = max(running, int(self._max_rows * _DECODING_ROWS) if is_shared else 0)
        budget = self._beside_s if is_shared else self._max_gap_s
        return _Room(budget, max(self._max_rows - kept, 1), scores)

    def _take(self, room: _Room, prompt: _Prompt, share: float = 1.0) -> None:
        """Adds the tokens of a prompt that fit into this share of the room."""
        budget = share * room.budget
        count = min(prompt.left - prompt.count, ceil(share * room.tokens))
        is_scored = not prompt.generation.is_prompt_scored
        if is_scored:
            count = min(count, room.scores)
        if count <= 0 or budget <= 0.0:
            return
        within = self._tokens_within(budget, prompt.start + prompt.count)
        count = min(count, within)
        room.budget -= budget * count / within
        room.tokens -= count
        room.scores -= count if is_scored else 0
        prompt.count += count

    def _tokens_within(self, budget: float, position: int) -> int:
        if self._fixed_tokens is not None:
            return ceil(budget)
        return self._level.tokens_within(budget, position)


def _reading_of(generation: Generation, prompt: _Prompt | None) -> Reading:
    if prompt is None:
        return Reading(generation, 0, 0, is_last=True)
    end = prompt.start + prompt.count
    known = len(generation.prompt_logprobs)
    scores = 0 if generation.is_prompt_scored else max(end - known, 0)
    return Reading(generation, prompt.count, scores, is_last=prompt.count == prompt.left)
