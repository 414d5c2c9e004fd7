"""When another draft token pays: the books by themselves, and levels over models of known cost.

Time is the models' own: a forward takes what the test says, so that results are exact and quick.
"""

import random
from collections.abc import Sequence as SequenceOf

import pytest

from fake_model import FakeModel, Rule, next_by_hash, often
from specqd import _native
from specqd.context import Rows
from specqd.drafters import Ask, NoDraft
from specqd.economics import Calibration, Estimate, Pace, ProbeBudget, RowCosts
from specqd.level import Level
from specqd.sequence import Sequence

TARGET = next_by_hash(64)
WRONG = next_by_hash(64, salt=1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedModel(FakeModel):
    """A fake model whose forward takes `first` seconds for a row and `more` for each other."""

    clock: Clock
    first: float
    more: float

    def takes(self, clock: Clock, first: float, more: float) -> "TimedModel":
        self.clock, self.first, self.more = clock, first, more
        return self

    def as_draft(self, rule: Rule) -> "TimedModel":
        return TimedModel(rule, self.vocabulary, exact=self)

    def forward(self, batch: SequenceOf[Rows]) -> None:
        super().forward(batch)
        self.clock.now += self.first + self.more * (sum(len(r.tokens) for r in batch) - 1)


def seconds_per_token(
    draft_rule: Rule | None,
    *,
    length: int | None = None,
    batch: int = 1,
    count: int = 1000,
    draft_cost: float = 0.25,
    row: float = 0.1,
    busy: float = 1.0,
) -> float:
    """Decoding over a target of one second a row, `row` for each more; while costs were measured,
    the draft and further rows took `busy` times as long."""
    clock = Clock()
    target = TimedModel(TARGET).takes(clock, 1.0, row * busy)
    level = Level(target, NoDraft(), clock=clock)
    if draft_rule is not None:
        draft = target.as_draft(draft_rule).takes(clock, draft_cost * busy, row / 4 * busy)
        level.drafter = Level(draft, NoDraft(), length=length, clock=clock)
        level.measure()
        clock.now, target.more, draft.first, draft.more = 0.0, row, draft_cost, row / 4
    texts = [Sequence([i + 1, 2, 3], _native.Picker(), 3) for i in range(batch)]
    made = 0
    while made < count * batch:
        results = level.advance([Ask(text, 1000) for text in texts])
        for text, result in zip(texts, results, strict=True):
            text.tokens.extend(result.tokens)
            made += len(result.tokens)
    return clock.now / made


@pytest.mark.parametrize("percent", [60, 85, 97])
@pytest.mark.parametrize("draft_cost", [0.1, 0.25, 0.45])
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


def test_a_draft_that_becomes_right_is_found_again() -> None:
    changes = 400

    def rule(prefix: tuple[int, ...]) -> int:
        return (WRONG if len(prefix) < changes else TARGET)(prefix)

    late = seconds_per_token(rule, count=3000)
    plain, right = seconds_per_token(None), seconds_per_token(TARGET, count=2000)
    assert late < plain * 0.3 + right * 0.7


def test_costs_measured_on_a_busy_machine_are_soon_corrected() -> None:
    rule = often(TARGET, WRONG, percent=90)
    fair = seconds_per_token(rule, count=1500)
    assert fair < 0.7  # drafting pays
    assert seconds_per_token(rule, count=1500, busy=8.0) <= 1.1 * fair


def test_calibration_learns_how_often_a_confidence_is_right() -> None:
    rng = random.Random(7)
    calibration = Calibration()
    assert 0.8 < calibration.probability(0.9) < 0.95  # a prior: the confidence itself
    for _ in range(2000):
        calibration.observe(0.9, rng.random() < 0.4)
    assert calibration.probability(0.9) == pytest.approx(0.4, abs=0.08)
    assert calibration.probability(0.2) == pytest.approx(0.2, abs=0.1)


def test_an_outlier_moves_an_estimate_little_and_is_soon_forgotten() -> None:
    estimate = Estimate()
    for sample in [1.0] * 20 + [100.0]:
        estimate.add(sample)
    assert estimate.value == pytest.approx(1.1)
    late = Estimate()
    for sample in [10.0] + [1.0] * 25:  # the first was slow
        late.add(sample)
    assert late.value is not None
    assert late.value < 1.3


def test_row_costs_are_interpolated_and_extended() -> None:
    costs = RowCosts()
    assert costs.seconds(3) == 0.0
    costs.add(1, 1.0)
    assert costs.seconds(9) == 1.0
    costs.add(5, 1.8)
    assert costs.seconds(3) == pytest.approx(1.4)
    assert costs.seconds(9) == pytest.approx(2.6)
    costs.add(9, 90.0)  # far out of line: taken for twice the 2.6 expected, and little of that
    assert costs.seconds(9) == pytest.approx(2.6 + 0.1 * 2.6)


def test_more_rows_never_cost_less() -> None:
    costs = RowCosts()
    costs.begin({1: 1.0, 2: 1.1, 4: 3.0, 9: 1.5})  # disturbed at four
    assert costs.seconds(4) == costs.seconds(9)
    assert costs.seconds(2) < costs.seconds(3) < costs.seconds(4)


def test_a_row_that_was_free_once_may_cost_later() -> None:
    costs = RowCosts()
    costs.add(1, 1.0)
    for rows in (2, 3, 4):
        costs.add(rows, 1.0)
    for _ in range(60):
        costs.add(1, 1.0)
        costs.add(4, 2.0)
    assert costs.seconds(4) == pytest.approx(2.0, rel=0.01)


def test_pace_is_seconds_per_token_of_late() -> None:
    pace = Pace()
    assert pace.seconds_per_token is None
    for _ in range(10):
        pace.add(4, 2.0)
    assert pace.seconds_per_token == pytest.approx(0.5)


def test_probes_take_no_more_than_their_share() -> None:
    budget = ProbeBudget(share=0.01)
    probes = sum(budget.allows(1.0, 0.5) for _ in range(10_000))
    assert 190 <= probes <= 200  # half a second each: one percent of ten thousand


def test_a_probe_that_was_right_may_be_followed_by_another() -> None:
    budget = ProbeBudget(share=0.1)
    while not budget.allows(1.0, 0.55):
        pass
    assert not budget.allows(1.0, 0.55)
    budget.refund()
    assert budget.allows(1.0, 0.55)
    assert not budget.allows(1.0, 0.55)
