"""Measures the acceptance rate of a trained draft head, guess by guess.

Teacher-forced: after every token of the target's own text the head makes a whole proposal, whether
or not the one before was accepted. Knows tokens, but no text.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from specqd._native import BlockDrafter, DraftRequest, Level, Rows, Sequence, logprob_of
from specqd.bench.agreement import new_sequence
from specqd.bench.readings import HeadLevel, NextTokenBlocks
from specqd.bench.resampling import Floats, draw_sets, limits
from specqd.engine.engine import Engine
from specqd.errors import RequestError
from specqd.llm import LLM
from specqd.model.dflash import BlockHead
from specqd.model.heads import Head
from specqd.model.model import Model
from specqd.sampling import SamplingParams

Clock = Callable[[], float]
Counts: TypeAlias = npt.NDArray[np.int64]
Difference = tuple[float, float, float]  # and its 95 % interval, bootstrapped over prompts
Progress = Callable[[int, int], None]  # prompts judged so far, and all prompts


@dataclass(frozen=True, slots=True)
class HeadAcceptance:
    """Guesses by prompt and place, [prompts, places]. A guess counts as accepted only with all
    guesses before it. The nats of a guess are -ln of the probability that a drafter of blocks gives
    to the text's token."""

    reading: str  # of the configuration: `as stated`, or what differs
    temperature: float
    judged_by_prompt: Counts
    accepted_by_prompt: Counts
    reached_by_prompt: Counts  # judged, and all before them accepted
    nats_by_prompt: Floats | None  # summed; None for other heads
    step_s: float  # mean of a forward of the head
    target_s: float  # mean of a forward of the target for one token

    @property
    def judged(self) -> tuple[int, ...]:
        return tuple(self.judged_by_prompt.sum(0).tolist())

    @property
    def accepted(self) -> tuple[int, ...]:
        return tuple(self.accepted_by_prompt.sum(0).tolist())

    @property
    def reached(self) -> tuple[int, ...]:
        return tuple(self.reached_by_prompt.sum(0).tolist())

    @property
    def conditional(self) -> tuple[float, ...]:
        """By place: the acceptance rate of guesses for which all before them were accepted."""
        return tuple(r / j if j else 0.0 for r, j in zip(self.accepted, self.reached, strict=True))

    @property
    def accepted_length(self) -> float:
        """Mean tokens of a round with a whole proposal, the target's own token included."""
        return float(self._lengths(self._all))

    @property
    def nats(self) -> float | None:
        """Cross-entropy of the text under the logits of a drafter of blocks: the mean over places,
        without a selector's part. None for other heads."""
        return None if self.nats_by_prompt is None else float(self._nats(self._all))

    def length_above(self, other: "HeadAcceptance") -> Difference:
        """By how much the mean accepted length is above that of another reading of the head, for
        the same text."""
        return self._above(other, HeadAcceptance._lengths)

    def nats_above(self, other: "HeadAcceptance") -> Difference | None:
        """By how much the cross-entropy is above that of another reading, for the same text."""
        return None if self.nats_by_prompt is None else self._above(other, HeadAcceptance._nats)

    def _above(
        self, other: "HeadAcceptance", figure: "Callable[[HeadAcceptance, Counts], Floats]"
    ) -> Difference:
        # Later places may differ: a proposal ends after a token that ends the text.
        same = np.array_equal(self.judged_by_prompt[:, 0], other.judged_by_prompt[:, 0])
        assert same, "both readings are of the same text"
        sets = draw_sets(len(self.judged_by_prompt))
        low, high = limits(figure(self, sets) - figure(other, sets))
        return float(figure(self, self._all) - figure(other, self._all)), low, high

    @property
    def _all(self) -> Counts:
        return np.arange(len(self.judged_by_prompt))

    def _lengths(self, prompts: Counts) -> Floats:
        """The mean accepted lengths of sets of prompts, [..., prompts]."""
        return np.asarray(1 + self._means(self.accepted_by_prompt, prompts).sum(-1))

    def _nats(self, prompts: Counts) -> Floats:
        assert self.nats_by_prompt is not None
        return np.asarray(self._means(self.nats_by_prompt, prompts).mean(-1))

    def _means(self, sums: Counts | Floats, prompts: Counts) -> Floats:
        """Means over judged guesses, [..., places], of sets of prompts, [..., prompts]."""
        judged = self.judged_by_prompt[prompts].sum(-2)
        return np.asarray(sums[prompts].sum(-2) / np.maximum(judged, 1))

    def described(self) -> dict[str, Any]:
        """The acceptance as a JSON object."""
        return {
            "reading": self.reading,
            "temperature": self.temperature,
            "judged": self.judged[0],
            "acceptance_at": self.conditional,
            "mean_accepted_length": self.accepted_length,
            "nats": self.nats,
            "step_s": self.step_s,
            "target_s": self.target_s,
        }


def head_level(engine: Engine) -> Level | BlockDrafter:
    """The level of a head that drafts for the target alone; RequestError for other chains."""
    level = engine.level.drafter
    if not isinstance(level, Level | BlockDrafter) or not isinstance(level.model, Head | BlockHead):
        raise RequestError("bench head measures a head alone; write head:DIR or mtp", "draft")
    return level


def head_acceptance(
    llm: LLM,
    level: HeadLevel,
    prompts: SequenceOf[SequenceOf[int]],
    params: SamplingParams,
    progress: Progress,
    reading: str = "as stated",
    clock: Clock = perf_counter,
) -> HeadAcceptance:
    """Judges the proposals of a head's level along the text that the target writes.

    params: resolved; the noise of a prompt follows from the seed (0 by default) plus its number.
    """
    assert params.max_tokens is not None
    target, runs = llm.model, list[_Run]()
    before = (level.stats.seconds, level.stats.forwards)
    for number, prompt in enumerate(prompts, 1):
        target.check_tokens(prompt)
        sequence = new_sequence(prompt, params, number - 1, llm.engine.eos_token_ids)
        run = _Run(target, level, sequence, clock)
        try:
            run.write(params.max_tokens)
        finally:
            level.release(sequence)
            target.release(sequence)
        runs.append(run)
        progress(number, len(prompts))
    steps = level.stats.forwards - before[1]
    return HeadAcceptance(
        reading,
        params.temperature or 0.0,
        judged_by_prompt=np.stack([run.judged for run in runs]),
        accepted_by_prompt=np.stack([run.accepted for run in runs]),
        reached_by_prompt=np.stack([run.reached for run in runs]),
        nats_by_prompt=np.stack([run.nats for run in runs]) if _drafts_blocks(level) else None,
        step_s=(level.stats.seconds - before[0]) / max(steps, 1),
        target_s=sum(run.seconds for run in runs) / max(sum(run.forwards for run in runs), 1),
    )


def _drafts_blocks(level: HeadLevel) -> bool:
    return isinstance(level, BlockDrafter | NextTokenBlocks)


class _Run:
    """One text of the target, and the proposals after each of its tokens, counted by place."""

    def __init__(self, target: Model, level: HeadLevel, sequence: Sequence, clock: Clock) -> None:
        assert level.length is not None
        self._target, self._level, self._sequence, self._clock = target, level, sequence, clock
        self.judged, self.accepted, self.reached = np.zeros((3, level.length), int)
        self.nats = np.zeros(level.length)
        self.seconds, self.forwards = 0.0, 0

    def write(self, most: int) -> None:
        """Writes at most `most` tokens, each with a whole proposal after it."""
        sequence, tokens = self._sequence, self._sequence.tokens
        if len(tokens) > 1:
            self._target.forward([Rows(self._target.context(sequence), 0, tokens[:-1], 0)])
        unjudged: list[_Proposed] = []
        for _ in range(most):
            token = self._sample()
            tokens.append(token)
            unjudged = [each for each in unjudged if self._judge(each, token)]
            if sequence.is_stop(token):
                return
            unjudged.append(self._propose())

    def _propose(self) -> "_Proposed":
        level = self._level
        [proposal] = level.propose([DraftRequest(self._sequence, len(self.nats))])
        return _Proposed(proposal.tokens, level.model.logits() if _drafts_blocks(level) else None)

    def _judge(self, proposed: "_Proposed", token: int) -> bool:
        """Judges a proposal's next token by the text's; returns whether it has others."""
        place = proposed.judged
        if place == len(proposed.tokens):
            return False
        is_right = proposed.tokens[place] == token
        self.judged[place] += 1
        self.reached[place] += proposed.is_accepted
        proposed.is_accepted &= is_right
        self.accepted[place] += proposed.is_accepted
        if proposed.logits is not None:
            isa = self._target.machine.isa
            self.nats[place] -= logprob_of(proposed.logits[place], token, isa)
        proposed.judged += 1
        return proposed.judged < len(proposed.tokens)

    def _sample(self) -> int:
        target, sequence, begun = self._target, self._sequence, self._clock()
        rows = Rows(target.context(sequence), len(sequence.tokens) - 1, [sequence.tokens[-1]], 1)
        target.forward([rows])
        self.seconds, self.forwards = self.seconds + self._clock() - begun, self.forwards + 1
        return target.verify(0, [], sequence)[0][0]


@dataclass(slots=True)
class _Proposed:
    """A proposal: its tokens, the logits that they come from, and what is known of it."""

    tokens: SequenceOf[int]
    logits: npt.NDArray[np.float32] | None  # [places, vocabulary]
    judged: int = 0
    is_accepted: bool = True  # all that are judged
