"""`specqd bench forward`: each thread's time is told whole, and nothing is recorded otherwise."""

import json
from collections import Counter
from pathlib import Path

import pytest

from specqd.bench import stages
from specqd.errors import RequestError
from specqd.model.model import Machine, Model, Precision
from support.command_line import Run as RunMain
from support.random_models import Shape, make_model

LAYERS = 3
POSITION = 5
PRODUCTS = ["queries, keys, values", "output", "gate and up", "down"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Model:
    directory = make_model(tmp_path_factory.mktemp("stages"), Shape(layers=LAYERS), seed)
    return Model.open(directory, machine=Machine.choose(2))


@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("rows", [1, 7])
def test_each_layer_counts_once_in_each_product(
    model: Model, precision: Precision, rows: int
) -> None:
    times = stages.measure(model, precision, rows, POSITION, repeats=2)
    calls = {stage.name: stage.calls for stage in times.stages}
    assert [calls[name] for name in PRODUCTS] == [LAYERS] * len(PRODUCTS)
    assert calls["head"] == calls["embedding"] == 1
    assert times.rows == rows
    assert sum(stage.seconds for stage in times.stages) > 0


def test_a_threads_stages_follow_one_another(model: Model) -> None:
    times = stages.measure(model, Precision.EXACT, 1, POSITION, repeats=1)
    ends = dict.fromkeys(range(model.machine.pool.threads), 0)
    for thread, _, begin, end in times.spans:
        assert ends[thread] <= begin <= end
        ends[thread] = end
    assert all(ends.values())


def test_a_trace_ends_and_later_forwards_are_not_recorded(model: Model) -> None:
    stages.measure(model, Precision.FP4, 1, 0, repeats=1)
    model.logits([1, 2])
    assert model.machine.pool.stop_trace() == []


def test_a_context_that_ends_before_is_refused(model: Model) -> None:
    with pytest.raises(RequestError, match="context ends"):
        stages.measure(model, Precision.EXACT, 1, model.config.max_positions, repeats=1)


def test_the_trace_of_a_forward_is_chromes(run: RunMain, tmp_path: Path, seed: int) -> None:
    file = tmp_path / "forward.json"
    directory = make_model(tmp_path / "model", Shape(), seed)
    options = ["--rows", "2", "--repeats", "2", "--threads", "2", "--trace", str(file)]
    status, printed, _ = run("bench", "forward", str(directory), *options)
    assert status == 0
    assert "gate and up" in printed
    events = json.loads(file.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    kinds = Counter(event["ph"] for event in events)
    assert kinds["M"] == 2
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in spans} == {0, 1}
    assert min(event["ts"] for event in spans) == 0
