"""Benchmarks run to their end on a small model, and write their tables."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specqd.hub import shipped_model

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TEXTS = ["def mean(values):\n    return sum(values) / len(values)\n", "import json\n" * 20]
TWICE = "--tolerance 1 --sittings 1 --pairs 2 PYTHON PYTHON"
# Words after the command. MODEL is the shipped model, PROMPTS a file, PYTHON this interpreter.
TABLES = {
    "acceptance": "MODEL --prompts PROMPTS -n 8 --temperature 0 --format mxfp4",
    "block_drafters": "MODEL --rounds 1 --prompt 64",
    "compare_builds kernels": f"{TWICE} kernels --rows 1 --cache",
    "compare_builds levels": f"{TWICE} levels MODEL --prompts PROMPTS --tokens 8",
    "compare_builds overhead": f"{TWICE} overhead MODEL --steps 2",
    "compare_builds serving": f"{TWICE} serving MODEL --tokens 8 --at-once 2",
    "exact_tokens": "MODEL --prompts PROMPTS --chain fp4 -n 8 --batch 1 2",
    "first_token": (
        "MODEL --rounds 1 --prompt-tokens 40 --new-tokens 4 --beside 300 --gap .1 --at-once 2"
    ),
    "kernels": "--rows 1 --where cache --inputs 256",
    "loading": "--rounds 1 MODEL",
    "long_contexts": "MODEL --prompts PROMPTS --chain fp4 --batch 2 -n 24",
    "per_core_bandwidth": "MODEL --prompts PROMPTS --limit 1 -n 8 --taking nothing",
    "prompt_cache": "MODEL --rounds 1 --prompt-tokens 300",
    "serving": "MODEL --rounds 1 --prompts PROMPTS --tokens 8 --at-once 1 2 --temperature 0",
}
pytestmark = pytest.mark.slow


def run(name: str, words: list[str]) -> str:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    return path


@pytest.mark.parametrize("case", TABLES)
def test_a_benchmark_writes_its_table(case: str, prompts: Path, tmp_path: Path) -> None:
    if case == "per_core_bandwidth" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("it needs two cores")
    table = tmp_path / "table.json"
    places = {"MODEL": str(shipped_model()), "PROMPTS": str(prompts), "PYTHON": sys.executable}
    words = [places.get(word, word) for word in shlex.split(TABLES[case])]
    printed = run(case.split()[0], ["--json", str(table), *words])
    written = json.loads(table.read_text())
    assert written["rows"]
    assert all(len(row) == len(written["columns"]) for row in written["rows"])
    assert written["title"] in printed


def test_a_recorded_policy_is_replayed(prompts: Path, tmp_path: Path) -> None:
    record, many = str(tmp_path / "record.json"), tmp_path / "many.jsonl"
    many.write_text(prompts.read_text() * 8)  # as many as the largest batch
    words = [str(shipped_model()), "--prompts", str(many), "-n", "8", "-o", record]
    run("policy", ["record", *words])
    assert "auto" in run("policy", ["replay", record])
