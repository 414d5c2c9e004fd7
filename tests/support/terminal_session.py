"""Drives a program on its own terminal as a user would. Knows nothing of the program."""

import os
import re
import select
import time
from collections.abc import Mapping, Sequence
from typing import Self

import pexpect

ENTER, CTRL_C, CTRL_D, CTRL_J, CTRL_Z, UP = "\r", "\x03", "\x04", "\n", "\x1a", "\x1b[A"
COLUMNS = 80
_PATIENCE = 60.0  # seconds
_MARKED, _EDITOR_ENDS = "\x1b[?2004h", b"\x1b[?2004l"  # bracketed paste on, off
# It also hides the cursor, as a progress bar does, and ends the terminal's own wrapping.
_EDITOR_BEGINS = re.compile(rb"\x1b\[\?2004h(?:\x1b\[\?1l)?\x1b\[\?25l(?:\x1b\[0m)?\x1b\[\?7l")
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Z0-9]|[=>])")


class TerminalSession:
    """A terminal of 24 lines and 80 columns for standard input, output and errors."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        program, *arguments = command
        self._child = pexpect.spawn(
            program,
            arguments,
            env={**environment, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
            dimensions=(24, COLUMNS),
        )
        self._child.delaybeforesend = None
        self.raw = b""  # everything written to the terminal
        self._seen = 0
        self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.close(force=True)

    def say(self, line: str, end: str = ENTER) -> None:
        """Types a line once the program's editor is ready."""
        deadline = time.monotonic() + _PATIENCE
        self._lines += 1
        while len(_EDITOR_BEGINS.findall(self.raw)) < self._lines:
            assert self._read(deadline), f"the editor was not ready for {line!r}"
        self.send(line + end)

    def send(self, keys: str) -> None:
        self._child.send(keys)

    def end(self, number: int) -> None:
        self._child.kill(number)

    def paste(self, text: str, *, is_marked: bool = True) -> None:
        """Pastes a text as terminals do: marked as a paste once the program has asked for that."""
        text = text.replace("\n", ENTER)
        if is_marked:
            self.expect_raw(_MARKED)
            text = f"\x1b[200~{text}\x1b[201~"
        data, deadline = text.encode(), time.monotonic() + _PATIENCE
        while data:  # in small parts, because a terminal that is full would block us
            left = max(0, deadline - time.monotonic())
            assert select.select([], [self._child.fileno()], [], left)[1], "nothing reads the paste"
            data = data[os.write(self._child.fileno(), data[:256]) :]

    def expect_raw(self, text: str) -> None:
        """Waits until the program has written `text`, escape sequences included."""
        deadline = time.monotonic() + _PATIENCE
        while text.encode() not in self.raw:
            assert self._read(deadline), f"{text!r} never came"

    @property
    def echoes(self) -> bool:
        """Returns whether the terminal now shows what is typed."""
        return bool(self._child.getecho())

    def expect(self, text: str) -> str:
        """Waits until the terminal shows `text`. Returns the output before it since the last call,
        without escape sequences."""
        deadline = time.monotonic() + _PATIENCE
        while text not in (new := self._plain()[self._seen :]):
            assert self._read(deadline), f"{text!r} never came after {new!r}"
        before, _, _ = new.partition(text)
        self._seen += len(before) + len(text)
        return before

    def expect_sent(self) -> None:
        """Waits until the editor has ended, which it does with the last line said."""
        deadline = time.monotonic() + _PATIENCE
        while self.raw.count(_EDITOR_ENDS) < self._lines:
            assert self._read(deadline), "the editor did not end"

    def expect_answer(self) -> None:
        """Waits until the editor has ended and the program has written 100 bytes."""
        self.expect_sent()
        deadline = time.monotonic() + _PATIENCE
        while len(self.raw.split(_EDITOR_ENDS)[-1]) < 100:
            assert self._read(deadline), "no answer came"

    def wait(self) -> int:
        """Waits until the program ends, and returns its exit status."""
        deadline = time.monotonic() + _PATIENCE
        while self._read(deadline):
            pass
        return int(self._child.wait())

    def _plain(self) -> str:
        return _ESCAPES.sub("", self.raw.decode(errors="replace"))

    def _read(self, deadline: float) -> bool:
        """Reads more output. Returns False at the end or after the deadline."""
        try:
            data = self._child.read_nonblocking(65536, max(0, deadline - time.monotonic()))
        except (pexpect.EOF, pexpect.TIMEOUT):
            return False
        self.raw += data
        return True
