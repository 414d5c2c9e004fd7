"""Reads a text file that a user named, and lines of JSON. Knows nothing of what they hold."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specqd.errors import RequestError


def read_text_file(path: Path, remedy: str) -> str:
    """The text of a UTF-8 file. Raises RequestError with the file, the problem and `remedy`."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeError as error:
        raise RequestError(f"{path}: is not UTF-8; convert it first") from error
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}; {remedy}") from error


def json_lines(content: str, name: str) -> Iterator[tuple[Any, str]]:
    """The values of all lines that are not blank, each with its place for messages: the file's
    name and the line's number. Raises RequestError of one line."""
    for number, line in enumerate(content.split("\n"), 1):  # other ends of lines may be in strings
        if line.strip():
            place = f"{name}: line {number}"
            try:
                yield json.loads(line), place
            except (ValueError, RecursionError) as error:
                raise RequestError(f"{place} is not JSON; write one object a line") from error
