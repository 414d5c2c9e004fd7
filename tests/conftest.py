"""Shared fixtures: the seed of this run, and the models that tests decode with."""

from pathlib import Path
from secrets import randbelow

import numpy as np
import pytest

SHARED_MODELS = Path(__file__).parents[1].parent / "shared" / "models"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="the seed of all random inputs")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        config.option.seed = randbelow(1 << 32)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"random inputs: --seed {terminalreporter.config.option.seed}")


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run: random, printed, and settable with --seed."""
    return int(pytestconfig.option.seed)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
