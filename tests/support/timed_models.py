"""Models of known cost: a forward takes what a test says, so that results are exact and quick."""

from collections.abc import Sequence as SequenceOf

from specqd import _native
from specqd._native import DraftChoice, DraftRequest, Level, NoDraft, Proposal, Rows, Sequence
from specqd.engine.roles import Drafter
from support.fake_model import FakeDrafter, FakeModel, Rule, next_by_hash

TARGET = next_by_hash(64)
WRONG = next_by_hash(64, salt=1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedModel(FakeModel):
    """A fake model whose forward takes `first` seconds for up to `free` rows, `more` for each other
    and, but for those at a sequence's start, `cache` for each sequence."""

    clock: Clock
    first: float
    more: float
    free: int
    cache: float

    def takes(
        self, clock: Clock, first: float, more: float, free: int = 1, cache: float = 0.0
    ) -> "TimedModel":
        self.clock, self.first, self.more = clock, first, more
        self.free, self.cache = free, cache
        return self

    def as_draft(self, rule: Rule) -> "TimedModel":
        return TimedModel(rule, self.vocabulary, exact=self)

    def forward(self, batch: SequenceOf[Rows]) -> None:
        super().forward(batch)
        rows = sum(len(r.tokens) for r in batch)
        self.clock.now += self.first + self.more * max(rows - self.free, 0)
        self.clock.now += self.cache * sum(r.start > 0 for r in batch)


class FreeDrafter(FakeDrafter):
    """Proposes by a rule, for nothing, as many tokens as are worth their rows; knows its chances.

    Counts who confirmed its tokens: the target's rows are asked for with the target's costs.
    """

    def __init__(self, rule: Rule, chance: float) -> None:
        self._rule = rule
        self._chance = chance
        self.observed = 0

    def answer(self, request: DraftRequest) -> Proposal:
        return self._weighed(request)[0]

    def values(self, requests: SequenceOf[DraftRequest]) -> list[tuple[float, float]]:
        weighed = [self._weighed(request) for request in requests]
        return [(value, len(proposal.tokens) * self._chance) for proposal, value in weighed]

    def _weighed(self, request: DraftRequest) -> tuple[Proposal, float]:
        tokens: list[int] = []
        likely, net, best, length = 1.0, 0.0, 0.0, 0
        while len(tokens) < min(request.at_most, 16):
            tokens.append(self._rule((*request.sequence.tokens, *tokens)))
            likely *= self._chance
            net += likely * request.token_value_s
            if net - request.added_seconds(len(tokens)) > best:
                best, length = net - request.added_seconds(len(tokens)), len(tokens)
        return Proposal(tokens[:length], [self._chance] * length), best

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        self.observed += 1


def seconds_per_token(
    draft_rule: Rule | None,
    *,
    below: Drafter | None = None,
    length: int | None = None,
    batch: int = 1,
    count: int = 1000,
    draft_cost: float = 0.25,
    row: float = 0.1,
    free_rows: int = 1,
    busy: float = 1.0,
    cache: float = 0.0,
) -> float:
    """Decoding over a target of one second a row, `row` for each more, and `cache` for each
    sequence; while costs were measured, the draft and further rows took `busy` times as long."""
    clock = Clock()
    target = TimedModel(TARGET).takes(clock, 1.0, row * busy, free_rows, cache)
    level = Level(target, below or NoDraft(), clock=clock)
    draft = target.as_draft(draft_rule or TARGET)
    draft.takes(clock, draft_cost * busy, row / 4 * busy)
    if draft_rule is not None:
        level.drafter = Level(draft, NoDraft(), length=length, clock=clock)
        if below is not None:
            level.drafter = DraftChoice([level.drafter, below])
    level.measure()
    clock.now, target.more, draft.first, draft.more = 0.0, row, draft_cost, row / 4
    sequences = [Sequence([i + 1, 2, 3], _native.Sampler(), 3) for i in range(batch)]
    made = 0
    while made < count * batch:
        results = level.advance([DraftRequest(sequence, 1000) for sequence in sequences])
        for sequence, result in zip(sequences, results, strict=True):
            sequence.tokens.extend(result.tokens)
            made += len(result.tokens)
    return clock.now / made
