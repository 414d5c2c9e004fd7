"""Times the first token of the HTTP server at 1, 4 and 16 clients, by rows of prompts in a round.

    python benchmarks/first_token.py MODEL [--prompt-tokens 512] [--rows 64 128 256 512]

One process loads the model and serves it on a port for each number of rows, without drafts and
without prefix reuse; one port works at a time. Each client streams answers to random prompts, one
after the other. `first` is the time from a request to its first token, `gap` the longest wait
between two later pieces of an answer: what a running answer loses to prompts of others.
"""

import argparse
import asyncio
import json
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter

import numpy as np

VOCABULARY_FROM = 300  # below lie special tokens


def host(options: argparse.Namespace, pipe: Connection) -> None:
    """Serves each number of rows on its own port, and sends the ports and the vocabulary."""
    from specqd.engine.engine import Engine
    from specqd.llm import LLM
    from specqd.server.app import Service, Serving
    from specqd.server.guard import Access
    from specqd.server.listening import listen, run

    most = max(options.at_once)
    room = (most + 1) * (options.prompt_tokens + options.new_tokens + 64)
    llm = LLM(options.model, "none", options.threads, options.isa, cache_positions=room)
    ports = []
    for rows in options.rows:
        engine = Engine(llm.engine.level, llm.tokenizer, max_batch=most, prompt_rows=rows)
        engine.scheduler.reuses_prefixes = False  # the ports share one cache
        sock = listen("127.0.0.1", 0)
        service = Service(Serving(engine, llm.directory.name, llm.defaults, Access()))
        Thread(target=run, args=(service, sock, 0, print), daemon=True).start()
        ports.append(sock.getsockname()[1])
    pipe.send((ports, llm.model.config.vocab_size, str(llm.model.machine)))
    pipe.recv()


async def ask(port: int, body: bytes) -> list[float]:
    """The seconds from the request to each piece of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = perf_counter()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    times: list[float] = []
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            times.append(perf_counter() - begun)
        elif line.startswith(b"data: [DONE]"):
            break
        elif line.startswith(b"HTTP/1.1") and b" 200 " not in line:
            raise SystemExit(f"the server answered {line.decode()}")
    writer.close()
    return times


async def load(port: int, bodies: list[list[bytes]]) -> tuple[list[list[float]], float]:
    """The times of all answers, a list of requests for each client; and the seconds of all."""
    begun = perf_counter()

    async def client(own: list[bytes]) -> list[list[float]]:
        return [await ask(port, body) for body in own]

    got = await asyncio.gather(*(client(own) for own in bodies))
    return [times for own in got for times in own], perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--requests", type=int, default=2, help="of each client in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    options = parser.parse_args()
    spawning = get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=host, args=(options, theirs), daemon=True)
    process.start()
    theirs.close()
    ports, vocabulary, machine = ours.recv()
    rng = np.random.default_rng()
    found: dict[tuple[int, int], list[tuple[float, float, float, float]]] = {}
    for number in range(options.rounds):
        for at_once in options.at_once:
            drawn = rng.integers(
                VOCABULARY_FROM, vocabulary, (at_once, options.requests, options.prompt_tokens)
            ).tolist()
            common = {"max_tokens": options.new_tokens, "ignore_eos": True, "stream": True}
            bodies = [
                [json.dumps({"prompt": ids, "temperature": 0, **common}).encode() for ids in own]
                for own in drawn
            ]
            for turn in range(len(ports)):
                arm = (number + turn) % len(ports)
                times, seconds = asyncio.run(load(ports[arm], bodies))
                firsts = [each[0] for each in times]
                gaps = [max(np.diff(each), default=0.0) for each in times]
                tokens = len(times) * options.new_tokens
                found.setdefault((at_once, options.rows[arm]), []).append(
                    (median(firsts), max(firsts), float(median(gaps)), tokens / seconds)
                )
    process.terminate()
    print(machine)
    print("| clients | rows | first, s | slowest first, s | longest gap, s | new tokens/s |")
    print("|---:|---:|---:|---:|---:|---:|")
    for (at_once, rows), runs in found.items():
        first, slowest, gap, speed = (median(each) for each in zip(*runs, strict=True))
        print(f"| {at_once} | {rows} | {first:.3f} | {slowest:.3f} | {gap:.3f} | {speed:.1f} |")


if __name__ == "__main__":
    main()
