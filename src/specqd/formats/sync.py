"""Flushes files and directories to the disk."""

import os
import sys
from pathlib import Path


def sync(path: Path) -> None:
    """Blocks until a file's contents, or a directory's entries, are on the disk.

    Windows cannot do this for a directory: after a power failure, a file that was new may be gone.
    """
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
