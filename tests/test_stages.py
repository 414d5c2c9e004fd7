"""`specqd bench forward`: each thread's time is told whole, and nothing is recorded otherwise."""

import json
from collections import Counter
from pathlib import Path

import pytest

from specqd import _native
from specqd._native import PAGE_POSITIONS, Rows
from specqd.bench import stages
from specqd.errors import RequestError
from specqd.model.model import Machine, Model, Precision
from support.command_line import Run as RunMain
from support.families import FAMILY_SHAPES
from support.random_models import Shape, make_model

LAYERS = 3
POSITION = 5
PRODUCTS = ["queries, keys, values", "output", "gate and up", "down"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Model:
    directory = make_model(tmp_path_factory.mktemp("stages"), Shape(layers=LAYERS), seed)
    return Model.open(directory, machine=Machine.choose(2))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Model:
    directory = tmp_path_factory.mktemp("models") / "hybrid"
    make_model(directory, FAMILY_SHAPES["qwen3_5_text"], seed)
    return Model.open(directory, machine=Machine.choose(2), cache_positions=1 << 12)


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


def test_a_forward_of_several_sequences_reads_the_cache_of_each(model: Model) -> None:
    one, three = (
        stages.measure(model, Precision.EXACT, 2, PAGE_POSITIONS + 1, repeats=1, sequences=count)
        for count in (1, 3)
    )
    assert (three.rows, three.sequences) == (2, 3)
    page_bytes = model.cache.page_bytes
    assert three.moved_bytes - one.moved_bytes == 2 * page_bytes * 3 // 2  # reads count half pages
    calls = {stage.name: stage.calls for stage in three.stages}
    assert [calls[name] for name in PRODUCTS] == [LAYERS] * len(PRODUCTS)


def test_a_threads_stages_follow_one_another(model: Model) -> None:
    times = stages.measure(model, Precision.EXACT, 1, POSITION, repeats=1)
    ends = dict.fromkeys(range(model.machine.pool.threads), 0)
    for thread, _, begin, end in times.spans:
        assert ends[thread] <= begin <= end
        ends[thread] = end
    assert all(ends.values())


def test_each_forward_is_compared_with_the_read_after_it(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reads:
        """Takes twice as long at each read."""

        def __init__(self) -> None:
            self._seconds = 1.0

        def read_seconds(self) -> float:
            self._seconds *= 2
            return self._seconds

    monkeypatch.setattr(stages, "plain_reads", lambda machine, size: Reads())
    monkeypatch.setattr(stages, "_length", lambda spans: 16.0)
    monkeypatch.setattr(stages, "_read_size", lambda moved: moved)
    times = stages.measure(model, Precision.EXACT, 1, POSITION, repeats=3)
    assert times.shares == pytest.approx([3 / 16, 4 / 16, 6 / 16])


@pytest.mark.parametrize("rest", [0, 5])
def test_the_keys_and_values_of_a_long_context_are_copies_of_its_first_page(
    model: Model, rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read as if they had been computed."""
    computed = []
    forward = Model.forward

    def counted(self: Model, batch: list[Rows]) -> None:
        computed.extend(len(rows.tokens) for rows in batch)
        forward(self, batch)

    monkeypatch.setattr(Model, "forward", counted)
    position = 6 * PAGE_POSITIONS + rest
    near, far = (
        stages.measure(model, Precision.EXACT, 1, at, repeats=1).moved_bytes for at in (0, position)
    )
    assert sum(computed) == 2 + PAGE_POSITIONS + rest + 2
    assert far - near == 6 * model.cache.page_bytes  # reads count whole pages


def test_a_trace_ends_and_later_forwards_are_not_recorded(model: Model) -> None:
    stages.measure(model, Precision.FP4, 1, 0, repeats=1)
    model.logits([1, 2])
    assert model.machine.pool.stop_trace() == []


@pytest.mark.parametrize("follow", [False, True])
def test_a_context_that_ends_before_is_refused(model: Model, follow: bool) -> None:
    last = model.config.max_positions - (4 if follow else 0)
    with pytest.raises(RequestError, match="context ends"):
        stages.measure(model, Precision.EXACT, 1, last, repeats=4, follow=follow)


@pytest.mark.parametrize("precision", list(Precision))
def test_states_are_made_where_forwards_follow_one_another(
    hybrid: Model, precision: Precision
) -> None:
    """A forward at one place reads the state of its anchor; one in 32 makes the next state."""
    staying, following = (
        stages.measure(hybrid, precision, 1, position=40, repeats=40, follow=follow)
        for follow in (False, True)
    )
    assert "next states" in {stage.name for stage in following.stages}
    assert "next states" not in {stage.name for stage in staying.stages}
    assert 0 < staying.moved_bytes < following.moved_bytes


def test_many_rows_are_repeated_where_states_cannot_continue(hybrid: Model) -> None:
    times = stages.measure(hybrid, Precision.EXACT, 200, position=40, repeats=2)
    assert times.rows == 200


def test_the_trace_of_a_forward_is_chromes(
    run: RunMain, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "usable_threads", lambda: 2)
    file = tmp_path / "forward.json"
    directory = make_model(tmp_path / "model", Shape(), seed)
    options = ["--rows", "2", "--repeats", "2", "--threads", "2", "--trace", str(file)]
    results = tmp_path / "results.json"
    status, printed, _ = run("bench", "forward", str(directory), *options, "--json", str(results))
    assert status == 0
    assert "gate and up" in printed
    exact, fp4 = json.loads(results.read_text())["forwards"]
    assert exact["moved_bytes"] > fp4["moved_bytes"]
    low, middle, high = exact["shares"]
    assert low <= middle <= high
    assert f"MB at {middle:.0%} [{low:.0%}, {high:.0%}] of the bandwidth" in printed
    events = json.loads(file.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    kinds = Counter(event["ph"] for event in events)
    assert kinds["M"] == 2
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in spans} == {0, 1}
    assert min(event["ts"] for event in spans) == 0
