"""Adds limits that uvicorn lacks: a client can neither stall the server nor crowd out others.

Knows the states of an HTTP connection. Knows nothing of what requests contain.
"""

import asyncio
import os

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

try:
    import resource
except ImportError:  # Windows has no limit of descriptors
    resource = None  # type: ignore[assignment]

HEAD_SECONDS = 10  # for the head of a request, from the connection or the previous answer on
WRITE_SECONDS = 30  # for a client to read LEAST_READ bytes of its answer, or all that are left
LEAST_READ = 1 << 16
MOST_CONNECTIONS = 4096
ACCEPTED_AT_ONCE = 16  # connections accepted before any of them is counted
_SPARE_FILES = 64  # descriptors for these connections and for all other files


def most_connections() -> int:
    """Returns how many connections this process has file descriptors for, at least 8."""
    if resource is None:
        return MOST_CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(min(soft - len(os.listdir("/dev/fd")) - _SPARE_FILES, MOST_CONNECTIONS), 8)


class Connection(H11Protocol):
    """uvicorn's connection, closed if the client stalls.

    If `limit_concurrency` connections are open, a new one replaces the one that has waited longest
    for a request of its client.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        assert self.limit_concurrency is not None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        # Stay below the limit with this connection: at the limit, uvicorn rejects requests.
        self._make_room(len(self.connections) + 2 - self.limit_concurrency)
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _watch_reading(self) -> None:
        """Closes the connection unless the client goes on reading."""
        left = self.transport.get_write_buffer_size()

        def check() -> None:
            if self.transport.get_write_buffer_size() > left - LEAST_READ:
                self.transport.abort()
            else:
                self._watch_reading()

        self._write_timer = self.loop.call_later(WRITE_SECONDS, check)

    @property
    def waits_for_client(self) -> bool:
        """Whether no complete request is still to be answered."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return is_answered or self.conn.their_state is h11.SEND_BODY

    def _wait_for_head(self) -> None:
        """Starts the timer for the next head. Received bytes do not extend it."""
        self.waits_since = self.loop.time()
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._start_head_timer()

    def _start_head_timer(self) -> None:
        left = self.transport.get_write_buffer_size()  # of the answer

        def check() -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                return
            if left and self.transport.get_write_buffer_size() <= left - LEAST_READ:
                self._start_head_timer()  # it still reads
            else:
                self.transport.abort()  # `close` would wait until the client has read everything

        self._head_timer = self.loop.call_later(WRITE_SECONDS if left else HEAD_SECONDS, check)

    def _make_room(self, places: int) -> None:
        if places < 1:
            return
        waiting = [
            each
            for each in self.connections
            if isinstance(each, Connection) and each.waits_for_client
        ]
        for each in sorted(waiting, key=lambda each: each.waits_since)[:places]:
            self.connections.discard(each)
            each.transport.abort()
