"""Shared fixtures: the seed of this run, commands run in this process, and models."""

import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import randbelow
from typing import Any

# A worker has one core, so more BLAS threads would only wait for each other in small products. This
# must come before the import of NumPy, which reads it once.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The commands under test are hundreds of short processes, and each would compile its modules again.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", os.path.join(sys.prefix, "pycache"))

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from specqd import LLM
from specqd.cli import main
from support.areas import AREAS, belongs
from support.browser import chromium
from support.command_line import Refuse, Run
from support.fixtures import a_model
from support.openai_client import client_of
from support.random_models import PACKED_SHAPE, Shape, make_model
from support.served import TEMPLATE, Served

os.environ["SPECQD_CONFIG"] = os.devnull  # instead of the user's own file
# A shell script ignores this signal in background jobs, and the programs under test inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Times of examples mean nothing, and an example may overwrite files of the previous one.
settings.register_profile(
    "ours", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("ours")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="the seed of all random inputs")
    parser.addoption("--area", choices=sorted(AREAS), help="run the tests of one area only")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    area = config.getoption("area")
    name = collection_path.name
    is_outside = area and name.startswith("test_") and not belongs(name, area)
    return True if is_outside else None  # None: as pytest itself decides


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker:
        config.option.seed = worker["seed"]
    elif config.option.seed is None:
        config.option.seed = randbelow(1 << 32)
    if worker and hasattr(os, "sched_setaffinity"):
        # A worker has its own cores: a barrier that waits for the core of another one is slow.
        number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        if cores := sorted(os.sched_getaffinity(0))[number::count]:
            os.sched_setaffinity(0, cores)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"random inputs: --seed {terminalreporter.config.option.seed}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["seed"] = node.config.option.seed  # the printed one


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Runs each file on one worker: test_exactness.py sums up what all of its cells compared."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run. It is random, printed, and can be set with --seed."""
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


# Random models whose drafts are often accepted.
small_model = a_model(Shape(is_peaked=True, context=256))
chat_model = a_model(Shape(is_peaked=True, context=512), TEMPLATE)


@pytest.fixture(scope="session")
def llm(chat_model: Path) -> LLM:
    """The chat model without drafts, through the Python API."""
    return LLM(chat_model, "none", threads=1)


@pytest.fixture(scope="module")
def client(served: Served) -> Any:
    """OpenAI's client for the module's server."""
    return client_of(served)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def chance(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """A packed model, and the model that it was packed from. Tests must not write to either."""
    directory = tmp_path_factory.mktemp("packed")
    model = make_model(directory / "model", PACKED_SHAPE, seed)
    assert main(["pack", str(model), str(directory / "packed")]) == 0
    return directory / "packed"


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    """A copy of a packed model that a test can damage."""
    return Path(shutil.copytree(packed, tmp_path / "copy"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser
