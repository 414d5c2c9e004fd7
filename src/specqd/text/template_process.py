"""Renders chat templates in a process of their own, which can be stopped at any time.

Owns that process. Knows nothing of chats. A template comes with a model and is untrusted.
"""

import marshal
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import IO, Any

from specqd.errors import MachineError
from specqd.text import template_worker as worker

CPU_SECONDS = 2.0  # of processor time per rendering
WALL_SECONDS = 60.0  # after which the process counts as hung, even on a busy machine
LONGEST_SOURCE = 1 << 16  # in characters; twice the longest templates in use
LONGEST_TEXT = 1 << 22  # in bytes, of a rendered text; each byte of the request adds 8
WATCH_SECONDS = 0.05  # between checks of what it uses


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
                kind, text = _exchange(process, request, cpu_seconds)
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


if hasattr(os, "register_at_fork"):  # Windows has no forks
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
            # Ctrl-C in a terminal does not reach a process of another group.
            process_group=0,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
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


def _exchange(
    process: subprocess.Popen[bytes], request: bytes, cpu_seconds: float
) -> tuple[bytes, str]:
    """Sends a request, and returns the kind and the text of the reply."""
    assert process.stdin is not None
    watch = _Watch(process.pid, len(request), cpu_seconds)
    reply: Future[tuple[bytes, bytes]] = Future()
    arguments = process.stdout, LONGEST_TEXT + 8 * len(request), reply
    reader = threading.Thread(target=_receive, args=arguments, daemon=True)
    reader.start()
    rest = memoryview(worker.SIZE.pack(len(request)) + request)
    try:
        while rest:
            rest = rest[process.stdin.write(rest) :]
        kind, text = watch.result(reply)
    except BaseException as error:
        process.kill()
        reader.join()  # before anyone closes the pipe from which it reads
        if isinstance(error, EOFError | OSError):  # Windows has no BrokenPipeError here
            raise _ended(process) from None
        raise
    return kind, text.decode("utf-8", "surrogatepass")


def _receive(replies: IO[bytes], longest: int, reply: Future[tuple[bytes, bytes]]) -> None:
    """Reads one reply. Runs on a thread, because not every system can wait for a pipe until a
    deadline."""
    try:
        kind, size = worker.HEAD.unpack(_read(replies, worker.HEAD.size))
        if size > longest:
            raise TemplateLimitError("its text is too long")
        reply.set_result((kind, _read(replies, size)))
    except BaseException as error:  # is raised where the reply is awaited
        reply.set_exception(error)


def _read(replies: IO[bytes], count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = replies.read(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


class _Watch:
    """Watches the time of a rendering and, where the kernel sets no limits, what it uses."""

    def __init__(self, process_id: int, request_bytes: int, cpu_seconds: float) -> None:
        self._process_id = process_id
        self._deadline = time.monotonic() + WALL_SECONDS
        self._most_bytes = worker.MOST_BYTES + worker.MOST_BYTES_PER_BYTE * request_bytes
        self._most_seconds = cpu_seconds
        if not worker.BOUNDS_TIME:
            self._most_seconds += used_by(process_id)[0]

    def result(self, reply: Future[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
        """Waits for the reply. Raises TemplateLimitError at a limit."""
        while True:
            try:
                return reply.result(WATCH_SECONDS)
            except TimeoutError:
                self._check()

    def _check(self) -> None:
        if time.monotonic() > self._deadline:
            raise TemplateLimitError("it takes too long")
        if worker.BOUNDS_MEMORY and worker.BOUNDS_TIME:
            return
        seconds, size = used_by(self._process_id)
        if not worker.BOUNDS_MEMORY and size > self._most_bytes:
            raise TemplateLimitError("it needs too much memory")
        if not worker.BOUNDS_TIME and seconds > self._most_seconds:
            raise TemplateLimitError("it takes too long")


def used_by(process_id: int) -> tuple[float, int]:
    """Returns a process's processor time in seconds, and its resident bytes; 0 if it has ended."""
    import psutil  # needed only where the kernel sets no limits

    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(process_id)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss
    return 0.0, 0


def _ended(process: subprocess.Popen[bytes]) -> Exception:
    status = process.wait()
    if worker.BOUNDS_TIME and status == -worker.CPU_TIME_SIGNAL:
        return TemplateLimitError("it takes too long")
    return TemplateLimitError(f"its process ended with status {status}")
