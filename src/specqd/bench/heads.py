"""Measures the acceptance rate of a trained draft head, guess by guess.

Teacher-forced: after every token of the target's own text the head makes a whole proposal, whether
or not the one before was accepted. Knows tokens, but no text.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from specqd._native import BlockDrafter, DraftRequest, Level, NoDraft, Rows, Sequence
from specqd.bench.agreement import new_sequence
from specqd.engine.engine import Engine
from specqd.errors import RequestError
from specqd.llm import LLM
from specqd.model.dflash import BlockFiles, BlockHead, load_block_drafter
from specqd.model.heads import Head, HeadFiles, load_head
from specqd.model.model import Model
from specqd.model.mtp import MtpFiles, load_mtp
from specqd.sampling import SamplingParams

Clock = Callable[[], float]
Progress = Callable[[int, int], None]  # prompts judged so far, and all prompts
Files = HeadFiles | BlockFiles | MtpFiles
HeadLevel = Level | BlockDrafter
_OTHER_THETAS = (1e4, 5e5, 1e6)


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


def head_level(engine: Engine) -> HeadLevel:
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


def readings(head: Head | BlockHead, layers: int) -> Iterator[tuple[str, Files]]:
    """Yields other interpretations of a head's configuration, on which makers disagree: what
    differs, and the files. A wrong interpretation shows only in worse drafts."""
    files = head.files
    if isinstance(files, MtpFiles):
        for name in ("reads_normed", "recycles_normed", "hidden_first", "blanks_first"):
            flag = not getattr(files.mtp, name)
            yield (
                f"mtp_{name} {_word(flag)}",
                replace(files, mtp=replace(files.mtp, **{name: flag})),
            )
        return
    if isinstance(files, BlockFiles):
        yield from _block_readings(files, layers)
        return
    assert isinstance(files, HeadFiles)
    config = files.config
    for name, taps in _moved(config.taps, layers):
        yield name, replace(files, config=replace(config, taps=taps))
    for theta in _OTHER_THETAS:
        if theta != config.rope.theta:
            rope = replace(config.rope, theta=theta)
            yield f"rope theta {theta:g}", replace(files, config=replace(config, rope=rope))
    other = replace(config, recycles_normed=not config.recycles_normed)
    yield "norm_output " + _word(other.recycles_normed), replace(files, config=other)
    other = replace(config, keeps_normed=not config.keeps_normed)
    yield "norm_before_residual " + _word(other.keeps_normed), replace(files, config=other)


def _moved(taps: tuple[int, ...], layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Boundaries one layer before and after, where there are such layers."""
    for step in (-1, 1):
        if min(taps) + step >= 0 and max(taps) + step <= layers:
            yield f"layer ids {step:+d}", tuple(tap + step for tap in taps)


def _block_readings(files: BlockFiles, layers: int) -> Iterator[tuple[str, Files]]:
    own = files.layers
    for name, taps in _moved(files.taps, layers):
        yield name, replace(files, config=replace(files.config, taps=taps))
    for theta in _OTHER_THETAS:
        if any(rope is not None and rope.theta != theta for rope in own.ropes):
            ropes = tuple(rope and replace(rope, theta=theta) for rope in own.ropes)
            yield f"rope theta {theta:g}", replace(files, layers=replace(own, ropes=ropes))
    if any(own.windows):
        causal = tuple(not c and w > 0 for c, w in zip(own.causal, own.windows, strict=True))
        name = f"is_causal {_word(any(causal))}"
        yield name, replace(files, layers=replace(own, causal=causal))


def _word(flag: bool) -> str:
    return str(flag).lower()


def level_of(files: Files, head: Head | BlockHead, target: Model, length: int) -> HeadLevel:
    """Makes a level of the same head from these files."""
    if isinstance(files, BlockFiles):
        blocks = BlockHead(files, load_block_drafter(files, target), target, head.precision)
        blocks.draft_for(target)
        return BlockDrafter(blocks, length=length, name="head")
    decoder = load_mtp(files, target) if isinstance(files, MtpFiles) else load_head(files, target)
    other = Head(files, decoder, target, head.precision)
    other.draft_for(target)
    return Level(other, NoDraft(), length=length)
