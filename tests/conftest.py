"""Shared fixtures: the seed of this run, commands in this process, and models."""

import shutil
from pathlib import Path
from secrets import randbelow
from typing import Any

import numpy as np
import pytest

from specqd import LLM
from specqd.cli import main
from support.command_line import Refuse, Run
from support.random_models import PACKED_SHAPE, Shape, make_model
from support.served import add_template


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="the seed of all random inputs")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        config.option.seed = randbelow(1 << 32)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"random inputs: --seed {terminalreporter.config.option.seed}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Runs each file on one worker: test_exactness.py adds up what all of its cells compared."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run: random, printed, and settable with --seed."""
    return int(pytestconfig.option.seed)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command line in this process."""

    def run_main(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run_main


@pytest.fixture
def refuse(run: Run) -> Refuse:
    """Runs a command line that must fail with one line of error, and returns that line."""

    def run_refused(*arguments: str | Path) -> str:
        status, out, err = run(*arguments)
        assert (status, out) == (1, "")
        assert err.startswith("specqd: error: ")
        assert err.count("\n") == 1
        assert err.endswith("\n")
        assert "Traceback" not in err
        return err.removeprefix("specqd: error: ").strip()

    return run_refused


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """A random model of 256 positions whose drafts are often right; not to be written to."""
    shape = Shape(is_peaked=True, context=256)
    return make_model(tmp_path_factory.mktemp("models") / "small", shape, seed)


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """A like model with a chat template and 512 positions; not to be written to."""
    directory = tmp_path_factory.mktemp("models") / "small"
    return add_template(make_model(directory, Shape(is_peaked=True, context=512), seed))


@pytest.fixture(scope="session")
def llm(chat_model: Path) -> LLM:
    """The chat model without drafts, by the Python API."""
    return LLM(chat_model, "none", threads=2)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """A packed model beside the model that it was made of; not to be written to."""
    directory = tmp_path_factory.mktemp("packed")
    model = make_model(directory / "model", PACKED_SHAPE, seed)
    assert main(["pack", str(model), str(directory / "packed")]) == 0
    return directory / "packed"


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """A packed model to damage."""
    return Path(shutil.copytree(packed, tmp_path / "copy"))
