"""Reads files that describe a model, up to a size that such files do not reach."""

import errno
from pathlib import Path

MOST_JSON_BYTES = 1 << 24  # of settings and templates; the largest in use have 2 MB
MOST_VOCABULARY_BYTES = 1 << 27  # of tokenizer.json and tokenizer.model; the largest have 40 MB


def read_small(path: Path, most_bytes: int) -> bytes:
    """The contents of a file; raises OSError, also for a file that is too long.

    A pipe or a device is never opened.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a file")
    if path.stat().st_size > most_bytes:
        raise OSError(errno.EFBIG, f"is longer than {most_bytes} bytes")
    return path.read_bytes()
