"""Files that are read where they are mapped: whether they still are what was checked."""

import mmap
import os
from pathlib import Path

from specqd.errors import TensorError


def check_unchanged(path: Path, mapped: mmap.mmap, status: os.stat_result) -> None:
    """Refuses to go on with a file that was cut or written to since it was mapped, when it had this
    status. Another file that took its name changes nothing here.

    What is cut off between this check and its use still ends the process (SIGBUS).
    """
    try:
        now = path.stat()
    except OSError:
        now = status
    is_touched = os.path.samestat(now, status) and now.st_mtime_ns != status.st_mtime_ns
    if is_touched or mapped.size() != len(mapped):
        raise TensorError(
            f"{path}: was changed while it was in use; load the model again, and replace files of "
            "models by renaming new ones over them"
        )
