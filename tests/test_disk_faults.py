"""Packing and batch files while the disk becomes full or fails, or the process is killed."""

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specqd.formats.safetensors import PACKED_WEIGHTS
from support.batches import line
from support.command_line import PROGRAM, Refuse
from support.random_models import PACKED_SHAPE, make_model
from support.writers import write_lines


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "model", PACKED_SHAPE, seed)


def limited(command: list[str], most_bytes: int) -> subprocess.CompletedProcess[str]:
    """Runs a command that can write files of at most `most_bytes` bytes, as on a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))

    return subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=120)


def is_one_line(error: str) -> bool:
    return error.startswith("specqd: error: ") and error.count("\n") == 1


def test_a_full_disk_while_packing_gives_an_error_of_one_line_and_leaves_no_files(
    model: Path, tmp_path: Path, rng: np.random.Generator
) -> None:
    for most_bytes in (0, 100, int(rng.integers(1000, 50_000))):
        ended = limited([*PROGRAM, "pack", str(model), str(tmp_path / "packed")], most_bytes)
        assert ended.returncode == 1
        last = ended.stderr.splitlines(keepends=True)[-1]
        assert is_one_line(last)
        assert last.startswith(f"specqd: error: {tmp_path}/")
        assert last.endswith("; free space there, then try again\n")
        assert list(tmp_path.iterdir()) == []


def test_files_and_directories_are_synced_before_renaming_and_the_name_afterwards(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., object]
) -> None:
    (model / "additional_chat_templates").mkdir(exist_ok=True)
    (model / "additional_chat_templates" / "tools.jinja").write_text("{{ messages }}")
    synced: list[Path] = []
    before_name: list[Path] = []
    rename, sync = Path.replace, os.fsync

    def note_sync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def note_rename(path: Path, target: Path) -> Path:
        before_name.extend(each.relative_to(path) for each in synced)
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_rename)
    run("pack", model, tmp_path / "packed")
    packed = tmp_path / "packed"
    there = {each.relative_to(packed) for each in packed.rglob("*")} | {Path(".")}
    assert Path(PACKED_WEIGHTS) in there
    assert Path("additional_chat_templates/tools.jinja") in there
    assert set(before_name) == there
    assert synced[-1] == tmp_path


@pytest.mark.parametrize("call", [1, 3])
def test_a_failing_disk_while_packing_gives_an_error_of_one_line_and_leaves_no_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuse: Refuse, call: int
) -> None:
    calls = 0

    def fail(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    assert refuse("pack", model, tmp_path / "packed").endswith(os.strerror(errno.EIO))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["load_weights", "write_packed"])
def test_sigterm_while_packing_leaves_no_files(model: Path, tmp_path: Path, where: str) -> None:
    module = {"load_weights": "weights", "write_packed": "packed"}[where]
    code = (
        "import os, signal, sys; from specqd.cli import main; "
        f"import specqd.model.{module} as module; "
        f"module.{where} = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM); "
        f"sys.exit(main(['pack', {str(model)!r}, {str(tmp_path / 'packed')!r}]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert list(tmp_path.iterdir()) == []
    assert ended.returncode == 128 + signal.SIGTERM


def test_a_full_disk_interrupts_a_batch_and_the_next_run_completes_it(
    model: Path, tmp_path: Path, rng: np.random.Generator
) -> None:
    bodies = [
        {
            "prompt": "ab" * int(rng.integers(1, 20)),
            "max_tokens": int(rng.integers(1, 30)),
            "seed": i,
        }
        for i in range(40)
    ]
    lines = [line(str(i), "/v1/completions", body) for i, body in enumerate(bodies)]
    source = write_lines(tmp_path / "in.jsonl", lines)
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    command = [*PROGRAM, "batch", str(source), str(model), "--threads", "1", "-o"]
    subprocess.run([*command, str(whole)], capture_output=True, check=True, timeout=120)
    for most_bytes in sorted(int(each) for each in rng.integers(1, whole.stat().st_size, 3)):
        ended = limited([*command, str(out)], most_bytes)
        assert ended.returncode == 1
        last = ended.stderr.splitlines(keepends=True)[-1]
        assert is_one_line(last)
        assert last.startswith(f"specqd: error: {out}: ")
        assert last.endswith("; free space there, then try again\n")
        assert "Traceback" not in ended.stderr
        assert out.stat().st_size <= most_bytes
    subprocess.run([*command, str(out)], capture_output=True, check=True, timeout=120)
    assert sorted(out.read_text().splitlines()) == sorted(whole.read_text().splitlines())
