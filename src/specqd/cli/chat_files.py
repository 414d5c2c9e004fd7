"""Conversations in files: those that /save writes, and the last one of a terminal."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from specqd.cli.conversation import Turn
from specqd.cli.settings import home_directory
from specqd.errors import RequestError, shown

_LARGEST = 1 << 28  # bytes of a file that is read


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A conversation that can be continued. model: as it was named; None: the shipped one."""

    model: str | None = None
    system: str | None = None
    turns: list[Turn] = field(default_factory=list)


def state_directory() -> Path:
    """Where SpecQD keeps what a user typed, after the XDG base directories."""
    state = os.environ.get("XDG_STATE_HOME") or home_directory() / ".local" / "state"
    return Path(state) / "specqd"


def last_chat() -> Path:
    """The file of the last conversation on a terminal."""
    return state_directory() / "last_chat.json"


def model_in_file(model: str | None) -> str | None:
    """A model's name as it stays valid in every working directory."""
    from specqd.hub import expanded

    if model is not None and (path := expanded(model)).exists():
        return str(path.absolute())
    return model


def as_json(model: str | None, conversation: dict[str, Any]) -> str:
    """The text of a conversation's file."""
    described = {"model": model_in_file(model), **conversation}
    return json.dumps(described, ensure_ascii=False, indent=1) + "\n"


def write_new(path: Path, text: str) -> None:
    """Writes a file that must not exist yet. Raises RequestError."""
    try:
        file = path.open("x", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}; name a new file") from error
    try:
        with file:
            file.write(text)
    except OSError as error:
        path.unlink(missing_ok=True)
        problem = f"{path}: cannot be written ({error.strerror}); make room"
        raise RequestError(problem) from error


def replace_file(path: Path, text: str) -> None:
    """Writes a file as a whole or not at all; only the user can read it. Raises RequestError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(  # made with mode 0600
            "w", encoding="utf-8", errors="backslashreplace", dir=path.parent, delete=False
        ) as file:
            written = Path(file.name)
            try:
                file.write(text)
                file.close()
                written.replace(path)
            except BaseException:
                written.unlink(missing_ok=True)
                raise
    except OSError as error:
        problem = f"{path}: cannot be written ({error.strerror}); make room or allow it"
        raise RequestError(problem) from error


def read_chat(path: Path) -> SavedChat:
    """Reads a conversation. Raises RequestError if there is none in the file."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            content = json.loads(file.read(_LARGEST))
    except FileNotFoundError as error:
        raise RequestError(_not_found(path)) from error
    except (OSError, ValueError, RecursionError) as error:
        cause = getattr(error, "strerror", None) or "it is not JSON in UTF-8"
        raise RequestError(f"{path}: cannot be read: {cause}; name a file of /save") from error
    messages = content.get("messages") if isinstance(content, dict) else None
    if not isinstance(messages, list):
        raise RequestError(f"{path}: has no list of messages; name a .json file of /save")
    model = content.get("model")
    if not isinstance(model, str | None):
        raise RequestError(f"{path}: model: {shown(model)} is not a name; correct it")
    roles = ["system"] if messages and _role(messages[0]) == "system" else []
    roles += ["user", "assistant"] * ((len(messages) - len(roles) + 1) // 2)
    if len(roles) != len(messages):
        raise RequestError(f"{path}: the last message has no answer; remove it")
    for i, (message, role) in enumerate(zip(messages, roles, strict=True)):
        if _role(message) != role or not isinstance(message.get("content"), str):
            problem = f"is not a text of the role {role}"
            raise RequestError(f"{path}: messages[{i}] {problem}; name a file of /save")
    texts = [message["content"] for message in messages]
    system = texts.pop(0) if roles[:1] == ["system"] else None
    return SavedChat(model, system, list(map(Turn, texts[::2], texts[1::2])))


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, dict) else None


def _not_found(path: Path) -> str:
    if path == last_chat():
        return "there is no last conversation yet; a terminal keeps each one after its first answer"
    return (
        f"{path}: there is no such file; name one that /save has written, or none for the last "
        "conversation; a model's name comes before --resume"
    )
