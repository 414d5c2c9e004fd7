"""The socket and the HTTP server on it: how long a request may take to end when we are told to."""

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from specqd.errors import MachineError
from specqd.server.app import Service, make_app
from specqd.server.engine_thread import EngineThread

_BACKLOG = 2048
_SLOW_READERS_SECONDS = 5  # that clients have to take the last of what was written for them


def listen(host: str, port: int) -> socket.socket:
    """Bound, and not yet answering. Port 0 takes a free one. Raises MachineError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        takes_both = host == "::" and socket.has_dualstack_ipv6()
        sock = socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=takes_both
        )
    except OSError as error:
        problem = (error.strerror or str(error)).partition(" (")[0]  # it repeats the address
        raise MachineError(f"--host {host} --port {port}: {problem}; choose others") from error
    # Connections inherit it. With asyncio's own sockets it is the default, with given ones it is
    # not: the second part of an answer then waits for the client's word of the first, some 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def run(service: Service, sock: socket.socket, drain_s: int, say: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT; open requests then have `drain_s` seconds to end, or until a
    second signal comes."""
    config = uvicorn.Config(
        make_app(service),
        http="h11",  # not whichever parser happens to be installed
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
    )
    _Server(config, service.thread, drain_s, say).run(sockets=[sock])


class _Server(uvicorn.Server):
    """Ends in steps: requests may end, then they are ended, and then nobody is waited for."""

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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        await self._thread.stop()  # or it would hand tokens to a loop that is closed

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the first signal, and by those after it."""
        self._signals += 1
        loop = asyncio.get_running_loop()
        if self._signals == 1:
            super().handle_exit(sig, frame)
            loop.call_soon_threadsafe(loop.call_later, self._drain_s, self._give_up)
            if self._thread.num_open_samples:
                self._say(
                    f"ending; open requests have {self._drain_s} seconds, Ctrl-C ends them now"
                )
        else:
            loop.call_soon_threadsafe(self._give_up if self._signals == 2 else self._leave)

    def _give_up(self) -> None:
        self._thread.give_up()
        asyncio.get_running_loop().call_later(_SLOW_READERS_SECONDS, self._leave)

    def _leave(self) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # of whom is cut off
        self.force_exit = True
