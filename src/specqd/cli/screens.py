"""Ways of showing a text that grows: as it is, wrapped, or folded into one line at its end."""

import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Protocol, TextIO

from specqd.cli.terminal import harmless, has_colour, is_quiet, outputs_meet, write_text
from specqd.cli.wrapping import WordWrap, cells

DRAW_S = 0.1  # the shortest interval between two drawings, which leaves the cores to the model
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_FOLDED_LINES = 3
STYLES = re.compile("\x1b\\[[0-9;]*m")


class Screen(Protocol):
    """Where one text appears."""

    def feed(self, text: str) -> None:
        """Shows more of the text, perhaps later."""

    def finish(self) -> None:
        """Shows all of it, and ends its last line."""


class Streamed:
    """Writes the text to standard output. is_wrapped: breaks lines on a terminal between words."""

    def __init__(self, *, is_wrapped: bool = False) -> None:
        self._wrap = WordWrap(columns) if is_wrapped and sys.stdout.isatty() else None
        self._ends_line = False

    def feed(self, text: str) -> None:
        write_text(self._wrap.feed(harmless(text)) if self._wrap else text)
        self._ends_line = text.endswith("\n")

    def finish(self) -> None:
        if self._wrap:
            write_text(self._wrap.finish())
        if not self._ends_line:
            self._end_line()

    def _end_line(self) -> None:
        write_text("\n")


class Unchanged(Streamed):
    """Writes only the text to standard output. A newline follows on a terminal; if both outputs are
    one file, the newline goes to standard error."""

    def _end_line(self) -> None:
        if sys.stdout.isatty():
            write_text("\n")
        elif outputs_meet() and not is_quiet():
            print(file=sys.stderr)  # not to stdout: the text stays as it is


class Dimmed:
    """Writes the text dimmed to standard error. is_wrapped: as in `Streamed`."""

    def __init__(self, *, is_wrapped: bool = False) -> None:
        self._wrap = WordWrap(columns) if is_wrapped and sys.stderr.isatty() else None

    def feed(self, text: str) -> None:
        self._write(self._wrap.feed(harmless(text)) if self._wrap else harmless(text))

    def finish(self) -> None:
        self._write((self._wrap.finish() if self._wrap else "") + "\n")

    def _write(self, text: str) -> None:
        print(dimmed(text), end="", file=sys.stderr, flush=True)


class Folded:
    """Shows the last lines of the reasoning on standard error while it grows, then one line that
    says how long it took and how to see it."""

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._text = ""
        self._begun = time.monotonic()
        self._drawn = 0.0
        self._region = Region(sys.stderr)

    def feed(self, text: str) -> None:
        self._text += harmless(text)
        if time.monotonic() - self._drawn < DRAW_S:
            return
        self._drawn = time.monotonic()
        width = max(columns() - 2, 1)
        wrap, end = WordWrap(lambda: width), self._text[-width * (_FOLDED_LINES + 1) :]
        lines = (wrap.feed(end) + wrap.finish()).rstrip().split("\n")[-_FOLDED_LINES:]
        self._region.show([], [dimmed("thinking"), *(dimmed(f"  {line}") for line in lines)])

    def finish(self) -> None:
        seconds = time.monotonic() - self._begun
        self._region.show([dimmed(f"thought for {seconds:.1f} s; {self._hint}"), ""], [])


class Region:
    """The last lines of a terminal, which are replaced as a whole. Nothing else may write to the
    terminal while some are shown."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows = 0  # of the terminal that the lines take

    def show(self, done: Sequence[str], still_open: Sequence[str]) -> None:
        """Replaces the region by lines that are done, and by the last of those that are still open
        as the new region. Lines have no control sequences but styles."""
        kept, rows = self._last(still_open)
        up = f"\x1b[{self._rows - 1}A" if self._rows > 1 else ""
        erased = f"\r{up}\x1b[J" if self._rows else ""
        self._stream.write(erased + "".join(f"{line}\n" for line in done) + "\n".join(kept))
        self._stream.flush()
        self._rows = rows

    def _last(self, lines: Sequence[str]) -> tuple[list[str], int]:
        """The last lines that fit into the terminal, and the rows that they take."""
        width, height = _size_of(self._stream)
        kept: list[str] = []
        rows = 0
        for line in reversed(lines):
            needed = max(1, -(-cells(STYLES.sub("", line)) // width))
            if rows + needed >= height:
                break
            kept.insert(0, line)
            rows += needed
        return kept, rows


def dimmed(text: str) -> str:
    return f"{_DIM}{text}{_PLAIN}" if has_colour(sys.stderr) else text


def columns() -> int:
    return shutil.get_terminal_size().columns


def _size_of(stream: TextIO) -> tuple[int, int]:
    """The columns and lines of a terminal."""
    width, height = os.get_terminal_size(stream.fileno())
    return width or 80, height or 24
