"""Sampling parameters: their ranges, the model's defaults, and the sampler made of them."""

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np
import pytest

from specqd._native import Sampler, testing
from specqd.config.generation import GenerationDefaults
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
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", 10**400),
        pytest.param("temperature", -(10**5000), id="temperature-too-long-to-print"),
        ("repetition_penalty", math.inf),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {0: 10**400}),
        pytest.param("seed", 10**5000, id="seed-too-long-to-print"),
        ("stop", [""]),
        ("stop", [3]),
    ],
)
def test_an_impossible_value_is_refused_by_field_in_one_line(field: str, value: Any) -> None:
    assert field in refused(RequestError, SamplingParams, **{field: value})


WHOLE = {  # least, most
    "max_tokens": (1, 2**31 - 1),
    "top_k": (0, 2**31 - 1),
    "seed": (0, 2**64 - 1),
    "n": (1, 1024),
    "stop_token_ids": (0, 2**31 - 1),
    "logprobs": (0, 1000),
    "prompt_logprobs": (0, 1000),
}
REAL = {
    "temperature": (1e-6, 100.0),
    "top_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}


def check_range(allowed: SequenceOf[dict[str, Any]], beyond: SequenceOf[dict[str, Any]]) -> None:
    for fields in allowed:
        SamplingParams(**fields)
    for fields in beyond:
        [field] = fields
        assert field in refused(RequestError, SamplingParams, **fields)


@pytest.mark.parametrize("field", WHOLE)
def test_a_whole_number_has_exactly_this_range(field: str) -> None:
    least, most = WHOLE[field]
    wrap = (lambda value: [value]) if field == "stop_token_ids" else (lambda value: value)
    check_range(
        [{field: wrap(value)} for value in (least, most)],
        [{field: wrap(value)} for value in (least - 1, most + 1, float(most), "1", True)],
    )


@pytest.mark.parametrize("field", REAL)
def test_a_real_number_has_exactly_this_range(field: str) -> None:
    least, most = REAL[field]
    beyond = [math.nextafter(least, -math.inf), math.nextafter(most, math.inf), "1", True]
    check_range([{field: value} for value in (least, most)], [{field: value} for value in beyond])


def test_a_bias_has_exactly_these_ranges() -> None:
    check_range(
        [{"logit_bias": bias} for bias in ({0: -100}, {2**31 - 1: 100.0})],
        [
            {"logit_bias": bias}
            for bias in ({-1: 0}, {2**31: 0}, {1: -100.1}, {1: 100.1}, {"1": 0}, {1: None})
        ],
    )


def test_one_sample_of_at_most_128_tokens_without_penalties_is_the_default() -> None:
    params = SamplingParams()
    assert (params.max_tokens, params.n, params.seed, params.ignore_eos) == (128, 1, None, False)
    assert (params.presence_penalty, params.frequency_penalty, params.logit_bias) == (0, 0, {})
    assert (params.stop, params.stop_token_ids, params.skip_special_tokens) == ((), (), True)
    assert (params.logprobs, params.prompt_logprobs) == (None, None)


def test_values_may_be_open_and_a_temperature_zero() -> None:
    for field in ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        SamplingParams(**{field: None})
    SamplingParams(temperature=0, seed=None, logprobs=None, prompt_logprobs=None)


def test_numpy_numbers_are_accepted() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        logit_bias={np.int64(1): np.float32(0.5)},  # type: ignore[dict-item]
    )
    params.resolved(Defaults()).sampler(1, 0)


def test_one_stop_string_becomes_a_list_of_one() -> None:
    assert tuple(SamplingParams(stop="end").stop) == ("end",)


def test_open_values_come_from_the_model_or_else_are_neutral() -> None:
    resolved = SamplingParams(top_p=0.5).resolved(Defaults(0.7, top_p=0.9, top_k=20))
    assert (resolved.temperature, resolved.top_p, resolved.top_k) == (0.7, 0.5, 20)
    assert (resolved.min_p, resolved.repetition_penalty) == (0.0, 1.0)
    assert SamplingParams(temperature=0).resolved(Defaults(0.7)).temperature == 0
    resolved = SamplingParams().resolved(Defaults(0.7, min_p=0.1, repetition_penalty=1.2))
    assert (resolved.top_p, resolved.top_k) == (1.0, 0)
    assert (resolved.min_p, resolved.repetition_penalty) == (0.1, 1.2)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": None},
        {"presence_penalty": None},
        {"frequency_penalty": None},
        {"stop_token_ids": [None]},
        {"logit_bias": {None: 0}},
    ],
    ids=str,
)
def test_none_is_refused_where_no_model_has_a_default(fields: dict[str, Any]) -> None:
    check_range([], [fields])


def test_open_values_of_a_sampler_are_neutral(rng: np.random.Generator) -> None:
    logits = rng.normal(size=100).astype(np.float32)
    greedy = testing.sample_token(SamplingParams().sampler(1, 0), logits, 0)
    assert greedy[0] == logits.argmax()
    neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    left, given = SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, **neutral)
    samplers = [left.sampler(1, 0), given.sampler(1, 0), Sampler(temperature=1.0, seed=1)]
    history = np.arange(50, dtype=np.int32)
    for position in range(20):
        sampled = [testing.sample_token(sampler, logits, position, history) for sampler in samplers]
        assert sampled[0] == sampled[1] == sampled[2]


def test_checked_values_cannot_be_changed() -> None:
    params = SamplingParams()
    with pytest.raises(FrozenInstanceError):
        params.n = 0  # type: ignore[misc]


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


def test_tokens_depend_on_parameters_seed_and_sample() -> None:
    logits = np.zeros(100, np.float32)
    params = SamplingParams(temperature=1.0, logit_bias={7: 100.0})
    assert testing.sample_token(params.sampler(1, 0), logits, 0)[0] == 7
    params = SamplingParams(temperature=1.0)
    sampled = {
        (seed, sample): tuple(
            testing.sample_token(params.sampler(seed, sample), logits, t)[0] for t in range(20)
        )
        for seed in (1, 2**40 + 1)
        for sample in (0, 1)
    }
    assert len(set(sampled.values())) == 4


def test_iterators_are_read_once_and_kept() -> None:
    params = SamplingParams(stop=iter(["a", "b"]), stop_token_ids=map(int, "12"))  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (1, 2))
    assert SamplingParams(stop=np.array(["a", "b"])).stop == ("a", "b")


def test_impossible_defaults_of_a_model_become_the_nearest_possible_ones() -> None:
    defaults = GenerationDefaults(
        do_sample=True, temperature=1e-9, top_p=0.0, repetition_penalty=1e9
    )
    found = SamplingParams().resolved(defaults)
    assert (found.temperature, found.top_p, found.repetition_penalty) == (0.0, 1e-6, 100)
