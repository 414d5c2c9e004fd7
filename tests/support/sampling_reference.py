"""Defines in NumPy which token is sampled at a position: all tokens get noise and a score.

Only the sums of top-p may differ in the native code, by the rounding of its exponentials. Cases in
which a token is that close to the boundary are not compared.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native
from specqd._native import testing

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

    def native(self) -> _native.Sampler:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "bias"}
        return _native.Sampler(
            **values, bias_ids=list(self.bias), bias=[float(b) for b in self.bias.values()]
        )


def philox(counter: NDArray[np.uint64], rest: tuple[int, int, int], key: int) -> list[NDArray]:
    """Philox4x32-10 (Salmon et al. 2011): four arrays of 32-bit words for (counter, *rest)."""
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


def expected_token(
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
    z, weights, is_sure = weighed(params, x)
    noise = gumbel(noise_bits(params, position, len(x)))
    token = int(np.argmax(np.where(weights > 0, z + noise, -np.inf)))
    return Expected(token, weights[token] / weights.sum(), is_sure)


def weighed(params: Params, x: Floats) -> tuple[Floats, NDArray[np.float64], bool]:
    """Returns the processed logits divided by the temperature, their unnormalised probabilities,
    and whether the native code must keep the same tokens."""
    with np.errstate(over="ignore"):
        inverse = np.float32(1) / np.float32(params.temperature)
        z = ((x - x.max()) * inverse).astype(np.float32)
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
        # The error of a weight is up to 4 ulp, and truncation takes up to 2^-40 from it.
        slack = weights.sum() * 2.0**-21 + len(x) * 2.0**-39
        is_sure = not np.any((np.abs(before - limit) <= slack) & (weights[order] > 2.0**-40))
        weights = np.where(kept, weights, 0.0)
    return z, weights, is_sure


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
    """Compares one sampled token with its definition on each instruction set; returns it."""
    sampler = params.native()
    sampled = {
        testing.sample_token(
            sampler, logits, position, history, prompt_length, mask_of(allowed), isa
        )
        for isa in ISAS
    }
    assert len(sampled) == 1, f"instruction sets differ: {sampled}"
    token, probability = sampled.pop()
    expected = expected_token(params, logits, position, history, prompt_length, allowed)
    if expected.is_sure:
        assert token == expected.token, (params, position)
        assert probability == pytest.approx(expected.probability, rel=1e-5, abs=1e-12)
    return token
