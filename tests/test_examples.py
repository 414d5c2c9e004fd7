"""Each example runs unchanged, and what it prints is true."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
LONGEST = 30  # lines
# What each example prints, and how often.
PRINTS = {
    "async_client": {r"equal alone: True": 4},
    "async_llm": {r"equal alone: True": 3, r"equal to the whole: True": 1},
    "batch": {r"equal to the request alone: True": 3},
    "chain": {r"equal to plain decoding: True": 1},
    "chat": {r"True: equal to plain decoding": 2},
    "generate": {r"equal to plain decoding: True": 1},
    "schema": {
        r"module='(os|re|sys)' is_used=(True|False)": 1,
        r"equal to plain decoding: True": 1,
    },
    "stream": {r"the pieces are the text: True": 1, r"the beginning of the whole text: True": 1},
}
Outputs = Callable[[str], str]
each_example = pytest.mark.parametrize("name", PRINTS)


def run(name: str, directory: Path) -> str:
    """Runs an example in a directory; returns its output."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def outputs(directory: Path) -> Outputs:
    """Runs an example once; returns its output."""
    return cache(lambda name: run(name, directory))


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PRINTS)


@each_example
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= LONGEST


@each_example
def test_what_an_example_prints_is_true(name: str, outputs: Outputs) -> None:
    if name == "async_client":
        pytest.importorskip("openai")
        pytest.importorskip("uvicorn", reason="needs specqd[serve]")
    if name == "schema":
        pytest.importorskip("llguidance", reason="needs specqd[structured]")
    output = outputs(name)
    for pattern, times in PRINTS[name].items():
        assert len(re.findall(pattern, output)) == times, output


def test_drafts_save_forwards(outputs: Outputs) -> None:
    found = re.search(r"(\d+) forwards, (\d+) without drafts", outputs("generate"))
    assert found is not None
    assert int(found[1]) < int(found[2])


def test_each_token_of_the_chain_has_a_level(outputs: Outputs) -> None:
    counts = re.findall(r"^\S+: (\d+) of 128 tokens$", outputs("chain"), re.MULTILINE)
    assert len(counts) == 3
    assert sum(map(int, counts)) == 128


def test_running_a_batch_again_answers_nothing_twice(outputs: Outputs, directory: Path) -> None:
    first = outputs("batch")
    answers = (directory / "answers.jsonl").read_bytes()
    assert run("batch", directory) == first
    assert (directory / "answers.jsonl").read_bytes() == answers


def test_the_notebook_is_committed_without_outputs() -> None:
    cells = json.loads((EXAMPLES / "levels.ipynb").read_text())["cells"]
    assert all(not cell.get("outputs") for cell in cells)
