"""Measures the acceptance rate of a trained draft head, guess by guess.

Teacher-forced: after every token of the target's own text the head makes a whole proposal, whether
or not the one before was accepted. Knows tokens, but no text.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from specqd._native import BlockDrafter, DraftRequest, Level, Rows, Sequence
from specqd.bench.agreement import new_sequence
from specqd.bench.readings import HeadLevel
from specqd.engine.engine import Engine
from specqd.errors import RequestError
from specqd.llm import LLM
from specqd.model.dflash import BlockHead
from specqd.model.heads import Head
from specqd.model.model import Model
from specqd.sampling import SamplingParams

Clock = Callable[[], float]
Progress = Callable[[int, int], None]  # prompts judged so far, and all prompts


@dataclass(frozen=True, slots=True)
class HeadAcceptance:
    """Guesses by their place. A guess counts as accepted only with all guesses before it."""

    reading: str  # of the configuration: `as stated`, or what differs
    temperature: float
    judged: tuple[int, ...]
    accepted: tuple[int, ...]
    reached: tuple[int, ...]  # judged, and all before them accepted
    step_s: float  # mean of a forward of the head
    target_s: float  # mean of a forward of the target for one token

    @property
    def shares(self) -> tuple[float, ...]:
        """By place: the share of proposals that are accepted up to it."""
        return tuple(r / j if j else 0.0 for r, j in zip(self.accepted, self.judged, strict=True))

    @property
    def conditional(self) -> tuple[float, ...]:
        """By place: the acceptance rate of guesses for which all before them were accepted."""
        return tuple(r / j if j else 0.0 for r, j in zip(self.accepted, self.reached, strict=True))

    @property
    def accepted_length(self) -> float:
        """Mean tokens of a round with a whole proposal, the target's own token included."""
        return 1.0 + sum(self.shares)

    def described(self) -> dict[str, Any]:
        """The acceptance as a JSON object."""
        return {
            "reading": self.reading,
            "temperature": self.temperature,
            "judged": self.judged[0],
            "acceptance_at": self.conditional,
            "mean_accepted_length": self.accepted_length,
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
    length = level.length
    assert length is not None
    assert params.max_tokens is not None
    target, places = llm.model, range(length)
    judged: list[_Judged] = []
    before, spent, forwards = (level.stats.seconds, level.stats.forwards), 0.0, 0
    for number, prompt in enumerate(prompts, 1):
        target.check_tokens(prompt)
        sequence = new_sequence(prompt, params, number - 1, llm.engine.eos_token_ids)
        run = _Run(target, level, sequence, clock)
        try:
            run.write(params.max_tokens, length)
        finally:
            level.release(sequence)
            target.release(sequence)
        judged += run.proposals
        spent, forwards = spent + run.seconds, forwards + run.forwards
        progress(number, len(prompts))
    steps = level.stats.forwards - before[1]
    step_s = (level.stats.seconds - before[0]) / max(steps, 1)
    temperature = params.temperature or 0.0
    return HeadAcceptance(
        reading,
        temperature,
        judged=tuple(sum(each.end > place for each in judged) for place in places),
        accepted=tuple(sum(each.accepted > place for each in judged) for place in places),
        reached=tuple(
            sum(each.end > place <= each.accepted for each in judged) for place in places
        ),
        step_s=step_s,
        target_s=spent / max(forwards, 1),
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """One proposal: how many of its tokens the text reaches, and how many are accepted."""

    end: int
    accepted: int


class _Run:
    """One text of the target, and the proposals after each of its tokens."""

    def __init__(self, target: Model, level: HeadLevel, sequence: Sequence, clock: Clock) -> None:
        self._target, self._level, self._sequence, self._clock = target, level, sequence, clock
        self._made: list[tuple[int, list[int]]] = []  # where a proposal begins, and its tokens
        self.seconds, self.forwards = 0.0, 0

    def write(self, most: int, length: int) -> None:
        """Writes at most `most` tokens, each with a proposal of `length` tokens after it."""
        sequence, tokens = self._sequence, self._sequence.tokens
        if len(tokens) > 1:
            self._target.forward([Rows(self._target.context(sequence), 0, tokens[:-1], 0)])
        for _ in range(most):
            token = self._sample()
            tokens.append(token)
            if sequence.is_stop(token):
                return
            [proposal] = self._level.propose([DraftRequest(sequence, length)])
            self._made.append((len(tokens), proposal.tokens))

    def _sample(self) -> int:
        target, sequence, begun = self._target, self._sequence, self._clock()
        rows = Rows(target.context(sequence), len(sequence.tokens) - 1, [sequence.tokens[-1]], 1)
        target.forward([rows])
        self.seconds, self.forwards = self.seconds + self._clock() - begun, self.forwards + 1
        return target.verify(0, [], sequence)[0][0]

    @property
    def proposals(self) -> Iterator[_Judged]:
        text = self._sequence.tokens[:]
        for first, proposed in self._made:
            truth = text[first : first + len(proposed)]
            pairs = zip(proposed, truth, strict=False)
            accepted = next((i for i, (a, b) in enumerate(pairs) if a != b), len(truth))
            yield _Judged(len(truth), accepted)
