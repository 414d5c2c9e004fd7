"""The noise of sampled tokens: its bits, its tails, and the distribution of tokens."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd._native import testing
from support.sampling_reference import Params, gumbel, noise_bits, philox, weighed


def test_the_reference_generator_gives_the_published_vectors() -> None:
    ones, pi = 0xFFFFFFFF, (0x85A308D3, 0x13198A2E, 0x03707344)
    cases = [
        (0, (0, 0, 0), 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (ones, (ones, ones, ones), 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0x243F6A88, pi, 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ]
    for counter, rest, key, published in cases:
        words = philox(np.array([counter], np.uint64), rest, key)
        assert " ".join(f"{int(word[0]):08x}" for word in words) == published


def test_noise_bits_are_those_of_the_reference_generator(rng: np.random.Generator) -> None:
    for _ in range(5):
        params = Params(seed=int(rng.integers(2**63)) * 2 + 1, sample=int(rng.integers(2**32)))
        position = int(rng.integers(2**40))
        expected = noise_bits(params, position, 300)
        sampler = params.native()
        assert [testing.noise_bits(sampler, position, t) for t in range(300)] == expected.tolist()


def test_gumbel_noise_is_precise_far_into_both_tails(rng: np.random.Generator) -> None:
    crafted = [0, 1, 2, 3, 2**10, 2**40, 2**52 + 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
    crafted += [2**64 - 2, 2**64 - 2**11, int(0.29 * 2**64), int(0.2900001 * 2**64)]
    crafted += [int(bits) for bits in rng.integers(0, 2**64, 2000, dtype=np.uint64)]
    crafted += [int(bits) >> int(rng.integers(64)) for bits in crafted[-1000:]]
    bits = np.array(crafted, np.uint64)
    got = np.array([testing.gumbel(b) for b in crafted])
    expected = gumbel(bits)
    assert np.all(np.abs(got - expected) <= 8e-16 * np.maximum(1, np.abs(expected)))
    assert testing.gumbel(0) == pytest.approx(65 * math.log(2), rel=1e-15)
    assert testing.gumbel(2**64 - 1) == pytest.approx(-math.log(65 * math.log(2)), rel=1e-14)


def test_gumbel_noise_falls_as_its_bits_rise() -> None:
    bits = sorted(
        {int(2 ** (i / 40)) for i in range(40 * 64)} | {2**64 - 1 - 2**i for i in range(60)}
    )
    values = [testing.gumbel(b) for b in bits]
    assert all(a >= b for a, b in pairwise(values))


# --- The distribution --------------------------------------------------------------------------


def chi_square_bound(degrees: int) -> float:
    """A bound that a fair sample exceeds once in 10^9 (Wilson and Hilferty's approximation)."""
    return degrees * (1 - 2 / (9 * degrees) + 6.0 * math.sqrt(2 / (9 * degrees))) ** 3


@pytest.mark.parametrize(
    "params",
    [
        Params(temperature=1.0),
        Params(temperature=0.6),
        Params(temperature=1.0, top_k=7),
        Params(temperature=1.0, top_p=0.8),
        Params(temperature=1.0, min_p=0.1),
        Params(temperature=1.5, top_k=20, top_p=0.9, min_p=0.02),
    ],
)
@pytest.mark.parametrize("varies", ["position", "seed", "sample"])
def test_tokens_follow_the_processed_distribution(
    params: Params, varies: str, rng: np.random.Generator
) -> None:
    draws, size = 20_000, 40
    logits = (rng.standard_normal(size) * 1.5).astype(np.float32)
    _, weights, _ = weighed(params, logits)
    expected = draws * weights / weights.sum()

    start = int(rng.integers(2**31))
    counts = np.zeros(size)
    sampler = replace(params, seed=start).native()
    for i in range(draws):
        if varies == "seed":
            sampler = replace(params, seed=start + i).native()
        elif varies == "sample":
            sampler = replace(params, seed=start, sample=i).native()
        counts[testing.sample_token(sampler, logits, i if varies == "position" else 5)[0]] += 1
    assert np.all(counts[expected == 0] == 0)
    likely = expected > 5
    rest = expected[~likely].sum()
    chi = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    if rest > 5:
        chi += (counts[~likely].sum() - rest) ** 2 / rest
    assert chi < chi_square_bound(int(likely.sum()))


def test_noise_is_independent_across_tokens_positions_seeds_and_samples() -> None:
    def uniforms(seed: int = 3, sample: int = 0, position: int = 0) -> NDArray[np.float64]:
        bits = noise_bits(Params(seed=seed, sample=sample), position, 4096)
        return bits.astype(np.float64) * 2.0**-64 - 0.5

    base = uniforms()
    others = [uniforms(seed=4), uniforms(seed=3 + 2**32), uniforms(sample=1), uniforms(position=1)]
    others += [uniforms(position=2**32), *(np.roll(base, shift) for shift in (1, 16, 64))]
    for other in others:
        # Six standard deviations of the mean of 4096 products of variance 1/144.
        assert abs(np.mean(base * other)) < 6 / 12 / math.sqrt(4096)
    assert abs(base.mean()) < 6 * math.sqrt(1 / 12 / 4096)


def test_the_reported_probability_is_the_tokens_frequency(rng: np.random.Generator) -> None:
    logits = np.array([1.0, 0.0, -1.0, 0.5], np.float32)
    sampler = Params(temperature=0.8, top_k=3, seed=int(rng.integers(2**63))).native()
    sampled = [testing.sample_token(sampler, logits, t) for t in range(4000)]
    probability = dict(sampled)
    assert sum(probability.values()) == pytest.approx(1.0, rel=1e-6)
    for token, p in probability.items():
        frequency = sum(t == token for t, _ in sampled) / len(sampled)
        assert abs(frequency - p) < 6 * math.sqrt(p * (1 - p) / len(sampled))
