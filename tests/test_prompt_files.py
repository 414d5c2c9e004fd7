"""Files of a prompt cache: what others wrote is refused, the size is bounded, and nothing leaks."""

import errno
import os
import socket
import stat
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specqd.errors import MachineError, SpecqdWarning
from specqd.model.prompt_files import PromptFiles

SIZE = 1000  # bytes of a content
WHOLE = 32 + SIZE  # bytes of its file


def name_of(number: int, kind: str = "page") -> str:
    return f"{number:064x}.{kind}"


def content_of(number: int) -> bytes:
    return np.random.default_rng(number).bytes(SIZE)


def write(files: PromptFiles, number: int, when: int | None = None) -> str:
    when = number if when is None else when
    files.write(name_of(number), memoryview(content_of(number)), when)
    return name_of(number)


def holds(files: PromptFiles, number: int, size: int = SIZE) -> bool:
    content = bytearray(size)
    is_read = files.read(name_of(number), memoryview(content))
    assert not is_read or content == content_of(number)
    return is_read


def warnings_of(call: Callable[..., object], *arguments: object) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        call(*arguments)
    return [str(each.message) for each in caught if each.category is SpecqdWarning]


def refused_once(files: PromptFiles, number: int) -> None:
    """The file is refused with a warning, and is gone."""
    with pytest.warns(SpecqdWarning, match=r"is damaged and was removed"):
        assert not holds(files, number)
    assert not holds(files, number)


@pytest.fixture
def files(tmp_path: Path) -> PromptFiles:
    return PromptFiles(tmp_path / "cache", 1 << 20)


def test_what_was_written_is_read_after_a_restart(files: PromptFiles) -> None:
    write(files, 1)
    assert holds(files, 1)
    assert holds(PromptFiles(files.path, 1 << 20), 1)
    assert not holds(files, 2)


def test_only_the_owner_can_read_the_directory_and_its_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = PromptFiles(tmp_path / "cache", 1 << 20)
        write(files, 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(files.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in files.path.iterdir()} == {0o600}
    assert {each.name for each in files.path.iterdir()} == {"key", name_of(1)}


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(MachineError, match=r"^prompt_cache .*: other users can write to it; "):
        PromptFiles(tmp_path, 1 << 20)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(MachineError, match="belongs to another user"):
        PromptFiles(tmp_path, 1 << 20)


def test_a_path_that_is_no_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("\0"), Path("~nobody-here")):
        with pytest.raises(MachineError, match=r"^prompt_cache .*: cannot be used: "):
            PromptFiles(path, 1 << 20)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, WHOLE - 1),
        lambda path: os.truncate(path, WHOLE + 1),
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path, 1 << 40),
        lambda path: path.write_bytes(os.urandom(WHOLE)),
        lambda path: replace(path, lambda: os.mkfifo(path)),
        lambda path: replace(path, lambda: listen_at(path)),
    ],
    ids=["short", "long", "empty", "huge", "noise", "pipe", "socket"],
)
def test_a_damaged_file_is_refused_and_can_be_written_again(
    files: PromptFiles, damage: Callable[[Path], object]
) -> None:
    path = files.path / write(files, 1)
    damage(path)
    refused_once(files, 1)
    write(files, 1)
    assert holds(files, 1)


def replace(path: Path, make: Callable[[], object]) -> None:
    path.unlink()
    make()


def listen_at(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # the path may be too long for a socket
    before = Path.cwd()
    try:
        os.fchdir(here)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(before)
        os.close(here)


def test_any_changed_byte_is_found(files: PromptFiles, rng: np.random.Generator) -> None:
    path = files.path / write(files, 1)
    whole = path.read_bytes()
    for at in (0, 31, 32, WHOLE - 1, *map(int, rng.integers(0, WHOLE, 20))):
        path.write_bytes(
            whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :]
        )
        refused_once(PromptFiles(files.path, 1 << 20), 1)


def test_a_file_under_another_name_or_with_another_key_is_refused(
    files: PromptFiles, tmp_path: Path
) -> None:
    (files.path / write(files, 1)).rename(files.path / name_of(2))
    refused_once(files, 2)
    other = PromptFiles(tmp_path / "other", 1 << 20)
    (other.path / write(other, 3)).rename(files.path / name_of(3))
    assert not holds(files, 3)


def test_a_link_is_neither_read_nor_written_through(files: PromptFiles, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (files.path / write(files, 1)).rename(outside)
    kept = outside.read_bytes()
    (files.path / name_of(1)).symlink_to(outside)
    refused_once(files, 1)
    (files.path / name_of(1)).symlink_to(outside)
    files.mark_used([(name_of(1), 5)])
    write(files, 1)
    assert holds(files, 1)
    assert (outside.read_bytes(), outside.stat().st_mtime_ns) == (kept, 1)


def test_the_least_recently_used_files_are_removed(tmp_path: Path) -> None:
    files = PromptFiles(tmp_path / "cache", 16 * WHOLE)
    for number in range(1, 17):
        write(files, number)
    files.mark_used([(name_of(1), 100)])
    files.mark_used([(name_of(999), 100)])  # is ignored
    write(files, 17)
    assert [number for number in range(1, 18) if not holds(files, number)] == [2]
    write(PromptFiles(files.path, 4 * WHOLE), 18)
    left = [number for number in range(1, 19) if holds(files, number)]
    assert left == [1, 16, 17, 18]


def test_the_size_is_never_exceeded(tmp_path: Path, rng: np.random.Generator) -> None:
    most = int(rng.integers(1, 40)) * WHOLE + int(rng.integers(WHOLE))
    files = PromptFiles(tmp_path / "cache", most)
    for number in range(100):
        write(files, int(rng.integers(200)), when=number)
        sizes = [each.stat().st_size for each in files.path.glob("*.page")]
        assert sum(sizes) <= most
        assert sizes


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(0o700)
    others = ["notes.txt", "a.page", f"{'A' * 64}.page", "new"]
    for name in others:
        (cache / name).write_bytes(bytes(1 << 12))
    files = PromptFiles(cache, 2 * WHOLE)
    for number in range(5):
        write(files, number)
    assert {*others} <= {each.name for each in cache.iterdir()}


def test_files_that_an_ended_process_left_unfinished_are_removed(
    files: PromptFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (files.path / "new-1").write_bytes(b"unfinished")
    write(files, 1)
    assert (files.path / "new-1").exists()  # its process may still be running
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 4000)
    write(PromptFiles(files.path, 1 << 20), 2)
    assert {each.name for each in files.path.iterdir()} == {"key", name_of(1), name_of(2)}


@pytest.mark.parametrize("failing", ["utime", "rename", "open", "scandir"])
def test_a_full_disk_warns_once_and_leaves_nothing(
    files: PromptFiles, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, failing, full)
        warned = [warnings_of(write, files, number) for number in range(3)]
    [warning] = [each for some in warned for each in some]
    problem = (
        f"prompt_cache {files.path}: cannot be written: No space left on device; answers go on"
    )
    assert warning.startswith(problem)
    assert [each.name for each in files.path.iterdir()] == ["key"]
    write(files, 1)
    assert holds(files, 1)


def test_a_damaged_key_is_refused(files: PromptFiles, tmp_path: Path) -> None:
    key = files.path / "key"
    whole = key.read_bytes()
    for damaged in (b"", whole[:-1], whole + b"x"):
        key.write_bytes(damaged)
        with pytest.raises(MachineError, match=r"its file key is not a private one of 32 bytes; "):
            PromptFiles(files.path, 1 << 20)
    key.write_bytes(whole)
    key.chmod(0o640)
    with pytest.raises(MachineError, match="is not a private one"):
        PromptFiles(files.path, 1 << 20)
    key.rename(tmp_path / "key")
    key.symlink_to(tmp_path / "key")
    with pytest.raises(MachineError, match="cannot be used"):
        PromptFiles(files.path, 1 << 20)


def test_two_processes_that_open_a_directory_first_share_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, keys = os.link, []

    def slower(*arguments: object, **options: object) -> None:
        monkeypatch.setattr(os, "link", link)
        keys.append(PromptFiles(tmp_path / "cache", 1 << 20).key)
        link(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", slower)
    keys.append(PromptFiles(tmp_path / "cache", 1 << 20).key)
    assert keys[0] == keys[1]
    assert [each.name for each in (tmp_path / "cache").iterdir()] == ["key"]


def test_only_the_key_is_flushed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(os.fstat(file).st_size))
    files = PromptFiles(tmp_path / "cache", 1 << 20)
    write(files, 1)
    assert flushed == [32]


def test_descriptors_are_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for number in range(5):
        files = PromptFiles(tmp_path / "cache", 1 << 20)
        write(files, number)
        (files.path / name_of(7)).mkdir(exist_ok=True)
        assert warnings_of(holds, files, 7)
        del files
    after = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    assert after == before
