"""Flushes files and directories to the disk."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Blocks until a file's contents, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
