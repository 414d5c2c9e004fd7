"""Rotary tables: the same bits on every machine, within an ulp of float64."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specqd._native import testing
from specqd.config.rope import RopeConfig
from specqd.model.decoder_spec import rope_spec
from support import reference_positions

HEAD_DIM = 128
POSITIONS = 4096

LLAMA3 = RopeConfig(
    kind="llama3",
    theta=5e5,
    factor=8.0,
    original_max_positions=8192,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
)
ROPES = {
    "default": RopeConfig(kind="default", theta=1e4),
    "linear": RopeConfig(kind="linear", theta=1e4, factor=4.0),
    "llama3": LLAMA3,
    "yarn": RopeConfig(kind="yarn", theta=1e6, factor=4.0, original_max_positions=32768),
    "longrope": RopeConfig(
        kind="longrope",
        theta=1e4,
        factor=32.0,
        original_max_positions=4096,
        share=0.75,
        factors=tuple(1 + pair / 8 for pair in range(48)),
    ),
    "proportional": RopeConfig(kind="proportional", theta=1e6, factor=2.0, share=0.25),
}
# sha256 of the inverse frequencies, cosines and sines, little-endian fp32.
DIGESTS = {
    "default": ("4b659c349432de9f", "38f690353f67706c", "30c79f35f2e1fb63"),
    "linear": ("d04657744c7090f2", "441fa97f0a2bc4e0", "e8e733d96b3e6487"),
    "llama3": ("4ae2280930816279", "7d20ef7710298f70", "9b07a593f3834c6a"),
    "yarn": ("fc3a149b70f4f0c5", "a09b2b4ee864e259", "483991480ca90101"),
    "longrope": ("530181da0e5f2d70", "9cf51713989c9e4e", "47ce1a8e5ad8df58"),
    "proportional": ("30ac09ed1f2f8c9d", "9f9ba02e68bec746", "1f562875e3f91a32"),
}
each_rope = pytest.mark.parametrize("name", ROPES)


def tables(name: str, first: int = 0, count: int = POSITIONS) -> Any:
    return testing.rope_tables(rope_spec(ROPES[name], HEAD_DIM), first, count)


@each_rope
def test_tables_have_the_recorded_bits(name: str) -> None:
    frequencies, _, cosines, sines = tables(name)
    found = tuple(
        hashlib.sha256(table.astype("<f4").tobytes()).hexdigest()[:16]
        for table in (frequencies, cosines, sines)
    )
    assert found == DIGESTS[name]


@each_rope
def test_frequencies_are_those_of_the_definition(name: str) -> None:
    """Equal up to the fp32 roundings of transformers: sixteen at most, half an ulp each.

    The blend of llama3 magnifies the error of its weight by less than `factor`."""
    rope = ROPES[name]
    frequencies, factor, _, _ = tables(name, 0, 1)
    exact, exact_factor = reference_positions.frequencies_of(rope, HEAD_DIM)
    roundings = 16 * rope.factor
    assert (np.abs(frequencies - exact) <= exact * roundings * 2.0**-24).all()
    assert factor == np.float32(exact_factor)


@each_rope
def test_cosines_and_sines_are_within_an_ulp(name: str) -> None:
    frequencies, factor, cosines, sines = tables(name)
    angles = (np.arange(POSITIONS, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
    for table, exact in ((cosines, np.cos(angles)), (sines, np.sin(angles))):
        exact = exact * np.float64(factor)
        assert (np.abs(table - exact) <= np.spacing(np.abs(exact).astype(np.float32))).all()


@each_rope
def test_a_table_made_in_parts_is_the_table_made_at_once(name: str) -> None:
    _, _, cosines, sines = tables(name)
    _, _, later_cosines, later_sines = tables(name, 1000, 77)
    assert (later_cosines == cosines[1000:1077]).all()
    assert (later_sines == sines[1000:1077]).all()


def test_yarn_begins_to_stretch_beyond_any_64_bit_dimension() -> None:
    """Where `beta_fast` rotations lie past dimension 2^63, every frequency is divided by factor."""
    rope = RopeConfig(
        kind="yarn", theta=1 + 2.0**-52, factor=4.0, original_max_positions=2**31 - 1,
        beta_fast=1e-30,
    )  # fmt: skip
    frequencies, *_ = testing.rope_tables(rope_spec(rope, HEAD_DIM), 0, 1)
    assert frequencies.tolist() == [0.25] * (HEAD_DIM // 2)


@pytest.mark.parametrize("original", [1, 7, 16384])
def test_the_scale_of_queries_is_the_definition_rounded_once(original: int) -> None:
    rope = RopeConfig("yarn", 1e6, 16.0, original, query_growth=0.1)
    plain = replace(rope, query_growth=0.0)
    for position in (0, original - 1, original, 3 * original - 1, 3 * original, 2**24 - 1):
        exact = 1 + np.float64(0.1) * np.log(1 + position // original)
        found = testing.rope_query_scale(rope_spec(rope, HEAD_DIM), position)
        assert abs(found - exact) <= np.spacing(np.float32(exact)) / 2 * (1 + 1e-6)
        assert testing.rope_query_scale(rope_spec(plain, HEAD_DIM), position) == 1
