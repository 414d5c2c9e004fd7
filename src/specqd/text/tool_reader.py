"""Finds tool calls in a text while it is generated. Pieces are never taken back.

A call begins once its name and the start of its arguments are read. Any other text is content.
Arguments are passed on as the model writes them; as with OpenAI, the client must handle wrong JSON.
Each character is read a bounded number of times, however long the text and however small its
pieces. Knows the three forms of `tool_calls`. Knows nothing of tokens or of answers.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from specqd.text.stream import overlap
from specqd.text.tool_calls import ARGUMENTS_MARK, CLOSER, ID_MARK, OPENER, PYTHON_TAG

_LONGEST_HEAD = 512  # characters
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_MARKED_HEAD = re.compile(
    rf"\s*([\w.-]+)\s*(?:{re.escape(ID_MARK)}\s*\w+\s*)?{re.escape(ARGUMENTS_MARK)}\s*(?=\{{)"
)
_SPACE = re.compile(r"\s*")
_TAG = re.compile(f"{OPENER}|{CLOSER}")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class CallPiece:
    """New text of a call."""

    index: int  # of the call, from 0
    name: str | None  # only in the first piece of each call
    arguments: str


Piece = str | CallPiece  # content, or a part of a call


class ToolReader:
    """Reads one text. names: of the functions. is_tagged, opener: see CallForm."""

    def __init__(self, names: Collection[str], *, is_tagged: bool, opener: str = OPENER) -> None:
        self.num_calls = 0
        self._names = names
        self._is_tagged = is_tagged
        self._opener = opener
        self._has_closer = opener == OPENER  # otherwise the end of its arguments ends a call
        self._pattern = _HEAD if self._has_closer else _MARKED_HEAD
        self._kept: list[str] = []  # text that was read but is not yet known to be content or call
        self._body: list[str] = []  # the same, for a call's object
        self._text = ""
        self._at = 0  # `_text` is read up to here
        self._scanned = 0  # the end of a call's object was searched up to here
        self._marks: tuple[str, ...] = (PYTHON_TAG,)  # that may still precede an untagged call
        self._object = _Object()
        self._state: Literal["text", "head", "arguments", "tail", "plain"] = "text"

    def feed(self, text: str) -> list[Piece]:
        """Returns the pieces that this text made final."""
        self._text = self._text[self._at :] + text
        self._scanned -= self._at
        self._at = 0
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
        """Returns the last pieces, at the end of the text."""
        pieces: list[Piece] = []
        body = "".join(self._body) + self._text[self._at :]
        self._at = len(self._text)
        if self._state == "head" and self._take_whole(body, pieces):
            return pieces
        held = "".join(self._kept) + body
        rest = held.strip("}; \t\r\n") if self.num_calls else held
        if self._state == "tail" and CLOSER.startswith(rest):  # the text ends within the tag
            rest = ""
        if rest:
            pieces.append(held)
        return pieces

    # --- Each method takes a step and returns whether another may follow -----------------------

    def _tagged_text(self, pieces: list[Piece]) -> bool:
        at = self._text.find(self._opener, self._at)
        end = at if at >= 0 else len(self._text) - overlap(self._text, self._opener)
        new = self._taken(max(end, self._at))
        content = new.rstrip()  # white space before a call is not content
        if content:
            pieces.append("".join((*self._kept, content)))
            self._kept.clear()
        self._kept.append(new[len(content) :])
        if at < 0:
            return False
        self._kept.append(self._taken(at + len(self._opener)))
        self._begin_head()
        return True

    def _untagged_text(self, pieces: list[Piece]) -> bool:
        while True:
            self._kept.append(self._taken(self._end_of_space()))
            rest = self._text[self._at : self._at + len(PYTHON_TAG)]
            mark = next((mark for mark in self._marks if rest.startswith(mark)), None)
            if mark is None:
                break
            self._kept.append(self._taken(self._at + len(mark)))
            self._marks = self._marks[self._marks.index(mark) + 1 :]
        if not rest or any(mark.startswith(rest) for mark in self._marks):
            return False
        if rest.startswith("{"):
            self._begin_head()
        else:
            self._state = "plain"
        return True

    def _plain(self, pieces: list[Piece]) -> bool:
        self._give_back("", pieces)
        return False

    def _begin_head(self) -> None:
        self._scanned = self._at
        self._object = _Object()
        self._state = "head"

    def _head(self, pieces: list[Piece]) -> bool:
        if not self._body:  # otherwise it is longer than any head
            head = self._pattern.match(self._text, self._at, self._at + _LONGEST_HEAD)
            if head is not None and head[1] in self._names:
                pieces.append(CallPiece(self.num_calls, head[1], ""))
                self._at = head.end()
                self._kept.clear()
                self._object = _Object()
                self._state = "arguments"
                return True
        end, mark = self._end_of_body()
        if end is None:
            if self._scanned - self._at > _LONGEST_HEAD:
                self._body.append(self._taken(self._scanned))
            return False
        body = "".join((*self._body, self._taken(end)))
        self._body.clear()
        self._at += len(mark)
        if self._take_whole(body, pieces):
            self._kept.clear()
            self._begin_text()
        else:
            self._give_back(body + mark, pieces)
            self._state = "text" if self._is_tagged else "plain"
        return True

    def _end_of_body(self) -> tuple[int | None, str]:
        """Returns the end of the call's object, or None, and the mark that follows it."""
        if self._is_tagged:
            mark = CLOSER if self._has_closer else self._opener  # of the next call
            end = self._text.find(mark, self._scanned)
            self._scanned = max(len(self._text) - overlap(self._text, mark), self._scanned)
            return (None, "") if end < 0 else (end, mark if self._has_closer else "")
        found = self._object.end_in(self._text, self._scanned)
        self._scanned = len(self._text)
        return found, ""

    def _take_whole(self, body: str, pieces: list[Piece]) -> bool:
        """Takes the body if it is a call, with its members in any order."""
        call = _whole_call(body)
        if call is None or call[0] not in self._names:
            return False
        pieces.append(CallPiece(self.num_calls, *call))
        self.num_calls += 1
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        end = self._object.end_in(self._text, self._at)
        taken = self._taken(len(self._text) if end is None else end)
        if taken:
            pieces.append(CallPiece(self.num_calls, None, taken))
        if end is None:
            return False
        self.num_calls += 1
        self._state = "tail"
        return True

    def _tail(self, pieces: list[Piece]) -> bool:
        """Skips to the text that follows a call."""
        if not self._is_tagged:
            self._at = self._end_of_space()
            if self._at == len(self._text):
                return False
            self._at += self._text.startswith("}", self._at)
        elif self._has_closer:
            tag = _TAG.search(self._text, self._at)
            if tag is None:
                held = max(overlap(self._text, OPENER), overlap(self._text, CLOSER))
                self._kept.append(self._taken(max(len(self._text) - held, self._at)))
                return False
            self._kept.clear()
            self._at = tag.end() if tag[0] == CLOSER else tag.start()
        self._begin_text()
        return True

    # --- Parts of steps -----------------------------------------------------------------------

    def _begin_text(self) -> None:
        self._marks = (";", PYTHON_TAG)
        self._state = "text"

    def _taken(self, end: int) -> str:
        taken = self._text[self._at : end]
        self._at = end
        return taken

    def _end_of_space(self) -> int:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        return found.end()

    def _give_back(self, body: str, pieces: list[Piece]) -> None:
        """Makes the kept text content."""
        content = "".join(self._kept) + body
        self._kept.clear()
        if self._state == "plain":
            content += self._taken(len(self._text))
        if content:
            pieces.append(content)


class _Object:
    """Finds the end of a JSON object that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_text = False
        self._is_escaped = False

    def end_in(self, text: str, begin: int) -> int | None:
        """Returns where the object ends in the text from `begin` on, or None if more may follow.

        The start of a tag ends it too, because JSON has no tags outside of strings.
        """
        for i in range(begin, len(text)):
            character = text[i]
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
    """Returns the name and the arguments of a call, or None if the body is not a call in JSON."""
    call = _object_of(body)
    if call is None or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        return None if _object_of(arguments) is None else (call["name"], escaped(arguments))
    if not isinstance(arguments, dict):
        return None
    return call["name"], escaped(json.dumps(arguments, ensure_ascii=False))


def _object_of(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def escaped(text: str) -> str:
    """Writes the lone surrogates of JSON text, which occur only in strings, as escapes."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
