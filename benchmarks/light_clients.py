"""Clients of /v1/completions that need little time of the cores that they share with the server.

They use plain asyncio with open connections, and read whole or streamed answers.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any


@dataclass(frozen=True)
class Answer:
    """The body of an answer, and the seconds from the request to each of its events."""

    body: bytes
    times: tuple[float, ...]

    @cached_property
    def _parts(self) -> list[Any]:
        events = re.findall(rb"^data: ({.*})$", self.body, re.MULTILINE) or [self.body]
        return [json.loads(event) for event in events]

    @property
    def text(self) -> str:
        return "".join(choice["text"] for part in self._parts for choice in part["choices"])

    @property
    def tokens(self) -> int:
        tokens: int = self._parts[-1]["usage"]["completion_tokens"]
        return tokens


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> Answer:
    """Sends one request over an open connection."""
    begun = perf_counter()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    named = dict(line.lower().split(": ", 1) for line in headers if line)
    times = []
    if "content-length" in named:
        got = await reader.readexactly(int(named["content-length"]))
        times.append(perf_counter() - begun)
    else:  # in chunks, of which the last one is empty
        lines = []
        while (line := await reader.readline()) not in (b"0\r\n", b""):
            lines.append(line)
            if line.startswith(b"data: {"):
                times.append(perf_counter() - begun)
        await reader.readline()
        got = b"".join(lines)
    if " 200 " not in status:
        raise SystemExit(f"the server answered {status}: {got.decode()}")
    return Answer(got, tuple(times))


async def answers(port: int, bodies: Sequence[bytes], at_once: int) -> tuple[list[Answer], float]:
    """Answers to `bodies`, in their order, from `at_once` clients; and the seconds."""
    waiting = deque(enumerate(bodies))
    got: list[Answer] = [Answer(b"", ())] * len(bodies)
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(at_once)]

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while waiting:
            i, body = waiting.popleft()
            got[i] = await ask(reader, writer, body)

    begun = perf_counter()
    await asyncio.gather(*(client(*connection) for connection in connections))
    seconds = perf_counter() - begun
    for _, writer in connections:
        writer.close()
    return got, seconds
