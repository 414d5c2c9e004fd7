"""Stalled clients are disconnected, and hold no place, file or memory that others need."""

import asyncio
import json
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.openai_client import COMPLETIONS
from support.random_models import Shape, make_model
from support.served import Served, serving

pytest.importorskip("uvicorn", reason="needs specqd[serve]")

import uvicorn
from uvicorn.server import ServerState

from specqd.server.connections import HEAD_SECONDS, LEAST_READ, WRITE_SECONDS, Connection
from specqd.server.guard import BODY_SECONDS, SHORT_BODY_BYTES, Access, Guard

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"


@dataclass
class Timer:
    seconds: float
    call: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Loop:
    """An event loop whose time advances only when a test says so."""

    timers: list[Timer] = field(default_factory=list)
    tasks: list[Any] = field(default_factory=list)
    now: float = 0.0

    def time(self) -> float:
        self.now += 1.0
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def create_task(self, work: Any, **_: Any) -> "asyncio.Future[None]":
        self.tasks.append(work)
        return asyncio.Future(loop=asyncio.new_event_loop())

    def pass_time(self, seconds: float) -> None:
        """Calls the timers that are due within so many seconds."""
        for timer in [each for each in self.timers if each.seconds <= seconds]:
            self.timers.remove(timer)
            if not timer.is_cancelled:
                timer.call()


class Transport:
    """The transport of a client that reads nothing."""

    def __init__(self) -> None:
        self.is_aborted = False
        self.buffered = 0

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        """Would wait for the client."""

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def write(self, content: bytes) -> None:
        self.buffered += len(content)

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def no_app(scope: object, receive: object, send: object) -> None: ...


class Clients:
    """The connections to one server."""

    def __init__(self, most: int = 100) -> None:
        self.loop, self._state = Loop(), ServerState()
        self._config = uvicorn.Config(no_app, limit_concurrency=most, log_level="critical")

    def connect(self, sends: bytes = b"") -> tuple[Connection, Transport]:
        connection = Connection(self._config, self._state, {}, self.loop)  # type: ignore[arg-type]
        transport = Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        if sends:
            connection.data_received(sends)
        return connection, transport


@pytest.mark.parametrize("sends", [b"", b"G", HEAD[:-2]])
def test_a_connection_without_a_complete_head_is_closed(sends: bytes) -> None:
    clients = Clients()
    connection, transport = clients.connect()
    for i in range(len(sends)):
        connection.data_received(sends[i : i + 1])
    clients.loop.pass_time(HEAD_SECONDS)
    assert transport.is_aborted


def test_a_connection_whose_request_is_being_answered_is_not_closed() -> None:
    clients = Clients()
    _, transport = clients.connect(HEAD + b"body")
    clients.loop.pass_time(3600)
    assert not transport.is_aborted
    for task in clients.loop.tasks:
        task.close()


def test_a_client_is_disconnected_unless_it_reads_in_time() -> None:
    for reads in (False, True):
        clients = Clients()
        connection, transport = clients.connect(HEAD + b"body")
        clients.loop.pass_time(HEAD_SECONDS)
        connection.pause_writing()
        if reads:
            connection.resume_writing()
        clients.loop.pass_time(WRITE_SECONDS)
        assert transport.is_aborted != reads
        for task in clients.loop.tasks:
            task.close()


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_client_that_goes_on_reading_a_long_answer_is_not_disconnected(
    is_complete: bool,
) -> None:
    clients = Clients()
    connection, transport = clients.connect(HEAD + b"body")
    clients.loop.pass_time(HEAD_SECONDS)
    transport.buffered = 10 * LEAST_READ
    if is_complete:
        assert connection.cycle is not None
        connection.cycle.response_complete = True
        connection._wait_for_head()
    else:
        connection.pause_writing()
    for _ in range(5):
        transport.buffered -= LEAST_READ
        clients.loop.pass_time(WRITE_SECONDS)
        assert not transport.is_aborted
    transport.buffered -= LEAST_READ - 1
    clients.loop.pass_time(WRITE_SECONDS)
    assert transport.is_aborted
    for task in clients.loop.tasks:
        task.close()


def test_a_new_connection_replaces_the_one_that_waited_longest(rng: np.random.Generator) -> None:
    clients = Clients(most=7)
    sent = [b"", HEAD[:9], HEAD, HEAD + b"bo", HEAD + b"body", HEAD + b"body"]
    order = rng.permutation(len(sent))
    transports = [clients.connect(sent[i])[1] for i in order]
    waiting = [transport for i, transport in zip(order, transports, strict=True) if i < 4]
    for count in range(1, 5):
        clients.connect()
        assert [transport.is_aborted for transport in waiting] == [True] * count + [False] * (
            4 - count
        )
    assert sum(transport.is_aborted for transport in transports) == 4
    for task in clients.loop.tasks:
        task.close()


class Upload:
    """A body that arrives in parts, and then stalls unless it is complete."""

    def __init__(self, parts: list[bytes], *, is_whole: bool) -> None:
        self._parts, self._is_whole = parts, is_whole
        self.statuses: list[int] = []
        self.has_stalled = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if not self._parts:
            self.has_stalled.set()
            await asyncio.Event().wait()
        part = self._parts.pop(0)
        more = bool(self._parts) or not self._is_whole
        return {"type": "http.request", "body": part, "more_body": more}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])

    async def through(self, guard: Guard) -> list[int]:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "scheme": "http", "method": "POST", "path": "/"}
        await guard(scope | {"headers": headers}, self.receive, self.send)  # type: ignore[arg-type]
        return self.statuses


async def accept(scope: object, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})


def test_unfinished_long_bodies_share_a_limit_and_never_block_short_ones() -> None:
    most, size = 1 << 20, 1 << 18

    async def work() -> None:
        guard = Guard(accept, Access(most_bytes_in_all=most))
        long = [Upload([bytes(size)], is_whole=False) for _ in range(5)]
        tasks = [asyncio.create_task(each.through(guard)) for each in long]
        for each in long:
            await each.has_stalled.wait()
        assert await Upload([bytes(size)], is_whole=True).through(guard) == [429]
        assert await Upload([bytes(SHORT_BODY_BYTES)], is_whole=True).through(guard) == [200]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(10):
            assert await Upload([bytes(size)] * 3, is_whole=True).through(guard) == [200]

    asyncio.run(work())


def test_a_body_that_stalls_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def timeout(seconds: float) -> asyncio.Timeout:
        asked.append(seconds)
        return asyncio.Timeout(0)  # a time that has passed

    monkeypatch.setattr("specqd.server.guard.asyncio.timeout", timeout)
    guard = Guard(accept, Access())
    assert asyncio.run(Upload([b"{"], is_whole=False).through(guard)) == [408]
    assert asked == [BODY_SECONDS]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    directory = tmp_path_factory.mktemp("models") / "small"
    return make_model(directory, Shape(is_peaked=True, context=2048), seed)


def connect(served: Served, sends: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    client.sendall(sends)
    return client


def test_more_silent_clients_than_file_descriptors_delay_no_other_client(directory: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
    try:
        with serving(str(directory), "--draft", "none") as served:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            silent = []
            for i in range(400):
                silent.append(connect(served, [b"", HEAD[:20], HEAD, HEAD + b"b"][i % 4]))
                if i % 40 == 39:
                    assert served.ask("GET", "/health").status == 200
            body = {"prompt": "x", "max_tokens": 2}
            assert served.ask("POST", COMPLETIONS, body).status == 200
            for client in silent:
                client.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_streams_that_are_never_read_hold_no_place_after_their_text(directory: Path) -> None:
    body = {"prompt": ["x"] * 8, "n": 128, "max_tokens": 2, "ignore_eos": True, "stream": True}
    content = json.dumps(body).encode()
    head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    sent = f"POST {COMPLETIONS} HTTP/1.1\r\n{head}\r\n\r\n".encode() + content
    with (
        serving(str(directory), "--draft", "none", "--max-batch", "64") as served,
        socket.socket() as silent,
    ):
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", served.port))
        silent.sendall(sent)
        silent.recv(1)
        while served.metric("vllm:e2e_request_latency_seconds_count") < 1024:
            assert served.process.poll() is None
        assert served.ask("POST", COMPLETIONS, body | {"stream": False}).status == 200
