"""Clients of /v1/completions that need little time of the cores that they share with the server.

They use plain asyncio with open connections, and read whole or streamed answers.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Sequence
from time import perf_counter


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> bytes:
    """Sends one request over an open connection; returns the body of the answer."""
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    named = dict(line.lower().split(": ", 1) for line in headers if line)
    if "content-length" in named:
        answer = await reader.readexactly(int(named["content-length"]))
    else:  # in chunks, of which the last one is empty
        answer = await reader.readuntil(b"\r\n0\r\n\r\n")
    if " 200 " not in status:
        raise SystemExit(f"the server answered {status}: {answer.decode()}")
    return answer


async def answers(port: int, bodies: Sequence[bytes], at_once: int) -> tuple[list[bytes], float]:
    """Answers to `bodies`, in their order, from `at_once` clients; and the seconds."""
    waiting = deque(enumerate(bodies))
    got: list[bytes] = [b""] * len(bodies)
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


def read_answer(answer: bytes) -> tuple[str, int]:
    """The text and the number of tokens of a whole or streamed answer."""
    events = re.findall(rb"^data: ({.*})$", answer, re.MULTILINE) or [answer]
    parts = [json.loads(event) for event in events]
    text = "".join(choice["text"] for part in parts for choice in part["choices"])
    return text, parts[-1]["usage"]["completion_tokens"]
