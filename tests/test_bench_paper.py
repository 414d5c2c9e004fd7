"""`specqd bench paper`: the arms of the ML-SpecQD paper and ours, with equal tokens."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specqd import LLM
from specqd.bench import rounds
from specqd.bench.paper import paper_arms
from specqd.cli import main
from specqd.model.model import Model
from support.command_line import Refuse
from support.random_models import Shape, make_model, swap_tokens

ARMS = ["GREEDY", "MXFP4", "DRAFT", "MULTI", "fp4", "auto", "auto+small"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, seed: int) -> tuple[Path, Path]:
    at, shape = tmp_path_factory.mktemp("models"), Shape(is_peaked=True, context=256)
    small = make_model(at / "a small one", replace(shape, layers=1), seed + 1)
    return make_model(at / "target", shape, seed), small


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "bandwidth_at", lambda machine, size: 8.0)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in ("abcab", "cd", "ef")))
    return path


def test_the_arms_are_the_papers_and_ours(models: tuple[Path, Path]) -> None:
    target, small = models
    arms = paper_arms(LLM(target, "none", threads=1), str(small))
    assert [arm.name for arm in arms] == ARMS
    levels = {arm.name: [(level.name, level.length) for level in arm.levels[1:]] for arm in arms}
    name = small.name
    assert levels == {
        "GREEDY": [],
        "MXFP4": [("mxfp4", 8)],
        "DRAFT": [(f"{name}:bf16", 8)],
        "MULTI": [("mxfp4", 8), (f"{name}:mxfp4", 8)],
        "fp4": [("fp4", None)],
        "auto": [("fp4", None)],
        "auto+small": [("fp4", None), (f"{name}:fp4", None)],
    }
    formats = [arm.llm.model.weights.draft.value for arm in arms]
    assert formats == ["fp4", "mxfp4", "fp4", "mxfp4", "fp4", "fp4", "fp4"]


def test_all_arms_are_timed_greedily_and_shown_with_acceptance_by_level(
    models: tuple[Path, Path],
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "out.json"
    command = ["bench", "paper", *map(str, models), "--prompts", str(prompts), "--limit", "2"]
    assert main([*command, "-n", "24", "--threads", "1", "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    results = json.loads(file.read_text())
    [greedy] = results["temperatures"]
    assert (greedy["temperature"], results["num_prompts"], results["max_tokens"]) == (0.0, 2, 24)
    assert [arm["name"] for arm in greedy["arms"]] == ARMS
    multi = greedy["arms"][ARMS.index("MULTI")]
    assert multi["chain"] == f"mxfp4:k=8 '{models[1]}:mxfp4:k=8'"
    rates = [level["acceptance"] for level in multi["levels"]]
    assert rates[:2] != [None, None]
    assert rates[2] is None  # nothing drafts for the small model
    assert "MULTI       mxfp4:k=8 a small one:mxfp4:k=8" in lines
    assert "auto+small  fp4|a small one|ngram a small one|ngram" in lines
    [row] = [line for line in lines[-len(ARMS) :] if line.startswith("MULTI ")]
    assert " ".join(f"{rate:.0%}" for rate in rates if rate is not None) in row


def test_a_small_model_with_other_tokens_is_refused_before_anything_is_loaded(
    models: tuple[Path, Path],
    prompts: Path,
    tmp_path: Path,
    refuse: Refuse,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = make_model(tmp_path / "other", Shape(), seed + 2)
    swap_tokens(other, 3, 4)
    monkeypatch.setattr(Model, "open", lambda *_, **__: pytest.fail("loaded"))
    problem = refuse("bench", "paper", models[0], other, "--prompts", prompts, "--threads", "1")
    assert "a draft must have the model's tokenizer" in problem


def test_the_plot_has_every_arm(models: tuple[Path, Path], prompts: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra")
    plot = tmp_path / "p.png"
    command = ["bench", "paper", *map(str, models), "--prompts", str(prompts), "--threads", "1"]
    assert main([*command, "-n", "8", "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
