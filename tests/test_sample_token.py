"""Sampled tokens equal their definition and have the same bits on every instruction set."""

import math
from dataclasses import replace

import numpy as np
import pytest

from specqd import _native
from specqd._native import testing
from support.sampling_reference import ISAS, LARGEST, Floats, Params, check

SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 257, 1000, 1024, 1025, 5000, 32003]


def random_logits(rng: np.random.Generator, size: int) -> Floats:
    logits = (rng.standard_normal(size) * rng.choice([0.1, 1.0, 3.0, 10.0])).astype(np.float32)
    if rng.random() < 0.3:  # ties
        logits = np.round(logits)
    return logits


ALONE = [
    Params(),
    Params(temperature=1.0),
    Params(temperature=0.8),
    Params(temperature=0.05),
    Params(temperature=5.0),
    Params(temperature=1.0, top_k=1),
    Params(temperature=1.0, top_k=5),
    Params(temperature=1.0, top_k=50),
    Params(temperature=1.0, top_k=3000),
    Params(temperature=1.0, top_p=0.9),
    Params(temperature=1.0, top_p=0.1),
    Params(temperature=1.0, top_p=0.999),
    Params(temperature=1.0, top_p=1e-6),
    Params(temperature=1.0, min_p=0.05),
    Params(temperature=1.0, min_p=1.0),
    Params(temperature=0.7, top_k=40, top_p=0.9, min_p=0.01),
    Params(temperature=1.3, top_p=0.95, min_p=0.001),
]


@pytest.mark.parametrize("params", ALONE)
def test_a_sampled_token_equals_its_definition(params: Params, rng: np.random.Generator) -> None:
    for size in SIZES:
        for _ in range(2):
            seeded = replace(params, seed=int(rng.integers(2**63)), sample=int(rng.integers(2**32)))
            check(seeded, random_logits(rng, size), int(rng.integers(2**40)))


def test_a_token_sampled_with_all_parameters_equals_its_definition(
    rng: np.random.Generator,
) -> None:
    for _ in range(150):
        size = int(rng.choice(SIZES[4:]))
        prompt = int(rng.integers(1, 40))
        history = rng.integers(0, min(size, 60), prompt + int(rng.integers(0, 60)))
        params = Params(
            temperature=float(rng.choice([0.0, 0.5, 1.0, 2.0])),
            top_p=float(rng.choice([1.0, 0.95, 0.5])),
            min_p=float(rng.choice([0.0, 0.02])),
            top_k=int(rng.choice([0, 3, 100])),
            repetition_penalty=float(rng.choice([1.0, 1.3, 0.8])),
            presence_penalty=float(rng.choice([0.0, 0.7, -1.0])),
            frequency_penalty=float(rng.choice([0.0, 0.4, -0.3])),
            seed=int(rng.integers(2**63)),
            bias={int(t): float(rng.normal() * 5) for t in rng.integers(0, size, 4)},
        )
        allowed = rng.random(size) < 0.3 if rng.random() < 0.5 else None
        token = check(
            params, random_logits(rng, size), 7, history.astype(np.int32), prompt, allowed
        )
        assert allowed is None or token == -1 or allowed[token]


def test_ties_go_to_the_lowest_id_and_zeros_of_both_signs_tie() -> None:
    logits = np.full(200, -1.0, np.float32)
    logits[[40, 150]] = 0.0
    logits[33] = -0.0
    for isa in ISAS:
        assert testing.sample_token(Params().native(), logits, 0, isa=isa)[0] == 33
        sampler = Params(temperature=1.0, top_k=2).native()
        tokens = {testing.sample_token(sampler, logits, t, isa=isa)[0] for t in range(200)}
        assert tokens == {33, 40}
        sampler = Params(temperature=1.0, top_p=0.005).native()
        assert {testing.sample_token(sampler, logits, t, isa=isa)[0] for t in range(50)} == {33}


def test_top_p_keeps_the_lowest_ids_of_equal_logits() -> None:
    logits = np.zeros(1024, np.float32)
    for isa in ISAS:
        sampler = Params(temperature=1.0, top_p=10 / 1024).native()
        tokens = {testing.sample_token(sampler, logits, t, isa=isa)[0] for t in range(400)}
        assert tokens == set(range(10))


def test_top_p_may_drop_the_largest_logit_where_weights_tie() -> None:
    """Weights are rounded, so a slightly smaller logit of a lower id may rank first."""
    logits = np.array([-1.0, -1e-14, 0.0], np.float32)
    for isa in ISAS:
        sampler = Params(temperature=1.0, top_p=0.1).native()
        assert {testing.sample_token(sampler, logits, t, isa=isa) for t in range(50)} == {(1, 1.0)}


def test_penalties_count_the_output_and_repetition_also_the_prompt() -> None:
    logits = np.array([2.0, 1.9, -1.0, 1.5], np.float32)
    history = np.array([0, 0, 1], np.int32)

    def greedy(prompt_length: int, **penalties: float) -> int:
        return check(Params(**penalties), logits, 3, history, prompt_length)  # type: ignore[arg-type]

    assert greedy(3, presence_penalty=1.0) == 0  # nothing is output yet
    assert greedy(2, presence_penalty=1.0) == 0
    assert greedy(0, presence_penalty=1.0) == 3
    assert greedy(0, frequency_penalty=0.2) == 1  # 1.6, 1.7, -1, 1.5
    assert greedy(3, repetition_penalty=1.5) == 3
    assert greedy(3, repetition_penalty=0.5) == 0


def test_penalties_of_one_token_do_not_affect_the_next(rng: np.random.Generator) -> None:
    sampler = Params(presence_penalty=2.0, repetition_penalty=1.5).native()
    logits = random_logits(rng, 500)
    first = testing.sample_token(sampler, logits, 0)
    testing.sample_token(sampler, logits, 0, rng.integers(0, 500, 300).astype(np.int32), 100)
    assert testing.sample_token(sampler, logits, 0) == first
    other = testing.sample_token(Params().native(), logits[:80], 0)
    assert testing.sample_token(sampler, logits[:80], 0) == other


def test_a_nan_is_never_sampled_and_infinity_counts_as_the_largest(
    rng: np.random.Generator,
) -> None:
    for temperature in (0.0, 1.0):
        for extra in ({}, {"top_k": 3}, {"top_p": 0.5}):
            params = Params(temperature=temperature, **extra)  # type: ignore[arg-type]
            logits = random_logits(rng, 300)
            logits[rng.integers(0, 300, 100)] = np.nan
            logits[rng.integers(0, 300, 50)] = -np.inf
            check(params, logits, 5)
            logits[[17, 290]] = np.inf
            assert check(params, logits, 5) in (17, 290)
            check(params, np.full(70, np.nan, np.float32))
            check(params, np.full(70, -np.inf, np.float32))
            check(params, np.full(70, np.inf, np.float32))
            check(params, np.full(70, -LARGEST, np.float32))
            check(params, np.array([LARGEST, -LARGEST, 1e-42, -1e-42], np.float32))


def test_an_empty_mask_gives_no_token() -> None:
    logits = np.zeros(100, np.float32)
    for isa in ISAS:
        mask = np.zeros(4, np.uint32)
        for params in (Params(), Params(temperature=1.0)):
            sampled = testing.sample_token(params.native(), logits, 0, mask=mask, isa=isa)
            assert sampled == (-1, 0.0)


def test_bits_are_equal_on_all_instruction_sets(rng: np.random.Generator) -> None:
    for size in (*SIZES, 70001):
        logits = random_logits(rng, size)
        logits[rng.integers(0, size, 3)] = [np.nan, -np.inf, 1e-41]
        whole = {_native.log_softmax(logits, isa).tobytes() for isa in ISAS}
        tops = {tuple(_native.top_logprobs(logits, 20, isa)) for isa in ISAS}
        ones = {_native.logprob_of(logits, size // 2, isa) for isa in ISAS}
        assert len(whole) == len(tops) == 1
        assert len({np.float32(one).tobytes() for one in ones}) == 1
        params = Params(temperature=0.9, top_p=0.98, seed=int(rng.integers(2**63)))
        sampled = {testing.sample_token(params.native(), logits, 3, isa=isa) for isa in ISAS}
        assert len(sampled) == 1


# --- Log-probabilities -------------------------------------------------------------------------


def test_log_softmax_is_within_its_bound_of_float64(rng: np.random.Generator) -> None:
    for size in SIZES:
        logits = random_logits(rng, size)
        x = logits.astype(float)
        exact = x - x.max() - np.log(np.exp(x - x.max()).sum())
        # Two roundings of numbers as large as the result, and an error of the mass of a few ulp.
        error = np.abs(_native.log_softmax(logits) - exact)
        assert np.all(error <= 2.0**-22 * (1 + np.abs(exact)))


def test_top_logprobs_are_the_sorted_log_softmax(rng: np.random.Generator) -> None:
    for size in SIZES:
        for count in (1, 5, 20, 2000):
            logits = np.round(random_logits(rng, size), 1)
            logprobs = _native.log_softmax(logits)
            order = np.lexsort((np.arange(size), -logits))[:count]
            expected = [(int(i), float(logprobs[i])) for i in order]
            missing = [(-1, -math.inf)] * (count - len(expected))
            assert _native.top_logprobs(logits, count) == expected + missing
            assert _native.logprob_of(logits, int(order[-1])) == logprobs[order[-1]]
