"""Reads the text on which a model is calibrated. Knows no weights."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from specqd.errors import RequestError, TokenizerError
from specqd.text.text_file import json_lines, read_text_file
from specqd.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """A text as sequences of token ids, and its name."""

    name: str
    sequences: list[list[int]]


def read_calibration(tokenizer: Tokenizer, path: Path | None) -> CalibrationText:
    """The JSON lines of a file, or of the shipped text, as token ids.

    A line has `text`, or `messages`, which pass through the model's chat template. Where a template
    refuses a shipped chat, its words are read alone. Raises RequestError.
    """
    if path is None:
        shipped = files("specqd.models").joinpath("calibration.jsonl")
        name, content = "built-in", shipped.read_text("utf-8")
    else:
        remedy = "name a file of JSON lines, or none"
        name, content = path.name, read_text_file(path, remedy)
    sequences = [
        _encoded(tokenizer, entry, where, is_own=path is not None)
        for entry, where in json_lines(content, name)
    ]
    if not any(sequences):
        raise RequestError(f"{name}: has no text; write one JSON object a line")
    return CalibrationText(name, [each for each in sequences if each])


def _encoded(tokenizer: Tokenizer, entry: Any, where: str, *, is_own: bool) -> list[int]:
    """A line's token ids; the shipped chats need no template, a file of the user's own does."""
    text = entry.get("text") if isinstance(entry, dict) else None
    messages = entry.get("messages") if isinstance(entry, dict) else None
    if isinstance(text, str):
        return tokenizer.encode(text)
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise RequestError(f"{where} has no text; write an object with `text` or `messages`")
    if tokenizer.has_chat_template:
        try:
            return tokenizer.chat(messages, add_generation_prompt=False)
        except (RequestError, TokenizerError) as error:
            if is_own:
                raise RequestError(f"{where}: {error}") from error
    return tokenizer.encode("\n\n".join(str(each.get("content", "")) for each in messages))
