"""Files by name in a private directory of bounded size; the least recently used are removed first.

Owns permissions, checksums, atomic writes, eviction and the directory's key. Knows no models and no
tokens. Several processes may share a directory. A file is a checksum and its content.
"""

import hmac
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_bytes, token_hex
from weakref import finalize

from specqd.errors import MachineError, SpecqdWarning

_NAME = re.compile(r"[0-9a-f]{64}\.(page|state)")
_MOST_BYTES = 10 << 30
_KEY, _KEY_BYTES = "key", 32
_CHECKSUM_BYTES = 32
_TEMPORARY = "new-"
_ABANDONED_SECONDS = 3600  # after which a temporary file belongs to no running process
_SLACK = 16  # this fraction of the bound is written before the directory is read again
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd  # of directories; Windows has none
if _HAS_DESCRIPTORS:
    _PRIVATE = os.O_CLOEXEC | os.O_NOFOLLOW
    _READ = os.O_RDONLY | _PRIVATE | os.O_NONBLOCK  # no link, no waiting for a pipe
    _CREATE = os.O_WRONLY | _PRIVATE | os.O_CREAT | os.O_EXCL


class PromptFiles:
    """The files of a directory, which is created if it is missing.

    All access goes through one descriptor of the directory, and no link is followed. A file is
    written under another name, then renamed, and not flushed to the disk (only the key is): after a
    crash its checksum refuses what was lost. Checksums are HMAC-SHA256 of name and content with the
    directory's key.
    """

    def __init__(self, path: Path, most_bytes: int | None = None) -> None:
        """`most_bytes` is by default 10 GiB. Raises MachineError if the directory cannot be used or
        others can write to it."""
        self.path = path
        self.most_bytes = _MOST_BYTES if most_bytes is None else most_bytes
        if not _HAS_DESCRIPTORS:
            raise self._refused("needs Linux or macOS; leave it out")
        with self._refusals():
            self.path = path.expanduser()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._directory = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
            finalize(self, os.close, self._directory)
            self._check_owner()
            self.key = self._open_key()
        self._room = 0  # bytes that may be written before the directory is read again
        self._warned: set[str] = set()

    def holds(self, name: str) -> bool:
        """Whether there is such a file, intact or not."""
        try:
            os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except OSError:
            return False
        return True

    def mark_used(self, names: Iterable[tuple[str, int]]) -> None:
        """Sets the time of the last use of each file, in nanoseconds; ignores missing files."""
        for name, when in names:
            with suppress(OSError):
                os.utime(name, ns=(when, when), dir_fd=self._directory, follow_symlinks=False)

    def read(self, name: str, content: memoryview) -> bool:
        """Fills `content`; returns False if there is no such file, or if it is damaged.

        A damaged file, or one of another length or with another key, is removed, with a warning.
        """
        try:
            descriptor = os.open(name, _READ, dir_fd=self._directory)
            try:
                is_intact = self._fill(descriptor, name, content)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return False
        except OSError:  # such as that of a link or of a damaged disk
            is_intact = False
        if not is_intact:
            self._remove(name)
            self._warn("read", f"{name} is damaged and was removed; its prompt is read again")
        return is_intact

    def _fill(self, descriptor: int, name: str, content: memoryview) -> bool:
        """Fills `content` from an open file; returns whether the file is intact."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return False
        if status.st_size != _CHECKSUM_BYTES + len(content):
            return False
        with open(descriptor, "rb", closefd=False) as file:
            checksum = file.read(_CHECKSUM_BYTES)
            is_whole = file.readinto(content) == len(content)
        return is_whole and hmac.compare_digest(checksum, self._checksum(name, content))

    def write(self, name: str, content: memoryview, when: int) -> None:
        """Writes a file, last used at `when`. If the disk is full or fails, nothing is left of it,
        and the first time a warning says so."""
        try:
            self._make_room(_CHECKSUM_BYTES + len(content))
            at, checksum = self._directory, self._checksum(name, content)
            with self._temporary(
                [checksum, content], lambda file: os.utime(file, ns=(when, when))
            ) as temporary:
                os.rename(temporary, name, src_dir_fd=at, dst_dir_fd=at)
        except OSError as error:
            self._warn(
                "write",
                f"cannot be written: {error.strerror or error}; answers go on, and this part of a "
                "prompt is read again after a restart",
            )

    @contextmanager
    def _temporary(
        self, parts: Iterable[bytes | memoryview], finish: Callable[[int], None]
    ) -> Iterator[str]:
        """The name of a new private file of these parts, which is gone afterwards unless it was
        renamed. `finish` gets the descriptor of the whole file."""
        name = f"{_TEMPORARY}{token_hex(16)}"
        descriptor = os.open(name, _CREATE, 0o600, dir_fd=self._directory)
        try:
            with open(descriptor, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                finish(descriptor)
            yield name
        finally:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._directory)

    def _make_room(self, size: int) -> None:
        """Removes the least recently used files until `size` bytes fit below the bound."""
        if size > self._room:
            room = max(size, self.most_bytes // _SLACK)
            found = sorted(self._list())
            total = sum(each for _, each, _ in found)
            for _, freed, name in found:
                if total + room <= self.most_bytes:
                    break
                self._remove(name)
                total -= freed
            self._room = room
        self._room -= size

    def _list(self) -> Iterator[tuple[int, int, str]]:
        """The time of the last use, the size and the name of each file. Removes temporary files
        that an ended process left."""
        with os.scandir(self._directory) as entries:
            for entry in entries:
                is_temporary = entry.name.startswith(_TEMPORARY)
                if not is_temporary and not _NAME.fullmatch(entry.name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # another process has removed it
                    continue
                if not is_temporary:
                    yield status.st_mtime_ns, status.st_size, entry.name
                elif status.st_ctime < time.time() - _ABANDONED_SECONDS:
                    self._remove(entry.name)

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._directory)

    def _warn(self, kind: str, problem: str) -> None:
        """Warns once for each kind of problem."""
        if kind not in self._warned:
            self._warned.add(kind)
            warning = SpecqdWarning(problem, "prompt_cache", str(self.path))
            warnings.warn(warning, stacklevel=2)

    def _checksum(self, name: str, content: memoryview) -> bytes:
        checksum = hmac.new(self.key, name.encode(), "sha256")
        checksum.update(content)
        return checksum.digest()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:  # the last for an unknown ~user
            reason = error.strerror if isinstance(error, OSError) else error
            raise self._refused(
                f"cannot be used: {reason}; name a directory of your own"
            ) from error

    def _refused(self, problem: str) -> MachineError:
        return MachineError(problem, "prompt_cache", str(self.path))

    def _check_owner(self) -> None:
        status = os.fstat(self._directory)
        if status.st_uid != os.geteuid():
            raise self._refused("belongs to another user; name a directory of your own")
        if status.st_mode & 0o022:
            raise self._refused(
                "other users can write to it; chmod 700 it, or name a new one in it"
            )

    def _open_key(self) -> bytes:
        """The key of the directory, which the first process makes."""
        try:
            return self._read_key()
        except FileNotFoundError:
            at, key = self._directory, token_bytes(_KEY_BYTES)
            with self._temporary([key], os.fsync) as temporary, suppress(FileExistsError):
                os.link(temporary, _KEY, src_dir_fd=at, dst_dir_fd=at)  # fails if another made it
            return self._read_key()

    def _read_key(self) -> bytes:
        with open(os.open(_KEY, _READ, dir_fd=self._directory), "rb") as file:
            status = os.fstat(file.fileno())
            key = file.read(_KEY_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
        if len(key) != _KEY_BYTES or status.st_mode & 0o077 or status.st_uid != os.geteuid():
            raise self._refused(
                f"its file {_KEY} is not a private one of {_KEY_BYTES} bytes; delete it, and the "
                "cache begins anew"
            )
        return key
