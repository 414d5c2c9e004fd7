"""Picking a token: the native code against its definition in NumPy, and the same bits everywhere.

The reference computes every token's noise and score and sorts all of them. Only where it must
sum (top-p) may it differ, and then by no more than the rounding of its exponentials: a case whose
boundary is that close is not compared.
"""

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native

ISAS = [*_native.available_isas()]
LARGEST = np.float32(3.4028235e38)
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Params:
    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_k: int = 0
    seed: int = 0
    sample: int = 0
    bias: dict[int, float] = field(default_factory=dict)

    def native(self) -> _native.Picker:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "bias"}
        return _native.Picker(
            **values, bias_ids=list(self.bias), bias=[float(b) for b in self.bias.values()]
        )


@pytest.fixture
def rng() -> np.random.Generator:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")  # pytest shows it where a test fails
    return np.random.default_rng(seed)


# --- The definition ----------------------------------------------------------------------------


def philox(counter: NDArray[np.uint64], rest: tuple[int, int, int], key: int) -> list[NDArray]:
    """Philox4x32-10 of Salmon et al. 2011: four arrays of 32-bit words for (counter, *rest)."""
    low = np.uint64(0xFFFFFFFF)
    words = [counter.astype(np.uint64), *(np.full_like(counter, r, np.uint64) for r in rest)]
    keys = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        a = words[0] * np.uint64(0xD2511F53)
        b = words[2] * np.uint64(0xCD9E8D57)
        words = [
            (b >> np.uint64(32)) ^ words[1] ^ np.uint64(keys[0]),
            b & low,
            (a >> np.uint64(32)) ^ words[3] ^ np.uint64(keys[1]),
            a & low,
        ]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return words


def noise_bits(params: Params, position: int, size: int) -> NDArray[np.uint64]:
    ids = np.arange(size, dtype=np.uint64)
    counter = ids // np.uint64(64) * np.uint64(16) + ids % np.uint64(16)
    word = (ids // np.uint64(16) % np.uint64(4)).astype(np.int64)
    halves = []
    for half in (0, 1):
        rest = (position & 0xFFFFFFFF, params.sample, (position >> 32) << 1 | half)
        words = np.stack(philox(counter, rest, params.seed))
        halves.append(words[word, np.arange(size)])
    return halves[0] << np.uint64(32) | halves[1]


def gumbel(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    v = (bits.astype(np.float64) + 0.5) * 2.0**-64
    complement = ((~bits).astype(np.float64) + 0.5) * 2.0**-64
    with np.errstate(divide="ignore"):
        return -np.log(np.where(v < 0.5, -np.log1p(-v), -np.log(complement)))


@dataclass(frozen=True)
class Expected:
    token: int
    probability: float
    is_sure: bool


def processed_logits(
    params: Params,
    logits: Floats,
    history: NDArray[np.int32],
    prompt_length: int,
    allowed: NDArray[np.bool_] | None,
) -> Floats:
    x = np.where(np.isnan(logits), -np.inf, logits).astype(np.float32)
    for token, bias in params.bias.items():
        x[token] += np.float32(bias)
    for token in set(history.tolist()):
        count = history[prompt_length:].tolist().count(token)
        penalty = np.float32(params.repetition_penalty)
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
        x[token] -= np.float32(params.frequency_penalty) * np.float32(count)
        if count:
            x[token] -= np.float32(params.presence_penalty)
    if allowed is not None:
        x[~allowed] = -np.inf
    return np.minimum(x, LARGEST)


def expected_pick(
    params: Params,
    logits: Floats,
    position: int,
    history: NDArray[np.int32] | None = None,
    prompt_length: int = 0,
    allowed: NDArray[np.bool_] | None = None,
) -> Expected:
    history = np.zeros(0, np.int32) if history is None else history
    x = processed_logits(params, logits, history, prompt_length, allowed)
    top = x.max()
    if top == -np.inf:
        return Expected(-1, 0.0, True)
    if params.temperature == 0:
        with np.errstate(under="ignore"):
            return Expected(int(np.argmax(x)), 1 / np.exp(x.astype(float) - float(top)).sum(), True)
    with np.errstate(over="ignore"):
        inverse = np.float32(1) / np.float32(params.temperature)
        z = ((x - top) * inverse).astype(np.float32)
    kept = z >= np.float32(-87.3)
    if params.min_p > 0:
        kept &= z >= np.float32(math.log(np.float32(params.min_p)))
    order = np.lexsort((np.arange(len(x)), -x))
    if params.top_k:
        kept[order[params.top_k :]] = False
    weights = np.where(kept, np.exp(z.astype(float)), 0.0)
    is_sure = True
    if params.top_p < 1:
        before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
        limit = float(np.float32(params.top_p)) * weights.sum()
        kept[order[before >= limit]] = False
        # Weights are good to 4 ulp and lose up to 2^-40 to truncation.
        slack = weights.sum() * 2.0**-21 + len(x) * 2.0**-39
        is_sure = not np.any((np.abs(before - limit) <= slack) & (weights[order] > 2.0**-40))
        weights = np.where(kept, weights, 0.0)
    score = np.where(kept, z + gumbel(noise_bits(params, position, len(x))), -np.inf)
    token = int(np.argmax(score))
    return Expected(token, weights[token] / weights.sum(), is_sure)


def mask_of(allowed: NDArray[np.bool_] | None) -> NDArray[np.uint32] | None:
    if allowed is None:
        return None
    padded = np.zeros((len(allowed) + 31) // 32 * 32, np.bool_)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)


def check(
    params: Params,
    logits: Floats,
    position: int = 0,
    history: NDArray[np.int32] | None = None,
    prompt_length: int = 0,
    allowed: NDArray[np.bool_] | None = None,
) -> int:
    """Compare one pick with its definition, on every instruction set; returns the token."""
    picker = params.native()
    picks = {
        picker.pick(logits, position, history, prompt_length, mask_of(allowed), isa) for isa in ISAS
    }
    assert len(picks) == 1, f"instruction sets differ: {picks}"
    token, probability = picks.pop()
    expected = expected_pick(params, logits, position, history, prompt_length, allowed)
    if expected.is_sure:
        assert token == expected.token, (params, position)
        assert probability == pytest.approx(expected.probability, rel=1e-5, abs=1e-12)
    return token


# --- Picks against the definition --------------------------------------------------------------

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
def test_a_pick_is_what_the_definition_says(params: Params, rng: np.random.Generator) -> None:
    for size in SIZES:
        for _ in range(2):
            seeded = replace(params, seed=int(rng.integers(2**63)), sample=int(rng.integers(2**32)))
            check(seeded, random_logits(rng, size), int(rng.integers(2**40)))


def test_everything_together_is_what_the_definition_says(rng: np.random.Generator) -> None:
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
        assert Params().native().pick(logits, 0, isa=isa)[0] == 33
        picker = Params(temperature=1.0, top_k=2).native()
        assert {picker.pick(logits, t, isa=isa)[0] for t in range(200)} == {33, 40}
        picker = Params(temperature=1.0, top_p=0.005).native()
        assert {picker.pick(logits, t, isa=isa)[0] for t in range(50)} == {33}


def test_of_equal_logits_top_p_keeps_the_lowest_ids_exactly() -> None:
    logits = np.zeros(1024, np.float32)
    for isa in ISAS:
        picker = Params(temperature=1.0, top_p=10 / 1024).native()
        assert {picker.pick(logits, t, isa=isa)[0] for t in range(400)} == set(range(10))


def test_penalties_count_the_output_and_repetition_the_prompt_too() -> None:
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


def test_penalties_of_one_pick_leave_no_trace_in_the_next(rng: np.random.Generator) -> None:
    picker = Params(presence_penalty=2.0, repetition_penalty=1.5).native()
    logits = random_logits(rng, 500)
    first = picker.pick(logits, 0)
    picker.pick(logits, 0, rng.integers(0, 500, 300).astype(np.int32), 100)
    assert picker.pick(logits, 0) == first
    assert picker.pick(logits[:80], 0) == Params().native().pick(logits[:80], 0)


def test_a_nan_is_never_picked_and_infinity_is_a_number(rng: np.random.Generator) -> None:
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


def test_nothing_is_picked_where_the_mask_allows_nothing() -> None:
    logits = np.zeros(100, np.float32)
    for isa in ISAS:
        mask = np.zeros(4, np.uint32)
        assert Params().native().pick(logits, 0, mask=mask, isa=isa) == (-1, 0.0)
        assert Params(temperature=1.0).native().pick(logits, 0, mask=mask, isa=isa) == (-1, 0.0)


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
        picks = {params.native().pick(logits, t, isa=isa) for t in (3,) for isa in ISAS}
        assert len(picks) == 1


# --- Log-probabilities -------------------------------------------------------------------------


def test_log_softmax_is_that_of_float64(rng: np.random.Generator) -> None:
    for size in SIZES:
        logits = random_logits(rng, size)
        x = logits.astype(float)
        exact = x - x.max() - np.log(np.exp(x - x.max()).sum())
        # Two roundings of the result's size, and a mass that is good to a few ulp.
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


# --- The noise ---------------------------------------------------------------------------------


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
        picker = params.native()
        assert [picker.noise_bits(position, t) for t in range(300)] == expected.tolist()


def test_gumbel_noise_is_precise_far_into_both_tails(rng: np.random.Generator) -> None:
    crafted = [0, 1, 2, 3, 2**10, 2**40, 2**52 + 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
    crafted += [2**64 - 2, 2**64 - 2**11, int(0.29 * 2**64), int(0.2900001 * 2**64)]
    crafted += [int(bits) for bits in rng.integers(0, 2**64, 2000, dtype=np.uint64)]
    crafted += [int(bits) >> int(rng.integers(64)) for bits in crafted[-1000:]]
    bits = np.array(crafted, np.uint64)
    got = np.array([_native.gumbel(b) for b in crafted])
    expected = gumbel(bits)
    assert np.all(np.abs(got - expected) <= 8e-16 * np.maximum(1, np.abs(expected)))
    assert _native.gumbel(0) == pytest.approx(65 * math.log(2), rel=1e-15)
    assert _native.gumbel(2**64 - 1) == pytest.approx(-math.log(65 * math.log(2)), rel=1e-14)


def test_gumbel_noise_falls_as_its_bits_rise() -> None:
    bits = sorted(
        {int(2 ** (i / 40)) for i in range(40 * 64)} | {2**64 - 1 - 2**i for i in range(60)}
    )
    values = [_native.gumbel(b) for b in bits]
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
def test_tokens_are_drawn_from_the_processed_distribution(
    params: Params, varies: str, rng: np.random.Generator
) -> None:
    draws, size = 20_000, 40
    logits = (rng.standard_normal(size) * 1.5).astype(np.float32)
    z = (logits.astype(float) - logits.max()) / params.temperature
    order = np.argsort(-z)
    kept = z >= math.log(params.min_p) if params.min_p else np.full(size, True)
    if params.top_k:
        kept[order[params.top_k :]] = False
    weights = np.where(kept, np.exp(z), 0)
    before = np.concatenate([[0], np.cumsum(weights[order])[:-1]])
    weights[order[before >= params.top_p * weights.sum()]] = 0
    expected = draws * weights / weights.sum()

    start = int(rng.integers(2**31))
    counts = np.zeros(size)
    picker = replace(params, seed=start).native()
    for i in range(draws):
        if varies == "seed":
            picker = replace(params, seed=start + i).native()
        elif varies == "sample":
            picker = replace(params, seed=start, sample=i).native()
        counts[picker.pick(logits, i if varies == "position" else 5)[0]] += 1
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
        # The mean of 4096 products of variance 1/144: six standard deviations.
        assert abs(np.mean(base * other)) < 6 / 12 / math.sqrt(4096)
    assert abs(base.mean()) < 6 * math.sqrt(1 / 12 / 4096)


def test_the_reported_probability_is_how_often_the_token_comes(rng: np.random.Generator) -> None:
    logits = np.array([1.0, 0.0, -1.0, 0.5], np.float32)
    picker = Params(temperature=0.8, top_k=3, seed=int(rng.integers(2**63))).native()
    picks = [picker.pick(logits, t) for t in range(4000)]
    probability = dict(picks)
    assert sum(probability.values()) == pytest.approx(1.0, rel=1e-6)
    for token, p in probability.items():
        frequency = sum(t == token for t, _ in picks) / len(picks)
        assert abs(frequency - p) < 6 * math.sqrt(p * (1 - p) / len(picks))
