"""When another draft token pays: levels over models of known cost."""

from collections.abc import Sequence as SequenceOf

import pytest

from specqd import _native
from specqd._native import DraftChoice, DraftRequest, Level, NoDraft, Proposal, Sequence
from support.fake_model import Rule, next_by_hash, often
from support.slow import values
from support.timed_models import TARGET, WRONG, Clock, FreeDrafter, TimedModel, seconds_per_token


class VariedModel(TimedModel):
    """States all kinds of confidence, whatever its tokens are worth."""

    def verify(
        self, row: int, proposal: SequenceOf[int], sequence: Sequence
    ) -> tuple[list[int], list[float]]:
        tokens, _ = super().verify(row, proposal, sequence)
        place = len(sequence.tokens)
        return tokens, [hash((place + i, token)) % 100 / 100 for i, token in enumerate(tokens)]


@pytest.mark.parametrize("percent", [60, 85, 97])
@pytest.mark.parametrize("draft_cost", values(0.25, slow=[0.1, 0.45]))
def test_lengths_that_set_themselves_are_near_the_best_fixed_one(
    percent: int, draft_cost: float
) -> None:
    rule = often(TARGET, WRONG, percent=percent)
    plain = seconds_per_token(None)
    fixed = [
        seconds_per_token(rule, length=k, draft_cost=draft_cost) for k in (1, 2, 3, 4, 6, 8, 12, 16)
    ]
    free = seconds_per_token(rule, draft_cost=draft_cost)
    # The fake model states one confidence always, so nothing tells a good place from a bad one.
    assert free <= 1.05 * min(plain, *fixed)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_draft_that_is_never_right_costs_next_to_nothing(batch: int) -> None:
    plain = seconds_per_token(None, batch=batch)
    assert seconds_per_token(WRONG, batch=batch, count=1500) <= 1.02 * plain


@pytest.mark.parametrize("percent", [50, 95])
def test_a_draft_that_is_never_right_costs_as_little_beside_another_drafter(percent: int) -> None:
    """A proposal of several parts is one round: its time counts once for probes."""
    free = FreeDrafter(often(TARGET, next_by_hash(64, salt=2), percent=percent), 0.01 * percent)
    alone = seconds_per_token(None, below=free, count=1500)
    assert seconds_per_token(WRONG, below=free, count=1500) <= 1.02 * alone


@pytest.mark.parametrize("percent", [70, 95])
def test_a_draft_that_is_never_right_is_not_tried_anew_at_each_confidence(percent: int) -> None:
    """Beside a better draft each trial costs that one's tokens, and what it must first read."""

    def run(beside: Rule | None) -> tuple[float, int]:
        clock = Clock()
        target = VariedModel(TARGET).takes(clock, 1.0, 0.1)
        rules = {0.25: often(TARGET, WRONG, percent=percent)} | ({0.02: beside} if beside else {})
        drafts = [
            Level(VariedModel(rule).takes(clock, cost, cost / 10), NoDraft(), clock=clock)
            for cost, rule in rules.items()
        ]
        level = Level(target, DraftChoice(drafts), clock=clock)
        level.measure()
        begun, measured = clock.now, drafts[-1].stats.forwards
        sequence = Sequence([1, 2, 3], _native.Sampler(), 3)
        while len(sequence.tokens) < 4000:
            [made] = level.advance([DraftRequest(sequence, 1000)])
            sequence.tokens.extend(made.tokens)
        return clock.now - begun, drafts[-1].stats.forwards - measured

    alone, _ = run(beside=None)
    seconds, trials = run(beside=WRONG)
    assert trials <= 20
    assert seconds <= 1.02 * alone
    seconds, _ = run(beside=TARGET)
    assert seconds <= 0.5 * alone  # a better one is found


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("first", "row"), [(0.05, 0.004), (0.1, 0.05), (0.5, 0.1), (1.0, 1.0)])
def test_a_draft_with_a_cache_of_its_own_catches_up_within_the_share_of_probes(
    first: float, row: float, batch: int
) -> None:
    """A probe pays for the rows that were not forwarded while the draft was not asked."""
    clock = Clock()
    target = TimedModel(TARGET).takes(clock, 1.0, 0.1, free=3)
    draft = Level(TimedModel(WRONG).takes(clock, first, row), NoDraft(), clock=clock)
    level = Level(target, draft, clock=clock)
    level.measure()
    sequences = [Sequence([i + 1, 2, 3], _native.Sampler(), 3) for i in range(batch)]
    spent = []  # by the draft, in seconds
    for forwards in (400, 1600):  # the first ones teach that it is never right
        while level.stats.forwards < forwards:
            results = level.advance([DraftRequest(sequence, 1000) for sequence in sequences])
            for sequence, result in zip(sequences, results, strict=True):
                sequence.tokens.extend(result.tokens)
        asked, rows = draft.stats.forwards, draft.stats.rows
        spent.append(asked * first + (rows - asked) * row)
    assert (spent[0] > 0) == (row < 1.0)  # one that costs what the target does is never tried
    saved = 4 * (first + (batch - 1) * row)  # that the budget may hold
    assert spent[1] - spent[0] <= 0.01 * (1600 - 400) + saved


def test_a_draft_that_continues_those_of_others_pays_for_what_it_must_read() -> None:
    """It must read as much again in the next round, unlike one that begins each proposal."""
    draft = Level(TimedModel(TARGET).takes(clock := Clock(), 0.05, 0.03), NoDraft(), clock=clock)
    draft.measure()
    sequence = Sequence(list(range(1, 11)), _native.Sampler(), 3)
    first, later = (DraftRequest(sequence, 10, 0.15, rows=rows) for rows in (1, 2))
    [[worth, _], [less, _]] = (draft.values([each])[0] for each in (first, later))
    assert worth > 0.0
    assert less == 0.0


def test_a_draft_that_takes_turns_with_others_pays_for_what_it_must_read() -> None:
    draft = Level(TimedModel(TARGET).takes(clock := Clock(), 0.05, 0.03), NoDraft(), clock=clock)
    draft.measure()
    sequence = Sequence([1, 2, 3], _native.Sampler(), 3)

    def worth_after_others() -> float:
        sequence.tokens.extend([5] * 6)
        [(worth, _)] = draft.values([DraftRequest(sequence, 10, 0.15)])
        return worth

    before = worth_after_others()
    for _ in range(12):  # one token of its own for six of others
        draft.propose([DraftRequest(sequence, 1, 10.0)])
        sequence.tokens.extend([5] * 6)
    draft.propose([DraftRequest(sequence, 1, 10.0)])
    assert worth_after_others() < 0.5 * before
    for _ in range(30):  # all tokens are its own
        [proposal] = draft.propose([DraftRequest(sequence, 4, 10.0)])
        sequence.tokens.extend(proposal.tokens)
    assert worth_after_others() == pytest.approx(before, rel=0.05)


def test_only_texts_that_end_say_how_long_texts_usually_are() -> None:
    """What a drafter must read first pays less in a shorter text."""
    draft = Level(TimedModel(TARGET).takes(clock := Clock(), 0.05, 0.03), NoDraft(), clock=clock)
    draft.measure()

    def worth(of: Sequence) -> float:
        [(worth, _)] = draft.values([DraftRequest(of, 10, 0.15)])
        return worth

    def release_short_texts(*, is_preempted: bool) -> float:
        for _ in range(30):
            short = Sequence([1, 2, 3], _native.Sampler(), 2)
            worth(short)
            short.is_preempted = is_preempted
            draft.release(short)
        return worth(long)

    long = Sequence([5] * 25, _native.Sampler(), 24)
    before = worth(long)
    assert release_short_texts(is_preempted=True) == before > 0
    assert release_short_texts(is_preempted=False) < before


def test_a_drafter_reads_a_long_text_of_others_in_parts() -> None:
    """Else its verifier would wait for 400 rows."""
    clock = Clock()
    small = TimedModel(TARGET).takes(clock, 0.05, 0.03)
    level = Level(
        TimedModel(TARGET).takes(clock, 1.0, 0.01),
        Level(small, NoDraft(), length=3, clock=clock),
        clock=clock,
    )
    level.measure()
    small.forwards.clear()
    sequence = Sequence([1, 2, 3], _native.Sampler(), 3)
    sequence.tokens.extend([5] * 400)
    for _ in range(4):
        [step] = level.advance([DraftRequest(sequence, 4)])
        sequence.tokens.extend(step.tokens)
    assert max(sum(rows) for rows in small.forwards) <= 64


def test_a_small_model_drafts_as_much_after_it_read_a_long_prompt() -> None:
    """The cost of its prefill must not count as the cost of drafting."""

    def rule(prefix: tuple[int, ...]) -> int:
        return (WRONG if prefix[0] == 0 else TARGET)(prefix)

    def drafted(prompt: int) -> int:
        clock = Clock()
        target = TimedModel(TARGET, 512).takes(clock, 1.0, 0.1)
        draft = Level(TimedModel(rule, 512).takes(clock, 0.1, 0.001), NoDraft(), clock=clock)
        level = Level(target, draft, clock=clock)
        level.measure()
        for first in range(20):  # after the first sequence nothing may be tried for nothing
            sequence = Sequence([*range(first, first + prompt)], _native.Sampler(), prompt)
            while len(sequence.tokens) < prompt + 80:
                [made] = level.advance([DraftRequest(sequence, 40)])
                sequence.tokens.extend(made.tokens)
        return level.stats.drafted

    assert drafted(300) >= 0.9 * drafted(3)


def test_a_draft_that_becomes_right_is_found_again() -> None:
    changes = 400

    def rule(prefix: tuple[int, ...]) -> int:
        return (WRONG if len(prefix) < changes else TARGET)(prefix)

    late = seconds_per_token(rule, count=3000)
    plain, right = seconds_per_token(None), seconds_per_token(TARGET, count=2000)
    assert late < plain * 0.3 + right * 0.7


def test_a_draft_that_becomes_right_is_found_again_beside_a_better_one() -> None:
    rules = [WRONG]
    clock = Clock()
    target = TimedModel(TARGET).takes(clock, 1.0, 0.05)
    small = TimedModel(lambda prefix: rules[-1](prefix)).takes(clock, 0.05, 0.005)
    own = target.as_draft(often(TARGET, WRONG, percent=80)).takes(clock, 0.25, 0.02)
    drafters = [Level(each, NoDraft(), clock=clock) for each in (own, small)]
    level = Level(target, DraftChoice(drafters), clock=clock)
    level.measure()

    def seconds(texts: int) -> float:
        begun, made = clock.now, 0
        for first in range(texts):
            sequence = Sequence([first + 1, 2, 3], _native.Sampler(), 3)
            while len(sequence.tokens) < 300:
                [result] = level.advance([DraftRequest(sequence, 1000)])
                sequence.tokens.extend(result.tokens)
            level.release(sequence)
            made += len(sequence.tokens) - 3
        return (clock.now - begun) / made

    while_wrong = seconds(2)
    rules.append(often(TARGET, WRONG, percent=95))
    seconds(20)
    assert seconds(10) < 0.5 * while_wrong


@pytest.mark.parametrize("percent", [40, 80, 95])
@pytest.mark.parametrize("draft_cost", values(0.3, slow=[0.1, 0.8]))
@pytest.mark.parametrize("free_percent", [5, 50, 90])
def test_a_chain_is_about_as_fast_as_the_better_of_its_parts(
    percent: int, draft_cost: float, free_percent: int
) -> None:
    """Side by side, at each place of a proposal the drafter that is worth more goes on."""
    rule = often(TARGET, WRONG, percent=percent)
    free = FreeDrafter(
        often(TARGET, next_by_hash(64, salt=2), percent=free_percent), 0.01 * free_percent
    )
    count = 3000  # what both may cost is learned once
    both = seconds_per_token(rule, below=free, draft_cost=draft_cost, count=count)
    free_alone = seconds_per_token(None, below=free, count=count)
    alone = seconds_per_token(rule, draft_cost=draft_cost, count=count)
    assert (free.observed > 0) is (free_percent > 5)  # at 5 it never pays
    assert both <= 1.04 * min(alone, free_alone)


class FitfulDrafter(FreeDrafter):
    """Knows the sequence for a while, then has nothing to say for a while."""

    span = 60  # tokens

    def _weighed(self, request: DraftRequest) -> tuple[Proposal, float]:
        length = len(request.sequence.tokens)
        if length // self.span % 2:
            return Proposal([], []), 0.0
        return super()._weighed(request.changed(at_most=self.span - length % self.span))


def test_a_token_is_worth_what_those_near_it_take() -> None:
    """Where the sequence was known it came fast; where it is not, drafts pay that would not have
    there."""
    rule, case = often(TARGET, WRONG, percent=97), {"draft_cost": 0.4, "row": 0.15}
    known = seconds_per_token(None, below=FreeDrafter(TARGET, 0.99), **case)
    unknown = seconds_per_token(rule, **case)
    assert unknown > 3 * known
    both = seconds_per_token(rule, below=FitfulDrafter(TARGET, 0.99), count=2000, **case)
    assert both <= 1.15 * (known + unknown) / 2


def test_costs_measured_on_a_busy_machine_are_soon_corrected() -> None:
    rule = often(TARGET, WRONG, percent=90)
    fair = seconds_per_token(rule, count=1500)
    assert fair < 0.7  # drafting pays
    assert seconds_per_token(rule, count=1500, busy=8.0) <= 1.1 * fair
