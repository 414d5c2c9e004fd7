"""Agreement by format of draft weights: one load each, the same texts, the packed one as it is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, SamplingParams, _native
from specqd.bench.agreement import agreement
from specqd.bench.draft_formats import agreement_by_format
from specqd.cli import main
from specqd.formats.fp4 import DraftFormat
from specqd.model.model import Model
from support.random_models import Shape, make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    shape = Shape(is_peaked=True, context=256)
    return make_model(tmp_path_factory.mktemp("models") / "m", shape, seed)


@pytest.fixture
def prompts(rng: np.random.Generator) -> list[list[int]]:
    return [rng.integers(0, 256, size).tolist() for size in rng.integers(1, 90, 5)]


@pytest.fixture
def temperatures(rng: np.random.Generator) -> list[SamplingParams]:
    params = SamplingParams(max_tokens=16, seed=int(rng.integers(1 << 32)))
    return [replace(params, temperature=temperature) for temperature in (0.0, 0.8)]


def test_each_format_is_judged_as_if_it_were_loaded_alone(
    model: Path, prompts: list[list[int]], temperatures: list[SamplingParams]
) -> None:
    plain = LLM(model, "mxfp4:k=2", threads=1)
    found, left_out = agreement_by_format(plain, prompts, temperatures)
    assert left_out == []
    order = [DraftFormat.MXFP4, DraftFormat.FP4, DraftFormat.MXFP4_FLOOR]
    assert [each.draft for each in found] == [draft for draft in order for _ in temperatures]
    stop_ids = frozenset(plain.model.config.eos_token_ids)
    for index, draft in enumerate(order):
        alone = Model.open(model, machine=plain.model.machine, draft=draft)
        for params, each in zip(temperatures, found[2 * index :], strict=False):
            assert each.measured == agreement(alone, prompts, params, stop_ids=stop_ids)
            assert each.calibration == "none"
            assert 4 < each.draft_bits < 5 < each.exact_bits < 20.5


def test_a_packed_model_is_judged_in_its_own_format(
    model: Path, tmp_path: Path, prompts: list[list[int]], temperatures: list[SamplingParams]
) -> None:
    assert main(["pack", str(model), str(tmp_path / "packed")]) == 0
    plain = LLM(tmp_path / "packed", "none", threads=1)
    found, left_out = agreement_by_format(plain, prompts, temperatures)
    assert [(each.draft, each.calibration) for each in found] == [(DraftFormat.FP4, "built-in")] * 2
    assert left_out == []
    assert found[0].described()["calibration"] == "built-in"


def test_formats_for_which_memory_is_short_are_left_out(
    model: Path,
    prompts: list[list[int]],
    temperatures: list[SamplingParams],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = LLM(model, "none", threads=1)
    monkeypatch.setattr(_native, "usable_memory", lambda: 1000)
    found, left_out = agreement_by_format(plain, prompts, temperatures[:1])
    assert [each.draft for each in found] == [DraftFormat.FP4]
    assert [each.draft for each in left_out] == ["mxfp4", "mxfp4-floor"]
    assert all("GB of memory" in each.reason for each in left_out)


def test_progress_counts_formats(
    model: Path, prompts: list[list[int]], temperatures: list[SamplingParams]
) -> None:
    seen: list[tuple[int, int]] = []
    plain = LLM(model, "none", threads=1)
    agreement_by_format(plain, prompts, temperatures, lambda *counts: seen.append(counts))
    assert seen == [(1, 3), (2, 3), (3, 3)]
