"""A thread that writes the files of prompts, in order, while requests go on.

Knows names and contents of files; knows no models, no caches and no tokens.
"""

import os
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from specqd import _native
from specqd.model.prompt_files import PromptFiles

_MOST_WAITING = 1 << 30  # bytes of copies that wait to be written


class PromptWriter:
    """Writes to one directory, for the stores of all its caches.

    A fork copies no threads: a child process has to call `begin_in_child`. The interpreter waits
    for the thread at exit.
    """

    def __init__(self, files: PromptFiles) -> None:
        self.files = files
        free = _native.usable_memory()
        self._most_waiting = _MOST_WAITING if free < 0 else min(_MOST_WAITING, free // 8)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._thread = ThreadPoolExecutor(1, "prompt-cache")
        self._lock = Lock()
        self._waiting: set[str] = set()
        self._waiting_bytes = 0

    def begin_in_child(self) -> None:
        """Begins anew in a process that was forked; what waited is written by its parent."""
        if self._process != os.getpid():
            self._begin()

    @property
    def is_full(self) -> bool:
        """Whether so many copies wait that others would take too much memory."""
        return self._waiting_bytes > self._most_waiting

    def __contains__(self, name: str) -> bool:
        return name in self._waiting

    def write(self, name: str, content: NDArray[Any], when: int) -> None:
        """Writes a file that was last used at `when`, in nanoseconds."""
        self._add(name, content.nbytes)
        self._submit(self._write, name, content, when)

    def mark_used(self, names: SequenceOf[tuple[str, int]]) -> None:
        """Marks files as used at these times, in nanoseconds."""
        self._submit(self.files.mark_used, names)

    def flush(self) -> None:
        """Waits until everything is written."""
        self.begin_in_child()
        with suppress(RuntimeError):  # at exit, when threads have ended and all is written
            self._thread.submit(lambda: None).result()

    def _write(self, name: str, content: NDArray[Any], when: int) -> None:
        try:
            self.files.write(name, content.data.cast("B"), when)
        finally:
            self._add(name, -content.nbytes)

    def _add(self, name: str, size: int) -> None:
        with self._lock:
            self._waiting_bytes += size
            (self._waiting.add if size > 0 else self._waiting.discard)(name)

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the interpreter is exiting
            self._thread.submit(work, *arguments)
