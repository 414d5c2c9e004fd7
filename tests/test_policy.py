"""Costs, calibrations, rates and probes of a level, each by itself."""

import random

import numpy as np
import pytest

from specqd._native import RowCosts
from specqd._native.testing import Calibration, ProbeBudget, ReadingCosts, TokenRate


def test_calibration_learns_how_often_a_confidence_is_right() -> None:
    rng = random.Random(7)
    calibration = Calibration()
    assert 0.8 < calibration.probability(0.9) < 0.95  # a prior: the confidence itself
    for _ in range(2000):
        calibration.observe(0.9, rng.random() < 0.4)
    assert calibration.probability(0.9) == pytest.approx(0.4, abs=0.08)
    # Nothing was seen there: as far below the prior as where something was.
    assert calibration.probability(0.2) == pytest.approx(0.2 * 0.4 / 0.9, abs=0.03)
    sure = Calibration()
    for _ in range(100):
        sure.observe(0.5, True)
    assert sure.probability(0.2) == pytest.approx(0.2)  # never above it


def test_row_costs_are_interpolated_and_extended() -> None:
    costs = RowCosts()
    assert costs.seconds(3) == 0.0
    costs.add(1, 1.0)
    assert costs.seconds(9) == 1.0
    costs.begin({1: 1.0, 5: 1.8})
    assert costs.seconds(3) == pytest.approx(1.4)
    assert costs.seconds(9) == pytest.approx(2.6)
    assert costs.seconds(1009) == pytest.approx(202.6)


def test_rows_beyond_those_measured_become_dearer_with_the_others() -> None:
    """Behind a long context all rows are; forwards of many rows may not have come yet."""
    costs = RowCosts()
    costs.begin({1: 1.0, 5: 1.2})
    for rows in (1, 3, 5) * 90:
        costs.add(rows, 1.0 + 0.2 * (rows - 1))
    assert costs.seconds(25) - costs.seconds(5) == pytest.approx(20 * 0.2, rel=0.2)


def test_what_a_row_for_each_sequence_takes_says_nothing_of_further_rows() -> None:
    """Each sequence of a batch of 32 reads its keys and values once, whatever its rows."""
    measured = {1: 1.0, 16: 1.15, 48: 1.47}
    costs = RowCosts()
    costs.begin(measured, 32)
    other = RowCosts()
    other.begin(measured)
    for rows in (32, 40, 64):
        assert costs.seconds(rows) == pytest.approx(other.seconds(rows))
    for _ in range(90):
        costs.add(32, 3.0)
    assert costs.seconds(32) == pytest.approx(3.0, rel=0.01)
    for rows in (40, 64):
        assert costs.seconds(rows) - costs.seconds(32) == pytest.approx(0.01 * (rows - 32))


def test_costs_begin_from_a_row_at_least() -> None:
    with pytest.raises(ValueError, match="a measured row at least"):
        RowCosts().begin({})


def test_an_outlier_counts_for_twice_the_cost_expected() -> None:
    costs = RowCosts()
    costs.begin({1: 1.0, 9: 2.6})
    other = RowCosts()
    other.begin({1: 1.0, 9: 2.6})
    costs.add(9, 5.2)
    other.add(9, 90.0)
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


@pytest.mark.parametrize("position_s", [0.0, 1e-7, 1e-6])
@pytest.mark.parametrize("measured", [0.3, 1.0, 4.0])
def test_the_time_of_a_prompts_parts_is_learned_from_its_first_parts(
    position_s: float, measured: float
) -> None:
    """Two prompts of 30,000 tokens in turns, the second one after half of the first."""
    rng = random.Random(1)
    costs = ReadingCosts()
    assert costs.rows_within(1.0, 0) is None
    costs.begin({1: 0.01, 48: measured * 0.048})
    took, places = [], [0, 0]
    while min(places) < 30000:
        which = rng.randrange(2) if places[0] > 15000 else 0
        start, rows = places[which], int(costs.rows_within(0.25, places[which]) or 0)
        positions = rows * (start + rows / 2)
        seconds = (0.001 * rows + position_s * positions) * rng.uniform(0.95, 1.05)
        costs.add(rows, positions, seconds)
        took.append(seconds)
        places[which] += rows
    assert max(took[12:]) < 0.5
    assert sorted(took)[len(took) // 2] == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("first", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("more", [0.2, 1.0, 8.0])
def test_the_first_row_and_further_rows_are_learned_whatever_was_measured_first(
    first: float, more: float
) -> None:
    rng = random.Random(1)
    costs = RowCosts()
    costs.begin({1: first, 8: first + 0.7 * more, 16: first + 3.9 * more})

    def truth(rows: int) -> float:
        return 1.0 + 0.1 * (rows - 1) + 0.3 * max(rows - 8, 0)

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


def test_rows_that_seemed_free_become_dear() -> None:
    """A factor of nothing would stay nothing."""
    costs = RowCosts()
    costs.begin(dict.fromkeys((1, 2, 4, 9, 16), 1.0))
    assert costs.seconds(16) <= 1.1
    for rows in (1, 4, 9) * 60:
        costs.add(rows, 1.0 + 0.15 * (rows - 1))
    assert costs.seconds(9) == pytest.approx(2.2, rel=0.1)
    assert costs.seconds(1) == pytest.approx(1.0, rel=0.1)


def test_rows_that_a_long_context_makes_dear_are_soon_known(rng: np.random.Generator) -> None:
    """Attention adds 10 ms to each row, and the first was 16 ms dearer; no forward has one row."""
    costs = RowCosts()
    costs.begin({1: 0.074, 2: 0.076, 4: 0.080, 9: 0.100, 16: 0.140})
    for _ in range(100):
        rows = int(rng.integers(2, 12))
        costs.add(rows, (0.078 + 0.0125 * rows) * rng.uniform(0.98, 1.04))
    assert (costs.seconds(9) - costs.seconds(4)) / 5 == pytest.approx(0.0125, rel=0.3)
    assert costs.seconds(6) == pytest.approx(0.153, rel=0.1)


def test_a_rate_is_seconds_per_recent_token() -> None:
    rate = TokenRate()
    assert rate.seconds_per_token is None
    for _ in range(10):
        rate.add(4, 2.0)
    assert rate.seconds_per_token == pytest.approx(0.5)


@pytest.mark.parametrize("right", [0.0, 0.2])
def test_probes_lose_no_more_than_their_share(right: float, rng: np.random.Generator) -> None:
    """Each costs 1 s and saves 2 s where it is right."""
    budget, lost = ProbeBudget(share=0.01), 0.0
    budget.begin(2.0)
    for _ in range(20_000):
        budget.pass_(1.0)
        if budget.is_open:
            budget.charge(1.0)
            lost += 1.0
            if rng.random() < right:
                budget.refund(2.0)
                lost -= 2.0
    assert 0.8 * 200 <= lost <= 2.0 + 200 + 1.0


def test_a_probe_may_begin_while_nothing_is_owed() -> None:
    budget = ProbeBudget(share=0.01)
    assert not budget.is_open
    budget.begin(1.2)
    budget.charge(1.0)
    assert budget.is_open
    budget.charge(5.0)  # a probe that was held up
    budget.pass_(470.0)
    assert not budget.is_open
    budget.pass_(20.0)
    assert budget.is_open


def test_time_without_probes_saves_no_more_than_the_first_budget() -> None:
    budget = ProbeBudget(share=0.01)
    budget.begin(1.0)
    budget.pass_(10_000.0)
    budget.charge(1.5)
    assert not budget.is_open


def test_a_probe_that_was_right_may_be_followed_by_another() -> None:
    budget = ProbeBudget(share=0.01)
    budget.begin(1.0)
    budget.charge(2.0)
    budget.refund(0.9)
    assert not budget.is_open
    budget.refund(0.2)
    assert budget.is_open
