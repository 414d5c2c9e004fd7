"""Other ways of reading a trained head's files, on which makers disagree or err.

A wrong way shows only in worse drafts. Knows tokens, but no text.
"""

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeAlias

from specqd._native import BlockDrafter, DraftRequest, Level, NoDraft, Proposal, Rows, Sequence
from specqd.model.dflash import BlockFiles, BlockHead, load_block_drafter
from specqd.model.heads import Head, HeadFiles, load_head
from specqd.model.model import Model
from specqd.model.mtp import MtpFiles, load_mtp

Files = HeadFiles | BlockFiles | MtpFiles
HeadLevel: TypeAlias = "Level | BlockDrafter | NextTokenBlocks"
_OTHER_THETAS = (1e4, 5e5, 1e6)


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
    if files.config.selector is not None:
        yield "no selector", replace(files, config=replace(files.config, selector=None))
    if not all(own.windows):
        causal = (True,) * own.num_layers
        yield "causal in all layers", replace(files, layers=replace(own, causal=causal))


def _word(flag: bool) -> str:
    return str(flag).lower()


def level_of(files: Files, head: Head | BlockHead, target: Model, length: int) -> HeadLevel:
    """Makes a level of the same head from these files."""
    if isinstance(files, BlockFiles):
        blocks = BlockHead(files, load_block_drafter(files, target), target, head.precision)
        blocks.draft_for(target.decoder)
        return BlockDrafter(blocks, length=length, name="head")
    decoder = load_mtp(files, target) if isinstance(files, MtpFiles) else load_head(files, target)
    other = Head(files, decoder, target, head.precision)
    other.draft_for(target.decoder)
    return Level(other, NoDraft(), length=length)


def other_levels(level: Level | BlockDrafter, target: Model) -> Iterator[tuple[str, HeadLevel]]:
    """Yields levels that read the same head in other ways, by what differs."""
    head, length = level.model, level.length
    assert length is not None
    for name, files in readings(head, target.config.num_layers):
        yield name, level_of(files, head, target, length)
    if isinstance(head, BlockHead):
        yield "rows predict the next token", NextTokenBlocks(head, length)


@dataclass(slots=True)
class ForwardStats:
    """What a drafter's forwards took."""

    seconds: float = 0.0
    forwards: int = 0


class NextTokenBlocks:
    """Reads each row of a block as the prediction of the token after its own place, as makers of
    other drafters do: the newest token's row then predicts the first token."""

    def __init__(self, model: BlockHead, length: int) -> None:
        self.model, self.length, self.stats = model, length, ForwardStats()

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        """One block for each request, sampled token by token."""
        return [self._propose(request.sequence, request.at_most) for request in requests]

    def _propose(self, sequence: Sequence, at_most: int) -> Proposal:
        model, begun = self.model, perf_counter()
        model.context(sequence)
        if not model.readiness(sequence)[0]:
            return Proposal()
        rows = min(self.length + 1, model.block)
        block = model.block_rows(sequence, rows)
        model.forward([Rows(block.context, block.start, block.tokens, rows)])
        proposal = Proposal(*self._sample(sequence, min(self.length, at_most)))
        self.stats.seconds += perf_counter() - begun
        self.stats.forwards += 1
        return proposal

    def _sample(self, sequence: Sequence, count: int) -> tuple[list[int], list[float]]:
        tokens, stated = list[int](), list[float]()
        for row in range(count):
            sampled, chances = self.model.verify(row, [], sequence)
            sequence.guess(sampled)
            tokens, stated = [*tokens, *sampled], [*stated, *chances]
        sequence.forget_guesses(len(tokens))
        return tokens, stated

    def release(self, sequence: Sequence) -> None:
        self.model.release(sequence)
