"""Maps a file for reading in place, and detects later changes to it."""

import contextlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from specqd.errors import TensorError

# Advises Linux to read a file into huge pages, if its file system can. In small ones, weights are
# slower to read from memory, because the processor looks into the page tables once for each page.
_HUGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)


@dataclass(frozen=True, slots=True, eq=False)
class MappedFile:
    """A whole file, mapped read-only."""

    path: Path  # absolute
    data: mmap.mmap
    status: os.stat_result  # when it was mapped

    @classmethod
    def open(cls, path: Path) -> "MappedFile":
        """Maps the file. Raises TensorError if it is empty, cannot be read or is no file."""
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise TensorError(f"{path}: is not a file; name a file of weights")
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                status = os.fstat(file.fileno())
        except OSError as error:
            raise TensorError(f"{path}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:  # mmap's
            raise TensorError(f"{path}: is empty; fetch the file again") from error
        if _HUGE_PAGES is not None:
            with contextlib.suppress(OSError):  # a kernel without huge pages
                data.madvise(_HUGE_PAGES)
        return cls(path.absolute(), data, status)

    def check_unchanged(self) -> None:
        """Raises TensorError if the file was truncated or written to since it was mapped.

        Replacing the file by another one of the same name is harmless. If the file is truncated
        between this check and the next read, the process still ends (SIGBUS).
        """
        try:
            now = self.path.stat()
        except OSError:
            now = self.status
        is_same_file = os.path.samestat(now, self.status)
        is_written = is_same_file and now.st_mtime_ns != self.status.st_mtime_ns
        if is_written or self.data.size() != len(self.data):
            raise TensorError(
                f"{self.path}: was changed while it was in use; load the model again, and replace "
                "model files by renaming new ones over them"
            )
