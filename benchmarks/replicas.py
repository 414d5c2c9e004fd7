"""Tests replicas of Ray Serve on this machine: their answers, and what they survive.

    python benchmarks/replicas.py requests|kill|update|scale [MODEL] [--seed 0]

Starts a Ray cluster with a small object store in this process's children, and ends it. Needs
`specqd[ray]` and two cores. The model is the shipped one by default.

requests: 200 ragged requests at once, whole, streamed and left in the middle, to two replicas of a
    core each.
kill: SIGKILL to one of them while 40 streams run.
update: 12 clients go on while the replicas are replaced.
scale: 12 clients go on until Serve has added a second replica, then leave until it has removed one.

The exit status is 1 if an answer differs from that of the request alone, or is lost without an
error.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve

from specqd import LLM, SamplingParams
from specqd.hub import shipped_model
from specqd.ray import app

Json = dict[str, Any]
Trial = Callable[[httpx.AsyncClient, Path, random.Random], Awaitable[Json]]
URL = "http://127.0.0.1:8000"
COMPLETIONS = "/v1/completions"
OBJECT_STORE_BYTES = 200_000_000
SOURCES = sorted(Path(os.__file__).parent.glob("*.py"))


def bodies(chance: random.Random, count: int) -> list[Json]:
    """Requests with beginnings of files of Python's library, of ragged lengths."""
    texts = [path.read_text(errors="ignore") for path in chance.sample(SOURCES, 60)]
    return [
        {
            "prompt": chance.choice(texts)[: chance.randrange(20, 300)],
            "max_tokens": chance.randrange(4, 48),
            "temperature": chance.choice([0, 0.8]),
            "seed": chance.randrange(1 << 40),
        }
        for _ in range(count)
    ]


def alone(model: Path, asked: list[Json]) -> list[str]:
    """The texts of the requests, one at a time."""
    with LLM(model, threads=1) as llm:
        texts = []
        for body in asked:
            names = ("max_tokens", "temperature", "seed")
            params = SamplingParams(**{name: body[name] for name in names})
            texts.append(llm.generate(body["prompt"], params)[0].text)
    return texts


@dataclass
class Reply:
    """A stream's text so far and its end: `whole`, `error` (a reported one), `left` or `cut`."""

    text: str = ""
    end: str = "cut"
    error: str = ""
    chunks: int = 0


async def whole(client: httpx.AsyncClient, body: Json) -> Reply:
    try:
        answer = await client.post(URL + COMPLETIONS, json=body)
    except httpx.TransportError as error:
        return Reply(error=repr(error))
    if answer.status_code != 200:
        end = "error" if "error" in answer.text else "cut"
        return Reply(end=end, error=f"{answer.status_code} {answer.text}")
    return Reply(answer.json()["choices"][0]["text"], "whole")


async def streamed(
    client: httpx.AsyncClient,
    body: Json,
    leave_after: int | None = None,
    on_chunk: Callable[[], None] = lambda: None,
) -> Reply:
    reply = Reply()
    try:
        async with client.stream("POST", URL + COMPLETIONS, json=body | {"stream": True}) as answer:
            if answer.status_code != 200:
                return Reply(end="error", error=f"{answer.status_code} {await answer.aread()!r}")
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    reply.end = "whole"
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    reply.end, reply.error = "error", chunk["error"]["message"]
                    continue
                reply.text += chunk["choices"][0]["text"]
                reply.chunks += 1
                on_chunk()
                if reply.chunks == leave_after:
                    reply.end = "left"
                    break
    except httpx.TransportError as error:
        reply.error = repr(error)
    return reply


def checked(replies: list[Reply], expected: list[str], allowed: set[str]) -> Counter[str]:
    """Counts answers by how they ended; ends the program at a wrong text or a cut answer."""
    for reply, text in zip(replies, expected, strict=True):
        is_equal = reply.text == text if reply.end == "whole" else text.startswith(reply.text)
        if not is_equal or reply.end not in allowed:
            sys.exit(f"wrong: {reply} for {text!r}")
    return Counter(reply.end for reply in replies)


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    text = (await client.get(URL + "/metrics")).text
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    return {name: float(value) for name, value in lines}


async def idle(client: httpx.AsyncClient) -> Counter[str]:
    """Waits until no sample runs; returns the generated tokens by replica."""
    while sum(value for name, value in (await metrics(client)).items() if "num_requests_" in name):
        await asyncio.sleep(0.2)
    return await tokens_by_replica(client)


async def tokens_by_replica(client: httpx.AsyncClient) -> Counter[str]:
    tokens: Counter[str] = Counter()
    for name, value in (await metrics(client)).items():
        if name.startswith("vllm:generation_tokens_total"):
            tokens[name.partition('replica="')[2][:8]] += int(value)
    return +tokens


def serves(names: Iterable[str], tokens: Counter[str]) -> bool:
    """Whether one of the replicas of these names has generated tokens."""
    return any(name.startswith(key) for name in names for key in tokens)


def deploy(model: Path, **options: Any) -> None:
    serve.run(app({"model": str(model), "draft": "auto", **options}))


async def processes() -> dict[str, int]:
    """Process ids of the living replicas by name."""
    handle = serve.get_deployment_handle("replica", "default")
    responses = handle.broadcast("process")
    try:
        found = await responses.results_async(timeout_s=10, return_exceptions=True)
    except TimeoutError:
        return {}
    return dict(each for each in found if not isinstance(each, BaseException))


async def requests_trial(client: httpx.AsyncClient, model: Path, chance: random.Random) -> Json:
    asked = bodies(chance, 200)
    expected = alone(model, asked)
    await asyncio.to_thread(deploy, model, replicas=2, threads=1)
    kinds = [chance.choice(["whole", "stream", "leave"]) for _ in asked]

    def sent(body: Json, kind: str) -> Awaitable[Reply]:
        if kind == "whole":
            return whole(client, body)
        return streamed(client, body, chance.randrange(1, 4) if kind == "leave" else None)

    replies = await asyncio.gather(*map(sent, asked, kinds))
    ends = checked(list(replies), expected, {"whole", "left"})
    return {"ends": ends, "tokens_by_replica": await idle(client)}


async def kill_trial(client: httpx.AsyncClient, model: Path, chance: random.Random) -> Json:
    asked = [body | {"max_tokens": 300} for body in bodies(chance, 40)]
    again = bodies(chance, 20)
    expected, later = alone(model, asked), alone(model, again)
    await asyncio.to_thread(deploy, model, replicas=2, threads=1)
    before = await processes()
    victim = chance.choice(list(before.values()))
    goal, seen = chance.randrange(40, 200), 0

    def on_chunk() -> None:
        nonlocal seen
        seen += 1
        if seen == goal:
            os.kill(victim, signal.SIGKILL)

    replies = await asyncio.gather(*(streamed(client, body, None, on_chunk) for body in asked))
    ends = checked(list(replies), expected, {"whole", "error"})
    killed = time.monotonic()
    while victim in (now := await processes()).values() or len(now) < 2:
        await asyncio.sleep(0.5)
    seconds = time.monotonic() - killed
    served = await asyncio.gather(*(whole(client, body) for body in again))
    tokens = await idle(client)
    return {
        "ends": ends,
        "errors": Counter(reply.error for reply in replies if reply.error),
        "two_replicas_again_after_s": round(seconds, 1),
        "later": checked(list(served), later, {"whole"}),
        "new_replica_served": serves(now.keys() - before.keys(), tokens),
    }


@asynccontextmanager
async def steady_clients(
    client: httpx.AsyncClient,
    chance: random.Random,
    asked: list[Json],
    expected: list[str],
    ways: list[Callable[[httpx.AsyncClient, Json], Awaitable[Reply]]],
) -> AsyncIterator[Counter[str]]:
    """Twelve clients that send one request after the other; counts how their answers end."""
    ends: Counter[str] = Counter()
    is_over = False

    async def go_on(own: random.Random) -> None:
        while not is_over:
            i = own.randrange(len(asked))
            reply = await own.choice(ways)(client, asked[i])
            ends.update(checked([reply], [expected[i]], {"whole"}))

    clients = [asyncio.create_task(go_on(random.Random(chance.random()))) for _ in range(12)]
    yield ends
    is_over = True
    await asyncio.gather(*clients)


async def update_trial(client: httpx.AsyncClient, model: Path, chance: random.Random) -> Json:
    asked = bodies(chance, 60)
    expected = alone(model, asked)
    await asyncio.to_thread(deploy, model, replicas=2, threads=1)
    before = set(await processes())
    async with steady_clients(client, chance, asked, expected, [whole, streamed]) as ends:
        await asyncio.to_thread(deploy, model, replicas=2, threads=1, max_batch=8)
        while before & set(await processes()):
            await asyncio.sleep(0.5)
    return {"ends": ends, "replaced": len(before - set(await processes()))}


async def scale_trial(client: httpx.AsyncClient, model: Path, chance: random.Random) -> Json:
    asked = bodies(chance, 60)
    expected = alone(model, asked)
    options: Json = {"replicas": 1, "max_replicas": 2, "ongoing": 3, "idle_seconds": 20}
    await asyncio.to_thread(deploy, model, threads=1, **options)
    before, begun = set(await processes()), time.monotonic()
    found: Json = {"before": len(before)}
    async with steady_clients(client, chance, asked, expected, [whole]) as ends:
        while len(now := await processes()) < 2:
            await asyncio.sleep(0.5)
        found["two_after_s"] = round(time.monotonic() - begun)
        new = tuple(set(now) - before)
        while not serves(new, await tokens_by_replica(client)):
            await asyncio.sleep(0.5)
        found["the_new_one_served"] = True
    begun = time.monotonic()
    while len(await processes()) > 1:
        await asyncio.sleep(0.5)
    found["one_after_s"] = round(time.monotonic() - begun)
    served = await asyncio.gather(*(whole(client, body) for body in asked[:5]))
    return {**found, "ends": ends, "later": checked(list(served), expected[:5], {"whole"})}


TRIALS = {
    "requests": requests_trial,
    "kill": kill_trial,
    "update": update_trial,
    "scale": scale_trial,
}


async def run(trial: Trial, model: Path, seed: int) -> None:
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=300)) as client:
        found = await trial(client, model, random.Random(seed))
    print(json.dumps({"trial": trial.__name__, "seed": seed, **found}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trial", choices=TRIALS)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    ray.init(
        num_cpus=2,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        model = settings.model or shipped_model()
        asyncio.run(run(TRIALS[settings.trial], model, settings.seed))
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
