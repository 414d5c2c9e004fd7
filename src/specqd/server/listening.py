"""Opens the socket, runs the HTTP server on it, and shuts it down."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from threading import Event, Thread
from types import FrameType

import uvicorn

from specqd.errors import MachineError
from specqd.server.app import make_app
from specqd.server.connections import ACCEPTED_AT_ONCE, Connection, most_connections
from specqd.server.guard import Access
from specqd.server.models import Models
from specqd.server.request_log import RequestLog

_BACKLOG = 2048
_SLOW_READERS_SECONDS = 5  # for clients to read the last events
_LAST_SECONDS = 10  # for the last round of the engine, and for work on prompts in other threads


def listen(host: str, port: int) -> socket.socket:
    """Binds a socket that does not accept yet. Port 0 takes a free port. Raises MachineError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        takes_both = host == "::" and socket.has_dualstack_ipv6()
        sock = socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=takes_both
        )
    except OSError as error:
        problem = (error.strerror or str(error)).partition(" (")[0]  # the rest repeats the address
        raise MachineError(f"--host {host} --port {port}: {problem}; choose others") from error
    # Connections inherit this option. asyncio sets it only on its own sockets. Without it, the
    # second part of an answer waits some 40 ms for the client to acknowledge the first.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def run(
    models: Models,
    access: Access,
    sock: socket.socket,
    drain_s: int,
    say: Callable[[str], None],
    *,
    is_lenient: bool = False,
    logs_requests: bool = False,
) -> None:
    """Serves until SIGTERM or SIGINT.

    Open requests then have `drain_s` seconds to finish; a second signal cancels them at once. `say`
    prints a line. is_lenient: ignores unknown fields of requests. logs_requests: prints a line for
    each request. Raises MachineError if an engine failed.
    """
    app = make_app(models, access, is_lenient=is_lenient)
    config = uvicorn.Config(
        RequestLog(app, say) if logs_requests else app,
        http=Connection,
        limit_concurrency=most_connections(),
        backlog=ACCEPTED_AT_ONCE,  # also the kernel's queue, until `startup` sets a longer one
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
    )
    server = _Server(config, models, drain_s, say)
    try:
        server.run(sockets=[sock])
    finally:
        server.end()
    if (fault := models.fault) is not None:
        raise MachineError(
            f"the engine failed: {fault}; see the log above, then start the server again"
        )


class _Server(uvicorn.Server):
    """Shuts down in steps: waits for open requests, then cancels them, then closes connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        models: Models,
        drain_s: int,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self._models = models
        self._drain_s = drain_s
        self._say = say
        self._signals = 0
        self._has_ended = Event()
        self._watches: list[Thread] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(_BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        """Returns whether to shut down now."""
        return await super().on_tick(counter) or self._models.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._models.fault is not None:
            self._end_within(0)
        await super().shutdown(sockets)
        await self._models.stop()  # before the event loop closes, which receives its updates

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and SIGINT, the first signal and those after it."""
        self._signals += 1
        loop = asyncio.get_running_loop()
        if self._signals == 1:
            super().handle_exit(sig, frame)
            loop.call_soon_threadsafe(loop.call_later, self._drain_s, self._give_up)
            self._end_within(self._drain_s)
            if self._models.num_open_samples:
                self._say(
                    f"shutting down; open requests have {self._drain_s} seconds, "
                    "Ctrl-C cancels them now"
                )
        else:
            loop.call_soon_threadsafe(self._give_up if self._signals == 2 else self._leave)
            self._end_within(0)

    def _give_up(self) -> None:
        self._models.give_up("the server is shutting down; try again later")
        asyncio.get_running_loop().call_later(_SLOW_READERS_SECONDS, self._leave)

    def _leave(self) -> None:
        # uvicorn would log an error per closed connection.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.force_exit = True

    def _end_within(self, seconds: float) -> None:
        """Kills the process if it still runs after `seconds` and the time for clients and threads.

        A round or a tokenizer may hang, and a normal exit would wait for its thread.
        """
        patience = seconds + _SLOW_READERS_SECONDS + _LAST_SECONDS
        watch = Thread(target=_watch, args=(self._has_ended, patience, self._say), daemon=True)
        watch.start()
        self._watches.append(watch)

    def end(self) -> None:
        """Ends the threads of `_end_within`, which would keep models in memory."""
        self._has_ended.set()
        for watch in self._watches:
            watch.join()


def _watch(has_ended: Event, seconds: float, say: Callable[[str], None]) -> None:
    if not has_ended.wait(seconds):
        say("error: the server did not shut down in time and was killed")
        os._exit(1)
