"""What a terminal shows after a program's output, and the lines that have left it at the top.

Knows the control sequences that `Region` and styles use, and refuses others."""

import re

from prompt_toolkit.utils import get_cwidth

_SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|(.)", re.DOTALL)


class TerminalScreen:
    """A terminal of this size. Its lines are kept when they scroll away, and cannot be changed."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self._columns = columns
        self._rows = rows
        self._lines = [""]
        self._row = 0
        self._column = 0

    def write(self, text: str) -> None:
        for values, command, character in _SEQUENCE.findall(text):
            if command == "A":
                top = max(0, len(self._lines) - self._rows)
                assert self._row - int(values) >= top, "the cursor would leave the terminal"
                self._row -= int(values)
            elif command == "J":
                assert values == ""
                del self._lines[self._row + 1 :]
                self._lines[self._row] = self._lines[self._row][: self._column]
            elif character == "\r":
                self._column = 0
            elif character == "\n":
                self._next_line()
            else:
                assert command in ("", "m"), f"{values}{command} is not known"
                self._put(character)

    def flush(self) -> None:
        pass

    @property
    def lines(self) -> list[str]:
        """All lines, without the spaces at their ends."""
        return [line.rstrip() for line in self._lines]

    def _put(self, character: str) -> None:
        if not character:
            return
        assert character >= " ", f"{character!r} reaches the terminal"
        width = get_cwidth(character)
        if get_cwidth(self._lines[self._row]) + width > self._columns:
            self._next_line()
        line = self._lines[self._row]
        assert self._column == get_cwidth(line), "only empty cells are written to"
        self._lines[self._row] = line + character
        self._column += width

    def _next_line(self) -> None:
        self._row += 1
        self._column = 0
        if self._row == len(self._lines):
            self._lines.append("")
