"""Three small models for one server, as fixtures, and what its metrics say about each."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specqd import LLM
from support.random_models import Shape, make_model
from support.served import Served, add_template

NAMES = ("one", "two", "three")
SHAPE = Shape(hidden=128, head_dim=32, vocab=1024, context=2048, is_peaked=True)


def several_models() -> Any:
    """The directories of the models by name: `directories = several_models()`."""

    @pytest.fixture(scope="module")
    def directories(tmp_path_factory: pytest.TempPathFactory, seed: int) -> dict[str, Path]:
        folder = tmp_path_factory.mktemp("models")
        return {
            name: add_template(make_model(folder / name, SHAPE, seed + i))
            for i, name in enumerate(NAMES)
        }

    return directories


def each_alone() -> Any:
    """The Python API for each of the fixture `directories`."""

    @pytest.fixture(scope="module")
    def alone(directories: dict[str, Path]) -> dict[str, LLM]:
        return {name: LLM(path, "none", threads=1) for name, path in directories.items()}

    return alone


def their_words() -> Any:
    """The arguments of `serve` for the fixture `directories`."""

    @pytest.fixture(scope="module")
    def words(directories: dict[str, Path]) -> list[str]:
        return [str(each) for each in directories.values()]

    return words


def samples_of(served: Served, name: str) -> dict[str, float]:
    """Returns the sums of a metric by model."""
    parser = pytest.importorskip("prometheus_client.parser")
    found: Counter[str] = Counter()
    text = served.ask("GET", "/metrics").body.decode()
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                found[sample.labels["model_name"]] += sample.value
    return dict(found)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
