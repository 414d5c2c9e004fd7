"""Reads calls of tools out of a text as it is generated. No piece is taken back.

Knows the two forms of `tool_calls`; knows nothing of tokens or of answers. A call begins once its
name and the begin of its arguments are read; any other text stays content. Arguments are passed on
as the model writes them: like OpenAI, wrong JSON is for the client to see.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from specqd.openai.tool_calls import CLOSER, OPENER, PYTHON_TAG
from specqd.text.stream import overlap

_LONGEST_HEAD = 512  # characters
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More of the call with this number, counted from 0."""

    index: int
    name: str | None  # in the first piece of each call
    arguments: str


Piece = str | CallPiece  # content, or a part of a call


class ToolReader:
    """Reads one text. is_tagged: calls stand in <tool_call> tags."""

    def __init__(self, names: Collection[str], *, is_tagged: bool) -> None:
        self.num_calls = 0
        self._names = names
        self._is_tagged = is_tagged
        self._held = ""  # text that is not passed on yet
        self._body = 0  # where in it a call's object begins
        self._seen = 0  # how far it was searched
        self._object = _Object()
        self._state: Literal["text", "head", "arguments", "tail", "plain"] = "text"

    def feed(self, text: str) -> list[Piece]:
        """The pieces that became certain with this text."""
        self._held += text
        pieces: list[Piece] = []
        steps = {
            "text": self._tagged_text if self._is_tagged else self._untagged_text,
            "head": self._head,
            "arguments": self._arguments,
            "tail": self._tail,
            "plain": self._plain,
        }
        while steps[self._state](pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """The last pieces, at the text's end."""
        pieces: list[Piece] = []
        if self._state == "head" and self._take_whole(self._held[self._body :], pieces):
            self._held = ""
        rest = self._held.strip("}; \t\r\n") if self.num_calls else self._held
        if self._state == "tail" and CLOSER.startswith(rest):  # the text ends within it
            rest = ""
        if rest:
            pieces.append(self._held)
        self._held = ""
        return pieces

    # --- Each takes a step and returns whether another may follow ------------------------------

    def _tagged_text(self, pieces: list[Piece]) -> bool:
        at = self._held.find(OPENER)
        end = at if at >= 0 else len(self._held) - overlap(self._held, OPENER)
        end = len(self._held[:end].rstrip())  # white space before a call is not content
        if end:
            pieces.append(self._held[:end])
            self._held = self._held[end:]
        if at < 0:
            return False
        self._begin_head(at - end + len(OPENER))
        return True

    def _untagged_text(self, pieces: list[Piece]) -> bool:
        text = self._held.lstrip()
        if self.num_calls:
            text = text.removeprefix(";").lstrip()
        if text.startswith(PYTHON_TAG):
            text = text.removeprefix(PYTHON_TAG).lstrip()
        elif PYTHON_TAG.startswith(text):
            return False
        if not text:
            return False
        if text.startswith("{"):
            self._begin_head(len(self._held) - len(text))
        else:
            self._state = "plain"
        return True

    def _plain(self, pieces: list[Piece]) -> bool:
        if self._held:
            pieces.append(self._held)
            self._held = ""
        return False

    def _begin_head(self, body: int) -> None:
        self._body = self._seen = body
        self._object = _Object()
        self._state = "head"

    def _head(self, pieces: list[Piece]) -> bool:
        head = _HEAD.match(self._held[: self._body + _LONGEST_HEAD], self._body)
        if head is not None and head[1] in self._names:
            pieces.append(CallPiece(self.num_calls, head[1], ""))
            self._held = self._held[head.end() :]
            self._object = _Object()
            self._state = "arguments"
            return True
        end, after = self._end_of_body()
        if end is None:
            return False
        if not self._take_whole(self._held[self._body : end], pieces):
            pieces.append(self._held[:after])
            self._state = "text" if self._is_tagged else "plain"
        else:
            self._state = "text"
        self._held = self._held[after:]
        return True

    def _end_of_body(self) -> tuple[int | None, int]:
        """The end of the call's object in the held text, and the place where the text goes on."""
        if self._is_tagged:
            at = self._held.find(CLOSER, max(self._body, self._seen - len(CLOSER)))
            self._seen = len(self._held)
            return (None, 0) if at < 0 else (at, at + len(CLOSER))
        new = self._held[self._seen :]
        end = self._object.end_in(new)
        self._seen += len(new) if end is None else end
        return (None, 0) if end is None else (self._seen, self._seen)

    def _take_whole(self, body: str, pieces: list[Piece]) -> bool:
        """Takes a call with its members in another order, if the body is one."""
        call = _whole_call(body)
        if call is None or call[0] not in self._names:
            return False
        pieces.append(CallPiece(self.num_calls, *call))
        self.num_calls += 1
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        end = self._object.end_in(self._held)
        taken = self._held[:end]
        if taken:
            pieces.append(CallPiece(self.num_calls, None, taken))
        self._held = self._held[len(taken) :]
        if end is None:
            return False
        self.num_calls += 1
        self._state = "tail"
        return True

    def _tail(self, pieces: list[Piece]) -> bool:
        """Skips to where the text goes on after a call."""
        if not self._is_tagged:
            rest = self._held.lstrip()
            if not rest:
                return False
            self._held = rest.removeprefix("}")
        else:
            marks = re.search(f"{CLOSER}|(?={OPENER})", self._held)
            if marks is None:
                return False
            self._held = self._held[marks.end() :]
        self._state = "text"
        return True


class _Object:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_text = False
        self._is_escaped = False

    def end_in(self, piece: str) -> int | None:
        """The length of the object's part of the piece; None: all of it, and more may come. The
        begin of a tag ends it, since JSON has none outside of strings."""
        for i, character in enumerate(piece):
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_in_text:
                self._is_escaped = character == "\\"
                self._is_in_text = character != '"'
            elif character == '"':
                self._is_in_text = True
            elif character in "{[":
                self._depth += 1
            elif character == "<":
                return i
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return i + 1
        return None


def _whole_call(body: str) -> tuple[str, str] | None:
    """The name and the arguments of a call, where the body is valid JSON."""
    call = _object_of(body)
    if call is None or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        return None if _object_of(arguments) is None else (call["name"], arguments)
    if not isinstance(arguments, dict):
        return None
    return call["name"], json.dumps(arguments, ensure_ascii=False)


def _object_of(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
