"""Makes fixtures for a test module: `served = a_server("chat_model", "--max-batch", "8")`.

Models exist until the end of the session, everything else until the end of the module's tests.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specqd import LLM
from support.random_models import Shape, make_model, make_repeating_model
from support.served import Served, add_template, serving


def a_model(shape: Shape, template: str = "", seed: int | None = None) -> Any:
    """A random model, which tests must not write to. By default its seed is that of the run."""

    @pytest.fixture(scope="session")
    def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        chosen = request.config.option.seed if seed is None else seed
        made = make_model(tmp_path_factory.mktemp("models") / "small", shape, chosen)
        return add_template(made, template) if template else made

    return directory


def a_repeating_model(byte: int, template: str = "") -> Any:
    """A random model that generates only `byte`, for as long as it may."""

    @pytest.fixture(scope="session")
    def directory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
        made = make_repeating_model(tmp_path_factory.mktemp("models") / "small", byte, seed)
        return add_template(made, template) if template else made

    return directory


def an_llm(model: str, draft: str = "none", **options: Any) -> Any:
    """The Python API for the model of the fixture `model`, on one thread."""

    @pytest.fixture(scope="module")
    def llm(request: pytest.FixtureRequest) -> LLM:
        return LLM(request.getfixturevalue(model), draft, threads=1, **options)

    return llm


def a_server(model: str, *arguments: str, key: str | None = None) -> Any:
    """A server for the model of the fixture `model`. It must survive the module's tests."""

    @pytest.fixture(scope="module")
    def served(request: pytest.FixtureRequest) -> Iterator[Served]:
        with serving(str(request.getfixturevalue(model)), *arguments, key=key) as served:
            yield served
            assert served.process.poll() is None

    return served
