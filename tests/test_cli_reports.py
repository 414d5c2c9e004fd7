"""The commands that report on a model or this machine: inspect, bench, demo."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, SamplingParams, _native
from specqd.cli.demo import demo
from specqd.model.bandwidth import bandwidth_at, measure
from specqd.model.model import Machine
from support.command_line import Run
from support.families import FAMILY_SHAPES
from support.random_models import Shape, make_model, tensor_sizes

BIASED = Shape(model_type="llama", has_biases=True, is_tied=True)


# --- inspect ----------------------------------------------------------------------------------


def weights_an_item(name: str) -> int:
    """A byte of MXFP4 holds two weights, or the scale of a block."""
    return 2 if name.endswith("_blocks") else 0 if name.endswith("_scales") else 1


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        BIASED,
        Shape(model_type="mistral", window=32),
        Shape(model_type="qwen2", is_tied=True),
        Shape(model_type="qwen3"),
        *FAMILY_SHAPES.values(),
    ],
    ids=lambda shape: shape.model_type,
)
def test_parameters_are_counted_as_in_the_file(tmp_path: Path, seed: int, shape: Shape) -> None:
    loaded = LLM(make_model(tmp_path, shape, seed), "none").model
    in_file = sum(int(np.prod(size)) * weights_an_item(n) for n, size in tensor_sizes(shape))
    assert loaded.weights.parameters == in_file


def test_inspect_shows_shape_bits_memory_and_machine(small_model: Path, run: Run) -> None:
    status, out, err = run("inspect", small_model, "--threads", "1", "--isa", "portable")
    assert (status, err) == (0, "")
    for fact in (
        "llama",
        "2 of 64, feed-forward 160",
        "4 query, 2 key/value, of 16",
        "256 positions, full attention",
        "320 tokens",
        "no chat template",
        "bits/weight",
        "residuals",
        "are patches",
        "chosen portable",
    ):
        assert fact in out
    assert "model.layers.1.mlp.down_proj.weight" not in out
    assert "model.layers.1.mlp.down_proj.weight" in run("inspect", small_model, "--matrices")[1]


def test_inspect_json_adds_up(small_model: Path, run: Run) -> None:
    facts = json.loads(run("inspect", small_model, "--json")[1])
    weights = sum(each["rows"] * each["columns"] for each in facts["matrices"])
    planes = facts["plane_bytes"]
    assert facts["bytes_per_token"]["bf16"] == 2 * weights
    assert facts["bytes_per_token"]["draft"] == planes["codes"] + planes["scales"]
    assert facts["bits_per_weight"]["draft"] == 8 * (planes["codes"] + planes["scales"]) / weights
    for plane, size in planes.items():
        assert size == sum(each["planes"][plane] for each in facts["matrices"])
    assert facts["machine"]["isa"] == _native.available_isas()[0]


# --- bench ------------------------------------------------------------------------------------


def test_bandwidth_is_the_median_after_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reads:
        def __init__(self, pool: object, isa: str, size: int) -> None:
            self._seconds = iter([99.0, 99.0, *np.linspace(1, 3, 9)])

        def read_seconds(self) -> float:
            return next(self._seconds)

    monkeypatch.setattr(_native, "PlainReads", Reads)
    [measured] = measure(Machine.choose(1), [10**9])
    assert measured.gb_per_s == pytest.approx(0.5)
    assert measured.lower_quartile == pytest.approx(0.4)
    assert measured.upper_quartile == pytest.approx(2 / 3)
    assert bandwidth_at(Machine.choose(1), 4 * 10**9) == pytest.approx(2)


def test_bandwidth_of_more_than_half_the_memory_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_native, "usable_memory", lambda: 3 * 10**6)
    sizes = [each.working_set_bytes for each in measure(Machine.choose(1), [10**6, 2 * 10**6])]
    assert sizes == [10**6]


def test_bench_bandwidth_prints_and_writes(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specqd.model.bandwidth.SIZES", (10**6, 4 * 10**6))
    file = tmp_path / "bandwidth.json"
    status, out, _ = run("bench", "bandwidth", "--threads", "1", "--json", file)
    assert status == 0
    assert "4 MB" in out
    written = json.loads(file.read_text())
    assert written["threads"] == 1
    assert [each["working_set_bytes"] for each in written["sizes"]] == [10**6, 4 * 10**6]
    for each in written["sizes"]:
        assert 0 < each["lower_quartile"] <= each["gb_per_s"] <= each["upper_quartile"]


def test_bench_kernels_prints_and_writes(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "kernels.json"
    words = ("--threads", "1", "--megabytes", "1", "--rows", "1", "--rows", "3", "--json", file)
    status, out, _ = run("bench", "kernels", *words)
    assert status == 0
    assert len(out.splitlines()) == 2 + 2 * 2
    written = json.loads(file.read_text())
    cases = [(each["case"]["precision"], each["case"]["rows"]) for each in written["speeds"]]
    assert cases == [(precision, rows) for precision in ("fp4", "exact") for rows in (1, 3)]
    assert 1.8e6 < written["weights"] < 1.9e6
    for each in written["speeds"]:
        least, most = each["share_range"]
        assert 0 < least <= each["share"] <= most
        bits = 8 * each["gb_per_s"] / each["gweights_per_s"]
        assert bits == pytest.approx(4.25) if each["case"]["precision"] == "fp4" else 12 < bits < 14
        limit = each["share"] * 16 / bits
        assert each["over_bf16_limit"] == pytest.approx(limit)


def test_bench_kernels_refuses_more_weights_than_there_is_memory(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "usable_memory", lambda: 10**6)
    status, _, err = run("bench", "kernels", "--megabytes", "1")
    assert status == 1
    assert "--megabytes" in err


# --- demo -------------------------------------------------------------------------------------


def test_demo_shows_identical_texts_and_both_speedups(small_model: Path, run: Run) -> None:
    status, out, err = run("demo", small_model, "-p", "ab", "-n", "24", "--seed", "9")
    params = SamplingParams(max_tokens=24, temperature=0.6, seed=9)
    text = LLM(small_model).generate("ab", params)[0].text
    assert (status, err) == (0, "")
    assert out.count(f"ab{text}") == 2
    assert "Identical: all 24 tokens" in out
    for row in ("tokens/s", "MB moved per token", "x plain decoding", "x the BF16 limit"):
        assert f"\n{row} " in out


def test_demo_fails_where_tokens_differ(
    small_model: Path, tmp_path: Path, seed: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LLM(make_model(tmp_path, Shape(context=256), seed + 1))
    monkeypatch.setattr(LLM, "with_draft", lambda self, draft, **_: other)
    status, out, err = run("demo", small_model, "-p", "ab", "-n", "24")
    assert status == 1
    assert "Identical" not in out
    assert err.startswith("specqd: error: NOT EQUAL: ")
    assert err.count("\n") == 1


def test_the_text_of_the_demo_does_not_repeat_itself() -> None:
    options = {each.name: each.default for each in demo.params}
    sampling = {name: options[name] for name in ("max_tokens", "temperature", "seed")}
    text = LLM().generate(options["prompt"], SamplingParams(**sampling))[0].text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert len(lines) > 15
    assert all(line != following for line, following in pairwise(lines))
    assert len(set(lines)) > len(lines) / 2
