"""Reads a text file that a user named. Knows nothing of what it holds."""

from pathlib import Path

from specqd.errors import RequestError


def read_text_file(path: Path, where: str, remedy: str) -> str:
    """The text of a UTF-8 file. Raises RequestError of one line: `where`, the problem, `remedy`."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeError as error:
        raise RequestError(f"{where}: {path} is not UTF-8; convert it first") from error
    except OSError as error:
        raise RequestError(f"{where}: {path}: {error.strerror}; {remedy}") from error
