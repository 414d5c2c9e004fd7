"""`specqd.bench.rounds`: no arm is favoured by its turn, and ratios are taken within rounds."""

from itertools import count
from statistics import median

import numpy as np
import pytest

from specqd.bench.rounds import Interval, interleaved, turns


@pytest.mark.parametrize("arms", [1, 2, 3, 4])
def test_each_arm_has_each_turn_equally_often(arms: int) -> None:
    orders = np.array([turns(number, arms) for number in range(2 * arms)])
    assert (np.sort(orders) == np.arange(arms)).all()
    for turn in orders.T:
        assert np.bincount(turn, minlength=arms).tolist() == [2] * arms


def test_the_order_is_reversed_in_every_other_round() -> None:
    assert [turns(number, 2) for number in range(4)] == [[0, 1], [1, 0], [1, 0], [0, 1]]


def test_arms_run_in_turns_between_two_readings_of_the_gauge() -> None:
    clock = count(1)
    arms = dict.fromkeys("ab", lambda number: (number, next(clock)))
    done = interleaved(arms, 2, lambda: {"GB/s": float(next(clock))})
    assert done.runs == {"a": [(0, 2), (1, 6)], "b": [(0, 3), (1, 5)]}
    assert done.gauged == {"GB/s": [(1 + 4) / 2, (4 + 7) / 2]}


def test_ratios_compare_two_arms_within_a_round() -> None:
    done = interleaved({"a": lambda number: 6.0 + 6 * number, "b": lambda number: 3.0}, 2)
    assert done.ratios("a", "b", float) == [2.0, 4.0]


def test_an_interval_holds_its_median_and_narrows_with_more_prompts(
    rng: np.random.Generator,
) -> None:
    values = rng.normal(2.0, 0.1, 400).tolist()
    few, many = Interval.of(values[:10]), Interval.of(values)
    for interval in (few, many):
        assert interval.low <= interval.median <= interval.high
    assert many.high - many.low < few.high - few.low
    assert many.median == median(values)
    assert Interval.of(values) == many  # seeded
    assert Interval.of([1.5]) == Interval(1.5, 1.5, 1.5)


def test_intervals_cover_the_true_median_in_about_95_percent(
    rng: np.random.Generator,
) -> None:
    covered = 0
    for _ in range(200):
        interval = Interval.of(rng.normal(1.0, 0.2, 25).tolist())
        covered += interval.low <= 1.0 <= interval.high
    assert covered >= 170  # 187 of 200 are expected, standard deviation 3.5
