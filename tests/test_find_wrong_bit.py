"""The tool that names the first stage at which two ways of computing rows differ in bits."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specqd import _native

ROOT = Path(__file__).parent.parent
GOLDENS = ROOT / "tests" / "goldens"
TOOL = ROOT / "tools" / "find_wrong_bit.py"


def find(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments), "--tokens", "40"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def change_one_weight(directory: Path, tensor: str) -> None:
    """Changes a bit of the mantissa of one BF16 weight in the file."""
    path = directory / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    start, end = header[tensor]["data_offsets"]
    bits = np.frombuffer(data, np.uint16, (end - start) // 2, 8 + size + start).copy()
    bits[np.argmax(bits & 0x7FFF)] ^= 0x40
    data[8 + size + start : 8 + size + end] = bits.tobytes()
    path.write_bytes(data)


@pytest.mark.parametrize(
    "ways",
    [("-", "threads=1"), ("rows=64", "rows=3"), ("batch=1", "batch=3"), ("drafts=0", "drafts=5")],
    ids=lambda ways: ways[1],
)
@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "qwen3_5_moe_text", "gemma4_text"])
def test_ways_of_one_model_are_found_equal(family: str, ways: tuple[str, str]) -> None:
    ended = find(GOLDENS / family, *ways)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("all bits are equal")


def test_instruction_sets_are_found_equal_in_both_precisions() -> None:
    fastest, *_, portable = _native.available_isas()
    for precision in ("exact", "fp4"):
        ways = [f"isa={isa},precision={precision}" for isa in (fastest, portable)]
        assert find(GOLDENS / "llama", *ways).returncode == 0


@pytest.mark.parametrize(
    ("tensor", "stage"),
    [
        ("model.layers.1.self_attn.v_proj.weight", "queries, keys, values"),
        ("model.layers.1.mlp.up_proj.weight", "gate and up"),
        ("model.layers.1.mlp.down_proj.weight", "residual stream after the feed forward"),
    ],
)
def test_the_stage_of_a_changed_weight_is_named(tmp_path: Path, tensor: str, stage: str) -> None:
    other = tmp_path / "other"
    shutil.copytree(GOLDENS / "llama", other)
    change_one_weight(other, tensor)
    ended = find(GOLDENS / "llama", "-", f"model={other}")
    assert ended.returncode == 1
    assert f"layer 1, stage {stage!r}" in ended.stdout


def test_an_unknown_setting_is_one_line() -> None:
    ended = find(GOLDENS / "llama", "-", "cores=3")
    assert ended.returncode == 2
    assert ended.stderr.startswith("cores=3: not a setting")
    assert ended.stderr.count("\n") == 1
