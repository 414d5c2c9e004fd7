"""Brings files and directories to the disk."""

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Returns when the disk has a file's contents, or a directory's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
