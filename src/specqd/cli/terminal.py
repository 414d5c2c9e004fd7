"""Terminal output: safe text, tables, progress. Knows no models."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, Self, TextIO

import click

from specqd.interrupts import HeldBack

try:
    import termios
    import tty
except ImportError:  # on Windows
    termios = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# C0 without newline and tab, DEL, C1, and controls that reorder text (Unicode's Bidi_Control).
_CONTROLS = [
    *(code for code in range(0x20) if chr(code) not in "\n\t"),
    *range(0x7F, 0xA0),
    0x061C,
    0x200E,
    0x200F,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
]
_WITHOUT_CONTROLS = dict.fromkeys(_CONTROLS)
_PATIENCE = 0.5  # seconds before a progress bar appears
QUIET = "specqd.quiet"  # key of the meta of a quiet command's context

# Whether the terminal shows what is typed while no program reads it. The console of Windows keeps
# it, unseen, for the next reader.
SHOWS_UNREAD = termios is not None


def harmless(text: str) -> str:
    """The text without terminal controls."""
    return text.translate(_WITHOUT_CONTROLS)


def one_line(text: str) -> str:
    return harmless(text.replace("\n", " "))


def shown_bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def is_quiet() -> bool:
    """Whether the running command prints only errors on standard error."""
    context = click.get_current_context(silent=True)
    return context is not None and QUIET in context.meta


def say(text: str) -> None:
    """Prints an answer of the program to standard error, on one line."""
    print(f"specqd: {one_line(text)}", file=sys.stderr)


def inform(text: str) -> None:
    """Prints what nobody asked for in the same way, unless the command is quiet."""
    if not is_quiet():
        say(text)


def write_text(text: str) -> None:
    """Writes a model's text to standard output and flushes; harmless on a terminal, else raw."""
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def outputs_meet() -> bool:
    """Whether standard output and standard error are the same file or pipe."""
    try:
        out, error = (os.fstat(stream.fileno()) for stream in (sys.stdout, sys.stderr))
    except (OSError, ValueError):  # a test's stand-in has no descriptor
        return False
    return os.path.samestat(out, error)


@contextmanager
def no_echo() -> Iterator[None]:
    """Hides what is typed; the next reader gets it. Ctrl-C and Ctrl-Z still work, and drop nothing
    of what was typed before them."""
    if not SHOWS_UNREAD:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    hide_typing()
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def hide_typing() -> None:
    """Does the same for good, and again after Ctrl-Z, at which the shell sets its own modes."""
    tty.setcbreak(sys.stdin, termios.TCSADRAIN)
    modes = termios.tcgetattr(sys.stdin)
    modes[tty.LFLAG] |= termios.NOFLSH
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, modes)


def can_redraw(stream: TextIO) -> bool:
    """Whether the stream is a terminal on which lines can be replaced."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO) -> bool:
    """Whether to write colours to the stream (https://no-color.org)."""
    return can_redraw(stream) and not os.environ.get("NO_COLOR")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: first column left-aligned, the others right-aligned."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def write_results(results: Mapping[str, Any], file: Path | None) -> None:
    """Writes the results as one line of JSON, if there is a file for them; `-`: standard output."""
    content = json.dumps(results)
    if file == Path("-"):
        print(content)
    elif file is not None:
        file.write_text(content + "\n", encoding="utf-8")


class ProgressBar:
    """Shows the progress of long work on standard error, if that is a terminal. Call it with (done,
    total). It appears after a while, even if no call has come, and leaves no trace."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._counts: tuple[int, int | None] = (0, None)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._is_over = False
        self._lock = Lock()
        self._timer: Timer | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not is_quiet():
            with HeldBack():
                self._timer = Timer(_PATIENCE, self._show)
                self._timer.daemon = True
                self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Removes the bar; calls have no effect any more."""
        if self._timer is None or self._is_over:
            return
        with HeldBack():
            self._timer.cancel()
            with self._lock:
                self._is_over = True
                if self._bar is not None:
                    self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        with self._lock:
            self._counts = (done, total)
            if self._bar is not None and self._task is not None and not self._is_over:
                self._bar.update(self._task, completed=done, total=total)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress  # imported here: it takes a tenth of a second

        with self._lock:
            if self._is_over:
                return
            self._bar = Progress(console=Console(stderr=True), transient=True)
            done, total = self._counts
            self._task = self._bar.add_task(self._label, completed=done, total=total)
            self._bar.start()
