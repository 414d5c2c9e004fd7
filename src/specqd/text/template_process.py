"""Renders chat templates in a process of their own, which can be stopped at any time.

Owns that process. Knows nothing of chats. A template comes with a model and is untrusted.
"""

import marshal
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from specqd.errors import MachineError
from specqd.text import template_worker as worker

CPU_SECONDS = 2.0  # of processor time per rendering
WALL_SECONDS = 60.0  # after which the process counts as hung, even on a busy machine
LONGEST_SOURCE = 1 << 16  # in characters; twice the longest templates in use
LONGEST_TEXT = 1 << 22  # in bytes, of a rendered text; each byte of the request adds 8
WATCH_SECONDS = 0.05  # between checks of its memory, on systems whose kernel sets no limit


class TemplateLimitError(Exception):
    """A template exceeds a limit. The message is a clause that follows "because"."""


class TemplateFailureError(Exception):
    """A template is broken or fails on these variables."""


class TemplateRefusalError(Exception):
    """The template itself rejects these variables."""


class TemplateProcess:
    """One process that renders. It starts when it is first needed, and again after it was stopped.

    Any thread may call it. Renderings run one at a time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    def render(
        self,
        source: str,
        variables: Mapping[str, Any],
        now: datetime,
        cpu_seconds: float = CPU_SECONDS,
    ) -> str:
        """Renders the template `source` with `variables`, which must be plain data.

        Raises TemplateLimitError, TemplateFailureError or TemplateRefusalError.
        """
        if len(source) > LONGEST_SOURCE:
            raise TemplateLimitError(f"it is longer than {LONGEST_SOURCE} characters")
        message = (cpu_seconds, source, dict(variables), now.isoformat())
        request = marshal.dumps(message, 2)  # version 2 writes a shared string each time it occurs
        with self._lock:
            process = self._running()
            try:
                kind, text = _exchange(process, request)
                if kind == worker.OUT_OF_MEMORY:
                    raise TemplateLimitError("it needs too much memory")
            except BaseException:  # even an interrupt, or the reply would answer the next request
                self._end()
                raise
        if kind == worker.TEXT:
            return text
        raise (TemplateRefusalError if kind == worker.REFUSAL else TemplateFailureError)(text)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = _start()
            self._end = weakref.finalize(self, _end, self._process, os.getpid())
        return self._process


@cache
def template_process() -> TemplateProcess:
    """Returns this program's only one, which the templates of all models share."""
    return TemplateProcess()


os.register_at_fork(after_in_child=template_process.cache_clear)


def _start() -> subprocess.Popen[bytes]:
    """Starts the process.

    Does not use multiprocessing, which would import the program's main module or need a guard in
    it.
    """
    paths, file = [*map(str, sys.path)], str(worker.__file__)
    program = (
        f"import runpy, sys; sys.path[:] = {paths!r}; runpy.run_path({file!r}, run_name='__main__')"
    )
    command = [sys.executable, "-P", "-S", "-c", program]
    try:
        return subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,  # so that Ctrl-C in a terminal does not reach it
        )
    except OSError as error:
        raise MachineError(
            f"{command[0]}: cannot be started to render chat templates: {error.strerror}; "
            "check that this Python can be executed"
        ) from error


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the owner
        return
    process.kill()
    with process:  # waits, and closes the pipes
        pass


def _exchange(process: subprocess.Popen[bytes], request: bytes) -> tuple[bytes, str]:
    """Sends a request, and returns the kind and the text of the reply."""
    most_bytes = worker.MOST_BYTES + worker.MOST_BYTES_PER_BYTE * len(request)
    reader = _Reader(process, most_bytes, time.monotonic() + WALL_SECONDS)
    assert process.stdin is not None
    rest = memoryview(worker.SIZE.pack(len(request)) + request)
    try:
        while rest:
            rest = rest[process.stdin.write(rest) :]
    except BrokenPipeError:
        raise _ended(process) from None
    kind, size = worker.HEAD.unpack(reader.read(worker.HEAD.size))
    if size > LONGEST_TEXT + 8 * len(request):
        raise TemplateLimitError("its text is too long")
    return kind, reader.read(size).decode("utf-8", "surrogatepass")


class _Reader:
    """Reads a process's output until a deadline, and watches its memory."""

    def __init__(self, process: subprocess.Popen[bytes], most_bytes: int, deadline: float) -> None:
        assert process.stdout is not None
        self._process = process
        self._most_bytes = most_bytes
        self._deadline = deadline
        self._output = process.stdout.fileno()
        self._poll = select.poll()  # select() accepts no descriptor above 1023
        self._poll.register(self._output, select.POLLIN)

    def read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            while not self._poll.poll(1000 * WATCH_SECONDS):
                self._watch()
            part = os.read(self._output, count - len(data))
            if not part:
                raise _ended(self._process)
            data += part
        return bytes(data)

    def _watch(self) -> None:
        if time.monotonic() > self._deadline:
            raise TemplateLimitError("it takes too long")
        if sys.platform != "linux" and resident_bytes(self._process.pid) > self._most_bytes:
            raise TemplateLimitError("it needs too much memory")


def resident_bytes(process_id: int) -> int:
    """Returns the resident memory of a process in bytes, or 0 if it has ended."""
    command = ["/bin/ps", "-o", "rss=", "-p", str(process_id)]
    shown = subprocess.run(command, capture_output=True, check=False).stdout
    return 1024 * int(shown or 0)


def _ended(process: subprocess.Popen[bytes]) -> Exception:
    status = process.wait()
    if status == -worker.CPU_TIME_SIGNAL:
        return TemplateLimitError("it takes too long")
    return TemplateLimitError(f"its process ended with status {status}")
