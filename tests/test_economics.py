"""The books that levels keep, each by itself: costs, confidences, pace and probes."""

import random

import numpy as np
import pytest

from specqd._native import (
    BypassBias,
    Calibration,
    Estimate,
    ProbeBudget,
    RowCosts,
    TokenRate,
)


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
    costs.begin({1: 1.0, 5: 1.8})
    assert costs.seconds(3) == pytest.approx(1.4)
    assert costs.seconds(9) == pytest.approx(2.6)
    assert costs.seconds(1009) == pytest.approx(202.6)


def test_an_outlier_counts_for_twice_the_cost_expected() -> None:
    costs = RowCosts()
    costs.begin({1: 1.0, 9: 2.6})
    other = RowCosts()
    other.begin({1: 1.0, 9: 2.6})
    costs.add(9, 5.2)
    costs.add(1, 1.0)  # the end of a run
    other.add(9, 90.0)
    other.add(1, 1.0)
    assert 2.6 < costs.seconds(9) == other.seconds(9) <= 5.2


def test_more_rows_never_cost_less() -> None:
    costs = RowCosts()
    costs.begin({1: 1.0, 2: 1.1, 4: 3.0, 9: 1.5})  # disturbed at four
    assert costs.seconds(4) == costs.seconds(9) == costs.seconds(90) == 1.5
    assert costs.seconds(2) < costs.seconds(3) < costs.seconds(4)
    rng = random.Random(1)
    for _ in range(300):
        costs.add(rng.randint(1, 40), rng.uniform(0.5, 3.0))
    curve = [costs.seconds(rows) for rows in range(1, 60)]
    assert curve == sorted(curve)


@pytest.mark.parametrize("seed", range(5))
def test_row_costs_are_learned_whatever_was_measured_first(seed: int) -> None:
    rng = random.Random(seed)
    costs = RowCosts()
    costs.begin({1: 1.0, 2: 1.0, 4: 7.0, 9: 7.0})

    def truth(rows: int) -> float:
        return 2.0 + 0.1 * (rows - 1) + 0.3 * max(rows - 8, 0)

    for _ in range(1000):
        rows = rng.randint(1, 16)
        costs.add(rows, rng.uniform(0.95, 1.05) * truth(rows))
    for rows in (1, 2, 4, 8, 12, 16):
        assert costs.seconds(rows) == pytest.approx(truth(rows), rel=0.1)


def test_a_machine_that_slows_down_slows_every_number_of_rows() -> None:
    costs = RowCosts()
    costs.begin({1: 1.0, 5: 1.8})
    for i in range(200):
        costs.add(1 if i % 8 == 0 else 5, 2.0 if i % 8 == 0 else 3.6)
    assert costs.seconds(1) == pytest.approx(2.0, rel=0.05)
    assert costs.seconds(5) == pytest.approx(3.6, rel=0.01)
    assert costs.seconds(9) > 4.0


def test_pace_is_seconds_per_token_of_late() -> None:
    pace = TokenRate()
    assert pace.seconds_per_token is None
    for _ in range(10):
        pace.add(4, 2.0)
    assert pace.seconds_per_token == pytest.approx(0.5)


def test_what_was_chosen_for_looking_best_is_expected_to_be_less(rng: np.random.Generator) -> None:
    """Of four tokens whose chances are known but for an error, the one that looks best is taken."""
    fulfilment, right, expected = BypassBias(), 0, 0.0
    assert fulfilment.share == 1.0
    for _ in range(4000):
        chances = rng.uniform(0.3, 0.7, 4)
        stated = chances + rng.uniform(-0.25, 0.25, 4)
        best = int(np.argmax(stated))
        is_right = bool(rng.random() < chances[best])
        fulfilment.observe(stated[best], is_right)
        right, expected = right + is_right, expected + stated[best]
    assert right / expected < 0.9
    assert fulfilment.share == pytest.approx(right / expected, abs=0.08)


def test_probes_take_no_more_than_their_share() -> None:
    budget = ProbeBudget(share=0.01)
    probes = 0
    for _ in range(10_000):
        budget.earn(1.0)
        if budget.allows(cost=0.5, loss=0.5):
            budget.cost(0.5)
            probes += 1
    assert 190 <= probes <= 200  # half a second each: one percent of ten thousand


@pytest.mark.parametrize("right", [0.0, 0.2])
def test_probes_that_bring_less_than_expected_take_no_more_than_their_share(
    right: float, rng: np.random.Generator
) -> None:
    """Each costs 1 s, brings 2 s where it is right, and is expected to be so half of the time."""
    budget = ProbeBudget(share=0.01)
    lost = 0.0
    for _ in range(20_000):
        budget.earn(1.0)
        if budget.allows(cost=1.0, loss=0.0):
            budget.cost(1.0)
            lost += 1.0
            if rng.random() < right:
                budget.bring(2.0)
                lost -= 2.0
    assert 0.5 * (1.0 - 2.0 * right) * 200 <= lost <= 200


def test_a_probe_that_was_held_up_counts_for_twice_its_cost() -> None:
    budget = ProbeBudget(share=0.01)
    budget.earn(50.0)
    assert budget.allows(cost=0.5, loss=0.5)
    budget.cost(100.0)
    budget.earn(99.0)
    assert not budget.has(cost=0.5, loss=0.5)
    budget.earn(2.0)
    assert budget.has(cost=0.5, loss=0.5)


def test_what_was_lent_may_be_lost_to_begin_with() -> None:
    budget = ProbeBudget(share=0.01)
    assert not budget.allows(cost=0.5, loss=0.5)
    budget.lend(1.2)
    assert [budget.allows(cost=0.5, loss=0.5) for _ in range(3)] == [True, True, False]
    budget.earn(20.0)
    assert not budget.has(cost=0.5, loss=0.5)
    budget.earn(11.0)
    assert budget.allows(cost=0.5, loss=0.5)


def test_what_was_saved_in_good_times_is_not_kept_for_bad_ones() -> None:
    budget = ProbeBudget(share=0.01)
    budget.earn(10_000.0)
    assert [budget.allows(cost=0.5, loss=0.5) for _ in range(2)] == [True, False]


def test_a_probe_that_paid_may_be_followed_by_another() -> None:
    budget = ProbeBudget(share=0.1)
    budget.earn(6.0)
    assert budget.allows(cost=2.0, loss=0.5)
    budget.cost(2.0)
    budget.bring(1.9)
    assert not budget.has(cost=2.0, loss=0.5)
    budget.bring(0.2)
    assert budget.allows(cost=2.0, loss=0.5)
    budget.cost(2.0)
    assert not budget.has(cost=2.0, loss=0.5)
