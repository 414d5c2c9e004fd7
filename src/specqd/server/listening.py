"""The socket and the HTTP server on it: how long a request may take to end when we are told to."""

import socket

import uvicorn
from starlette.types import ASGIApp

from specqd.errors import MachineError

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Bound, and not yet answering. Port 0 takes a free one. Raises MachineError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise MachineError(
            f"--host {host} --port {port}: {error.strerror or error}; choose others"
        ) from error


def run(app: ASGIApp, sock: socket.socket, drain_s: int) -> None:
    """Serves until SIGTERM or SIGINT; open requests then have `drain_s` seconds to end."""
    config = uvicorn.Config(
        app,
        http="h11",  # not whichever parser happens to be installed
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=drain_s,
    )
    uvicorn.Server(config).run(sockets=[sock])
