"""`specqd.bench.agreement` counts, teacher-forced, the tokens that draft and target both sample."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.bench.agreement import Agreement, agreement, agreements
from specqd.errors import RequestError
from specqd.model.model import Model
from support.families import FAMILY_SHAPES
from support.random_models import make_model

POSITIONS = 16
each_temperature = pytest.mark.parametrize("temperature", [0.0, 0.8])


@pytest.fixture(scope="module")
def plain(small_model: Path) -> LLM:
    return LLM(small_model, "none", threads=1)


@pytest.fixture
def prompts(rng: np.random.Generator) -> list[list[int]]:
    return [rng.integers(0, 256, size).tolist() for size in rng.integers(1, 90, 5)]


def params_at(temperature: float, rng: np.random.Generator) -> SamplingParams:
    seed = int(rng.integers(1 << 32))
    return SamplingParams(max_tokens=POSITIONS, temperature=temperature, seed=seed)


@each_temperature
def test_agreement_is_the_acceptance_of_first_tokens(
    plain: LLM, prompts: list[list[int]], rng: np.random.Generator, temperature: float
) -> None:
    """The engine drafts one token at each place of the same text, and counts what is accepted."""
    params = params_at(temperature, rng)
    counted = agreement(plain.model, prompts, params)
    first = agreement(plain.model, prompts, replace(params, max_tokens=1))
    assert counted.judged == (POSITIONS,) * len(prompts)
    drafted = plain.with_draft("fp4:k=1")
    drafted.engine.scheduler.reuses_prefixes = False  # the first token is the prefill's, undrafted
    for number, prompt in enumerate(prompts):
        own = replace(params, seed=params.seed + number, ignore_eos=True)
        tokens = plain.generate([prompt], own)[0].tokens
        accepted = 0
        for end in range(POSITIONS - 1):
            start = [*prompt, *tokens[:end]]
            [result] = drafted.generate([start], replace(own, max_tokens=3))
            assert (result.stats.levels[0].drafted, result.tokens[0]) == (1, tokens[end])
            accepted += result.stats.levels[0].accepted
        assert counted.agreed[number] - first.agreed[number] == accepted


@each_temperature
def test_a_model_agrees_with_itself(
    plain: LLM, prompts: list[list[int]], rng: np.random.Generator, temperature: float
) -> None:
    params = params_at(temperature, rng)
    [own] = agreements(plain.model, [plain.model], prompts, params, round_length=5)
    assert (own.agreed, own.share, own.interval) == (own.judged, 1.0, (1.0, 1.0))


@each_temperature
def test_a_round_is_a_proposal_of_which_all_is_accepted(
    plain: LLM, prompts: list[list[int]], rng: np.random.Generator, temperature: float
) -> None:
    params = replace(params_at(temperature, rng), ignore_eos=True)
    draft, length = plain.model.as_draft(), 3
    drafted = plain.with_draft(f"fp4:k={length}")
    drafted.engine.scheduler.reuses_prefixes = False
    for prompt in prompts:
        [result] = drafted.generate([prompt], replace(params, max_tokens=1 + length + 1))
        accepted = result.stats.levels[0].accepted_at  # of the first proposal, and maybe more
        judged = replace(params, max_tokens=length)
        start = [[*prompt, result.tokens[0]]]
        counted, same = agreements(plain.model, [draft, draft], start, judged, round_length=length)
        assert counted == same
        assert counted.judged == (length,)
        assert (counted.agreed == (length,)) == (accepted[length - 1 :] == (1,))


def test_prompts_are_judged_alike_alone_together_and_in_a_small_cache(
    small_model: Path, plain: LLM, prompts: list[list[int]], rng: np.random.Generator
) -> None:
    params = params_at(0.8, rng)
    together = agreement(plain.model, prompts, params)
    small = Model.open(small_model, machine=plain.model.machine, cache_positions=128)
    assert agreement(small, prompts, params) == together
    assert small.cache.free_pages == small.cache.total_pages
    alone = [
        agreement(plain.model, [prompt], replace(params, seed=params.seed + number))
        for number, prompt in enumerate(prompts)
    ]
    assert tuple(each.agreed[0] for each in alone) == together.agreed


def test_the_end_of_the_text_is_the_last_position(
    plain: LLM, prompts: list[list[int]], rng: np.random.Generator
) -> None:
    params = params_at(0.8, rng)
    tokens = plain.generate([prompts[0]], replace(params, ignore_eos=True))[0].tokens
    counted = agreement(plain.model, prompts[:1], params, stop_ids=frozenset({tokens[5]}))
    assert counted.judged == (tokens.index(tokens[5]) + 1,)


def test_the_interval_is_over_prompts(rng: np.random.Generator) -> None:
    count = 400
    judged = rng.integers(50, 100, count)
    agreed = rng.binomial(judged, rng.choice([0.5, 0.9], count))
    many = Agreement(0.0, tuple(agreed), tuple(judged))
    low, high = many.interval
    assert many.share == agreed.sum() / judged.sum()
    error = np.sqrt(np.mean((agreed - many.share * judged) ** 2) / count) / judged.mean()
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert low < many.share < high


def test_what_cannot_be_compared_is_refused(
    plain: LLM, tmp_path: Path, rng: np.random.Generator, seed: int
) -> None:
    params = params_at(0.0, rng)
    with pytest.raises(RequestError, match="at least one"):
        agreement(plain.model, [], params)
    with pytest.raises(RequestError, match="the prompt is empty"):
        agreement(plain.model, [[1], []], params)
    fp4 = Model.open(
        make_model(tmp_path / "model", FAMILY_SHAPES["gpt_oss"], seed), machine=plain.model.machine
    )
    with pytest.raises(RequestError, match="MXFP4 already"):
        agreement(fp4, [[1]], params)
