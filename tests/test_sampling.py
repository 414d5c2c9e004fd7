"""Sampling parameters: their ranges, the model's defaults, and the picker made of them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from specqd._native import testing
from specqd.errors import RequestError
from specqd.sampling import SamplingParams
from support.refusals import refused


@dataclass(frozen=True)
class Defaults:
    effective_temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", 1e-9),
        ("temperature", 101),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -1),
        ("top_k", True),
        ("top_k", 2**31),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {1: 101.0}),
        ("logit_bias", {1: math.nan}),
        ("seed", -1),
        ("seed", 2**64),
        pytest.param("seed", 10**5000, id="seed-too-long-to-print"),
        ("temperature", 10**400),
        pytest.param("temperature", -(10**5000), id="temperature-too-long-to-print"),
        ("logit_bias", {0: 10**400}),
        ("n", 0),
        ("stop", [""]),
        ("stop", [3]),
        ("stop_token_ids", [-2]),
        ("logprobs", -1),
        ("logprobs", 1001),
    ],
)
def test_a_value_out_of_range_is_refused_by_field_in_one_line(field: str, value: Any) -> None:
    assert field in refused(RequestError, SamplingParams, **{field: value})


def test_the_ends_of_every_range_are_allowed() -> None:
    SamplingParams(max_tokens=None, temperature=0, top_p=1, top_k=0, min_p=0, seed=2**64 - 1)
    SamplingParams(temperature=1e-6, top_p=1e-6, min_p=1, repetition_penalty=0.01, logprobs=0)
    SamplingParams(presence_penalty=-2, frequency_penalty=2, logit_bias={0: -100, 5: 100}, n=1024)


def test_numpy_numbers_are_accepted() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        logit_bias={np.int64(1): np.float32(0.5)},  # type: ignore[dict-item]
    )
    params.resolved(Defaults()).picker(1, 0)


def test_one_stop_string_becomes_a_list_of_one() -> None:
    assert tuple(SamplingParams(stop="end").stop) == ("end",)


def test_open_values_come_from_the_model_or_else_are_neutral() -> None:
    resolved = SamplingParams(top_p=0.5).resolved(Defaults(0.7, top_p=0.9, top_k=20))
    assert (resolved.temperature, resolved.top_p, resolved.top_k) == (0.7, 0.5, 20)
    assert (resolved.min_p, resolved.repetition_penalty) == (0.0, 1.0)
    assert SamplingParams(temperature=0).resolved(Defaults(0.7)).temperature == 0


def test_history_is_needed_if_a_penalty_is_set() -> None:
    assert not SamplingParams().needs_history
    assert not SamplingParams(repetition_penalty=1.0).needs_history
    for field in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        assert SamplingParams(**{field: 0.5}).needs_history


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    SamplingParams(logit_bias={9: 1.0}, stop_token_ids=[9]).check_vocabulary(10)
    with pytest.raises(RequestError, match="logit_bias: token 10 "):
        SamplingParams(logit_bias={10: 1.0}).check_vocabulary(10)
    with pytest.raises(RequestError, match="stop_token_ids: token 12 "):
        SamplingParams(stop_token_ids=[12]).check_vocabulary(10)


def test_picks_depend_on_parameters_seed_and_sample() -> None:
    logits = np.zeros(100, np.float32)
    params = SamplingParams(temperature=1.0, logit_bias={7: 100.0})
    assert testing.pick(params.picker(1, 0), logits, 0)[0] == 7
    params = SamplingParams(temperature=1.0)
    picks = {
        (seed, sample): tuple(
            testing.pick(params.picker(seed, sample), logits, t)[0] for t in range(20)
        )
        for seed in (1, 2**40 + 1)
        for sample in (0, 1)
    }
    assert len(set(picks.values())) == 4
