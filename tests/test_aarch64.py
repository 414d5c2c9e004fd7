"""The products of aarch64 need no more instructions than stated, counted under emulation."""

import sys
from pathlib import Path
from shutil import which

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

from aarch64 import count

TOOLS = (count.COMPILER, count.EMULATOR, "gcc")
MISSING = [tool for tool in TOOLS if which(tool) is None]


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")
def test_a_tile_needs_no_more_instructions_than_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count, "BUILD", tmp_path)
    count.build(["neondot"])
    products = list(count.product_counts((), ["neondot"]))
    assert list(count.excesses(products)) == []
    instructions = [each.instructions for *_, each in products]
    multiply_adds = [2 * 64 * rows for rows in count.ROWS] + [32 * rows for rows in count.ROWS]
    assert all(a > b for a, b in zip(instructions, multiply_adds, strict=True)), instructions
