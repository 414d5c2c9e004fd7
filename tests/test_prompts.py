"""Which prompts a round reads, and how many tokens of each. Fakes tell lengths and costs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specqd._native import Sequence
from specqd.engine.generation import Generation
from specqd.engine.prompts import PromptReader, Reading
from support.engines import fake_generation

ROW_S, POSITION_S = 0.001, 0.0000005  # of a token, and of each position before it


class Costs:
    """A level by the tokens that it has not read, at known costs."""

    def __init__(self, max_rows: int = 512, vocabulary: int = 1000) -> None:
        self.model = SimpleNamespace(max_rows=max_rows, vocabulary=vocabulary)
        self.unread: dict[int, int] = {}

    def num_unread(self, sequence: Sequence) -> int:
        return self.unread[sequence.key]

    def tokens_within(self, seconds: float, position: int) -> int:
        within = int(seconds / (ROW_S + POSITION_S * position))
        return min(max(within, 16), self.model.max_rows)

    def read(self, readings: list[Reading]) -> None:
        for each in readings:
            self.unread[each.generation.sequence.key] -= each.count


def seconds_of(readings: list[Reading], costs: Costs) -> float:
    total = 0.0
    for each in readings:
        sequence = each.generation.sequence
        start = len(sequence.tokens) - 1 - costs.unread[sequence.key]
        total += each.count * (ROW_S + POSITION_S * start)
    return total


def reader(costs: Costs, max_gap_s: float = 0.25, fixed_tokens: int | None = None) -> PromptReader:
    level: Any = costs
    return PromptReader(level, max_gap_s, fixed_tokens)


def prompt(costs: Costs, length: int, *, scored: bool = False) -> Generation:
    generation = fake_generation(length, prompt_logprobs=1 if scored else None)
    costs.unread[generation.sequence.key] = length - 1
    return generation


def counts(readings: list[Reading]) -> dict[Generation, int]:
    return {each.generation: each.count for each in readings}


def test_a_sequence_without_unread_tokens_decodes_in_every_round() -> None:
    costs = Costs()
    decoding, long = prompt(costs, 1), prompt(costs, 5000)
    plan = reader(costs).plan([decoding, long])
    assert [each.generation for each in plan] == [decoding, long]
    assert plan[0].is_last
    assert plan[0].count == 0
    assert not plan[1].is_last


def test_a_prompt_that_delays_nobody_may_take_twice_the_time() -> None:
    costs = Costs()
    long = prompt(costs, 5000)
    alone = seconds_of(reader(costs, 0.1).plan([long]), costs)
    beside = seconds_of(reader(costs, 0.1).plan([long, prompt(costs, 1)]), costs)
    assert alone == pytest.approx(0.2, rel=0.02)
    assert beside == pytest.approx(0.1, rel=0.02)
    enough = seconds_of(reader(costs, 0.3).plan([long]), costs)
    assert enough == pytest.approx(0.3, rel=0.02)


def test_a_short_prompt_is_read_in_its_first_round_beside_a_long_one() -> None:
    costs = Costs()
    long, short = prompt(costs, 20000), prompt(costs, 40)
    for max_gap_s in (0.25, 10.0):  # limited by the time, and by the rows of a forward
        plan = reader(costs, max_gap_s).plan([long, short])
        assert counts(plan)[short] == 39
        assert plan[1].is_last
        assert counts(plan)[long] > 100  # in what remains
        assert seconds_of(plan, costs) <= max_gap_s + 0.01


def test_the_oldest_prompt_is_read_though_shorter_ones_keep_coming(
    rng: np.random.Generator,
) -> None:
    costs = Costs()
    long, reads = prompt(costs, 8000), reader(costs)
    others = [prompt(costs, int(rng.integers(100, 400))) for _ in range(8)]
    rounds = 0
    while costs.unread[long.sequence.key]:
        plan = reads.plan([long, *others])
        assert sum(counts(plan).values()) <= 512
        costs.read(plan)
        others = [each for each in others if costs.unread[each.sequence.key]]
        others += [prompt(costs, int(rng.integers(100, 400))) for _ in range(8 - len(others))]
        rounds += 1
    assert rounds * 0.25 < 5 * seconds_alone(8000)


def seconds_alone(length: int) -> float:
    return length * (ROW_S + POSITION_S * length / 2)


def test_prompts_are_read_by_the_shortest_remainder() -> None:
    costs = Costs()
    prompts = [prompt(costs, length) for length in (3000, 300, 1000, 50)]
    plan = counts(reader(costs).plan(prompts))
    oldest, middle, last, shortest = prompts
    assert plan[shortest] == 49
    assert 0 < plan[middle] < 299
    assert last not in plan
    assert plan[oldest] == pytest.approx(0.25 * 250, abs=2)


def test_a_round_keeps_rows_for_sequences_that_decode() -> None:
    costs = Costs(max_rows=64)
    long, decoding = prompt(costs, 5000), [prompt(costs, 1) for _ in range(20)]
    assert counts(reader(costs, 10.0).plan([long, *decoding]))[long] == 64 - 21
    assert counts(reader(costs, 10.0).plan([long]))[long] == 63


def test_scored_prompts_take_only_the_rows_that_logits_have() -> None:
    costs = Costs(vocabulary=(1 << 24) // 100)
    prompts = [prompt(costs, 300, scored=True) for _ in range(3)] + [prompt(costs, 300)]
    plan = reader(costs, 10.0).plan(prompts)
    assert sum(each.scores for each in plan) == 100
    assert all(each.scores == (0 if each.generation is prompts[3] else each.count) for each in plan)
    assert counts(plan)[prompts[3]] == 299


def test_tokens_read_again_are_not_scored_again() -> None:
    costs = Costs()
    again = prompt(costs, 200, scored=True)
    again.prompt_logprobs += [SimpleNamespace()] * 80  # type: ignore[list-item]
    [reading] = reader(costs, fixed_tokens=100).plan([again])
    assert (reading.count, reading.scores) == (100, 20)


@pytest.mark.parametrize("fixed", [1, 2, 7, 64])
def test_a_fixed_number_of_tokens_advances_the_oldest_in_every_round(fixed: int) -> None:
    costs = Costs()
    prompts = [prompt(costs, length) for length in (500, 30, 70)]
    for _ in range(20):
        plan = reader(costs, fixed_tokens=fixed).plan(prompts)
        assert sum(counts(plan).values()) == fixed
        assert counts(plan)[prompts[0]] >= max(1, fixed // 4)


def test_a_round_that_took_too_long_leaves_less_time_for_prompts() -> None:
    costs = Costs()
    long, decoding = prompt(costs, 50000), prompt(costs, 1)
    reads = reader(costs)
    first = reads.plan([long, decoding])
    for _ in range(20):
        plan = reads.plan([long, decoding])
        reads.learn(plan, 0.15 + seconds_of(plan, costs))  # decoding takes the rest
    assert seconds_of(plan, costs) == pytest.approx(0.1, rel=0.05)
    for _ in range(40):
        plan = reads.plan([long, decoding])
        reads.learn(plan, seconds_of(plan, costs))
    assert counts(plan) == counts(first)
