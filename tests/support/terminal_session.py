"""Drives a program on its own terminal like a user. Knows nothing of the program."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Self

ENTER, CTRL_C, CTRL_D, CTRL_J, CTRL_Z, UP = "\r", "\x03", "\x04", "\n", "\x1a", "\x1b[A"
_PATIENCE = 60.0  # seconds
_EDITOR_BEGINS, _EDITOR_ENDS = b"\x1b[?2004h", b"\x1b[?2004l"  # bracketed paste on, off
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Z0-9]|[=>])")


class TerminalSession:
    """Standard input, output and errors are one terminal, 24 lines of 80 columns."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._leader, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**environment, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
            preexec_fn=_take_terminal,
            close_fds=True,
        )
        os.close(terminal)
        self.raw = b""  # everything written to the terminal
        self._seen = 0
        self._lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._leader)

    def say(self, line: str, end: str = ENTER) -> None:
        """Types a line once the program's editor is ready."""
        deadline = time.monotonic() + _PATIENCE
        self._lines += 1
        while self.raw.count(_EDITOR_BEGINS) < self._lines:
            assert self._read(deadline), f"the editor was not ready for {line!r}"
        self.send(line + end)

    def send(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def expect(self, text: str) -> str:
        """Waits until the terminal shows `text`; returns the output since the last call and before
        it, without escape sequences."""
        deadline = time.monotonic() + _PATIENCE
        while text not in (new := self._plain()[self._seen :]):
            assert self._read(deadline), f"{text!r} never came after {new!r}"
        before, _, _ = new.partition(text)
        self._seen += len(before) + len(text)
        return before

    def expect_answer(self) -> None:
        """Waits until the editor has ended and the program has written 100 bytes."""
        deadline = time.monotonic() + _PATIENCE
        while (
            self.raw.count(_EDITOR_ENDS) < self._lines
            or len(self.raw.split(_EDITOR_ENDS)[-1]) < 100
        ):
            assert self._read(deadline), "no answer came"

    def wait(self) -> int:
        """Waits for the program to end; returns its exit status."""
        deadline = time.monotonic() + _PATIENCE
        while self._read(deadline):
            pass
        return self._process.wait(_PATIENCE)

    def _plain(self) -> str:
        return _ESCAPES.sub("", self.raw.decode(errors="replace"))

    def _read(self, deadline: float) -> bool:
        """Reads more output; False at the end or after the deadline."""
        ready, _, _ = select.select([self._leader], [], [], max(0, deadline - time.monotonic()))
        try:
            data = os.read(self._leader, 65536) if ready else b""
        except OSError:  # Linux: no process has the terminal open any more
            data = b""
        self.raw += data
        return bool(data)


def _take_terminal() -> None:
    """Makes the terminal of standard input the child's own, so that it receives Ctrl-C."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
