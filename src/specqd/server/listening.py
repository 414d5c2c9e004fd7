"""The socket, the HTTP server on it, and how the server ends."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from threading import Event, Thread
from types import FrameType

import uvicorn

from specqd.engine.thread import EngineThread
from specqd.errors import MachineError
from specqd.server.app import Service, make_app
from specqd.server.connections import ACCEPTED_AT_ONCE, Connection, most_connections

_BACKLOG = 2048
_SLOW_READERS_SECONDS = 5  # for clients to take the last events
_LAST_SECONDS = 10  # for the last round, and for work on prompts in other threads


def listen(host: str, port: int) -> socket.socket:
    """A bound socket that does not answer yet. Port 0 takes a free port. Raises MachineError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        takes_both = host == "::" and socket.has_dualstack_ipv6()
        sock = socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=takes_both
        )
    except OSError as error:
        problem = (error.strerror or str(error)).partition(" (")[0]  # it repeats the address
        raise MachineError(f"--host {host} --port {port}: {problem}; choose others") from error
    # Connections inherit it. asyncio sets it only on its own sockets; without it the second part
    # of an answer waits some 40 ms for the client's acknowledgement of the first.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def run(service: Service, sock: socket.socket, drain_s: int, say: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT. Open requests then have `drain_s` seconds to end; a second
    signal ends them at once. Raises MachineError where the engine failed."""
    config = uvicorn.Config(
        make_app(service),
        http=Connection,
        limit_concurrency=most_connections(),
        backlog=ACCEPTED_AT_ONCE,  # also the kernel's queue, until `startup` has ended
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
    )
    server = _Server(config, service.thread, drain_s, say)
    try:
        server.run(sockets=[sock])
    finally:
        server.end()
    if (fault := service.thread.fault) is not None:
        raise MachineError(
            f"the engine failed: {fault}; the log above says where; start the server again"
        )


class _Server(uvicorn.Server):
    """Ends in steps: it waits for requests, then cancels them, then closes connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        thread: EngineThread,
        drain_s: int,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(config)
        self._thread = thread
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
        """Whether to end now."""
        return await super().on_tick(counter) or self._thread.failure is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._thread.fault is not None:
            self._end_within(0)
        await super().shutdown(sockets)
        await self._thread.stop()  # before the loop closes that it hands updates to

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM and SIGINT: of the first signal and of those after it."""
        self._signals += 1
        loop = asyncio.get_running_loop()
        if self._signals == 1:
            super().handle_exit(sig, frame)
            loop.call_soon_threadsafe(loop.call_later, self._drain_s, self._give_up)
            self._end_within(self._drain_s)
            if self._thread.num_open_samples:
                self._say(
                    f"ending; open requests have {self._drain_s} seconds, Ctrl-C ends them now"
                )
        else:
            loop.call_soon_threadsafe(self._give_up if self._signals == 2 else self._leave)
            self._end_within(0)

    def _give_up(self) -> None:
        self._thread.give_up("the server is ending; try again later")
        asyncio.get_running_loop().call_later(_SLOW_READERS_SECONDS, self._leave)

    def _leave(self) -> None:
        logging.getLogger("uvicorn.error").setLevel(
            logging.CRITICAL
        )  # one error per cut connection
        self.force_exit = True

    def _end_within(self, seconds: float) -> None:
        """Ends the process by force where it still runs after `seconds` and the time that clients
        and threads have: a round or a tokenizer may hang, and exiting would wait for its thread."""
        patience = seconds + _SLOW_READERS_SECONDS + _LAST_SECONDS
        watch = Thread(target=_watch, args=(self._has_ended, patience, self._say), daemon=True)
        watch.start()
        self._watches.append(watch)

    def end(self) -> None:
        """Ends the watches of `_end_within`. A daemon thread that outlives them keeps models."""
        self._has_ended.set()
        for watch in self._watches:
            watch.join()


def _watch(has_ended: Event, seconds: float, say: Callable[[str], None]) -> None:
    if not has_ended.wait(seconds):
        say("error: the server does not end by itself; it was ended by force")
        os._exit(1)
