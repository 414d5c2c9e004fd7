"""Reads the files beside a vocabulary: settings and chat templates. Knows no tokenizer."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specqd.errors import SpecqdError, TokenizerError
from specqd.formats.small_file import MOST_JSON_BYTES, read_small
from specqd.text.chat_template import ChatTemplate


@contextmanager
def as_tokenizer_error(path: Path, problem: str = "not a tokenizer") -> Iterator[None]:
    """Turns the library's exceptions and panics about a file into TokenizerError."""
    try:
        yield
    except (SpecqdError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library's panics are BaseExceptions
        raise TokenizerError(f"{path}: {problem}: {first_line(error)}") from error


def read_templates(directory: Path, settings: Mapping[str, Any]) -> dict[str, ChatTemplate]:
    """Reads the chat templates by name, from `.jinja` files or else from the JSON files."""
    paths = [directory / "chat_template.jinja"]
    paths += sorted((directory / "additional_chat_templates").glob("*.jinja"))
    sources = {path: text for path in paths if (text := read_text(path)) is not None}
    if sources:
        return {
            "default" if path is paths[0] else path.stem: ChatTemplate(text, str(path))
            for path, text in sources.items()
        }
    origin = directory / "tokenizer_config.json"
    described = settings.get("chat_template")
    if described is None:
        origin = directory / "chat_template.json"
        described = read_object(origin).get("chat_template")
    if isinstance(described, str):
        described = [{"name": "default", "template": described}]
    return {each["name"]: ChatTemplate(each["template"], str(origin)) for each in described or ()}


def read_template(path: Path) -> str:
    """Reads the file of a chat template. Raises TokenizerError if it cannot be read."""
    source = read_text(path)
    if source is None:
        raise TokenizerError(f"{path}: not found; name a file with a chat template")
    return source


def read_object(path: Path, most_bytes: int = MOST_JSON_BYTES) -> dict[str, Any]:
    """Reads the JSON object in a file. A missing file gives an empty object."""
    text = read_text(path, most_bytes)
    try:
        content = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not JSON: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: not a JSON object")
    return content


def read_text(path: Path, most_bytes: int = MOST_JSON_BYTES) -> str | None:
    """Reads a text file of at most `most_bytes`, or returns None if there is none.

    Raises TokenizerError if it cannot be read.
    """
    try:
        return read_small(path, most_bytes).decode("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeError as error:
        raise TokenizerError(f"{path}: cannot be read: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
