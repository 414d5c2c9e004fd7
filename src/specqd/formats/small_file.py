"""Reads the small files that describe a model, and rejects oversized ones."""

import errno
from pathlib import Path

MOST_JSON_BYTES = 1 << 24  # for settings and templates; the largest in use have 2 MB
MOST_VOCABULARY_BYTES = 1 << 27  # for tokenizer.json and tokenizer.model; the largest have 40 MB


def read_small(path: Path, most_bytes: int) -> bytes:
    """Returns the contents of a file of at most `most_bytes`; raises OSError for a longer one.

    Never opens a pipe or a device.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "is not a file")
    if path.stat().st_size > most_bytes:
        raise OSError(errno.EFBIG, f"is longer than {most_bytes} bytes")
    return path.read_bytes()
