"""Ctrl-C, held back in a round of the model and while Python's locks are taken. Knows no models.

An Event, a Condition or a Thread that is interrupted between taking its lock and the block that
frees it keeps the lock for ever.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, current_thread, main_thread
from types import TracebackType
from typing import Self

_NOTICE_SECONDS = 0.5


def acquire(lock: Lock) -> None:
    """Takes a lock that another thread will free.

    Ctrl-C ends the wait of the main thread. One that comes just before the thread sleeps does not
    wake it, so the wait is begun anew from time to time. Other threads get no signals.
    """
    timeout = _NOTICE_SECONDS if current_thread() is main_thread() else -1
    while not lock.acquire(timeout=timeout):
        pass


class HeldBack:
    """Holds the first Ctrl-C back until the block ends.

    The second one is raised at once. A handler of the caller's own stays in place, and threads
    other than the main one get no signals.
    """

    def __init__(self) -> None:
        self.has_come = self._may_raise = self._is_handler = False

    def __enter__(self) -> Self:
        if current_thread() is main_thread():
            self._is_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_handler:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.has_come and kind is not KeyboardInterrupt:
            raise KeyboardInterrupt

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Raises Ctrl-C where it comes, or at once if it has come."""
        self._may_raise = True
        try:
            if self.has_come:
                raise KeyboardInterrupt
            yield
        finally:
            self._may_raise = False

    def _handle(self, signal_number: int, frame: object) -> None:
        if self._may_raise or self.has_come:
            raise KeyboardInterrupt
        self.has_come = True
