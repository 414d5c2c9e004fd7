"""The seeds of fuzz/, and every input that fuzzing found, are read or refused in one line."""

import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "fuzz"
sys.path.append(str(FUZZ))
import targets  # noqa: E402

INPUTS = sorted(
    path for path in FUZZ.glob("*/*/*") if path.parent.parent.name in ("seeds", "found")
)


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_fuzzed_input_is_read_or_refused(path: Path) -> None:
    target = targets.TARGETS[path.parent.name]
    targets.check(lambda: target(path.read_bytes()))


def test_every_target_has_seeds() -> None:
    assert {path.parent.name for path in INPUTS} == set(targets.TARGETS)
