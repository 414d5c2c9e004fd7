"""Measures the gain of replicas of Ray Serve on this machine, and the predictions of docs/scale.md.

    python benchmarks/replica_speed.py speed|capacity|prefix [MODEL] [--seed 0]

Needs `specqd[ray]` and two cores. The model is the shipped one by default.

speed: tokens/s of two replicas of a core each over one of two cores, in turns, by requests at once.
capacity: the same without drafts, compared with what the capacity model predicts from two
    measurements: answers of one token, which cost a prompt and its surroundings, and forwards of as
    many rows.
prefix: prompt tokens that the cache saves, with routing by prefix and at random.
"""

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from ray import serve
from replicas import URL, Json, Reply, bodies, deploy, idle, main, prompts, whole

from specqd.bench.rounds import Interval, quotients, turns

DRAFTS = ("auto", "none")
REPLICAS = {"two": 2, "one": 1}
CORES = 2
AT_ONCE = (1, 4, 16, 64)


async def deploy_arms(model: Path, drafts: tuple[str, ...]) -> None:
    """/two-DRAFT: two replicas of a core each. /one-DRAFT: one replica of two cores."""
    for name, replicas in REPLICAS.items():
        options: Json = {"replicas": replicas, "threads": CORES // replicas, "routing": "random"}
        options["max_batch"] = max(AT_ONCE) // replicas
        for draft in drafts:
            arm = f"{name}-{draft}"
            await asyncio.to_thread(deploy, model, arm, f"/{arm}", draft=draft, **options)


def asked_for(chance: random.Random, at_once: int) -> list[Json]:
    """Requests for answers of 24 to 71 tokens."""
    return [
        body | {"max_tokens": chance.randrange(24, 72), "ignore_eos": True}
        for body in bodies(chance, max(at_once, 4))
    ]


async def answers(
    client: httpx.AsyncClient, asked: list[Json], at_once: int, arm: str
) -> tuple[float, int]:
    """Seconds and tokens of whole answers, `at_once` of them at a time."""
    places = asyncio.Semaphore(at_once)

    async def one(body: Json) -> int:
        async with places:
            reply = await whole(client, body, f"{URL}/{arm}")
        assert reply.end == "whole", reply
        return int(reply.usage["completion_tokens"])

    begun = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(one, asked)))
    return time.perf_counter() - begun, tokens


def interval(values: list[float], digits: int = 0) -> list[float]:
    """The median and its 95 % interval."""
    found = Interval.of(values)
    return [round(x, digits) for x in (found.median, found.low, found.high)]


async def speed_trial(client: httpx.AsyncClient, model: Path, chance: random.Random) -> Json:
    await deploy_arms(model, DRAFTS)
    found: Json = {}
    for at_once in AT_ONCE:
        speeds: dict[str, list[float]] = {f"{n}-{d}": [] for n in REPLICAS for d in DRAFTS}
        for number in range(9 if at_once < 64 else 5):
            asked, arms = asked_for(chance, at_once), list(speeds)
            for arm in (arms[turn] for turn in turns(number, len(arms))):
                seconds, tokens = await answers(client, asked, at_once, arm)
                speeds[arm].append(tokens / seconds)
        for draft in DRAFTS:
            two, one = speeds[f"two-{draft}"], speeds[f"one-{draft}"]
            ratios = interval(quotients(two, one), 2)
            speed = {"two": interval(two), "one": interval(one), "two_over_one": ratios}
            found[f"{draft} {at_once}"] = speed
            print(draft, at_once, found[f"{draft} {at_once}"], flush=True)
    return found


def forward_seconds(model: Path, name: str, at_once: int) -> float:
    """Seconds of a plain forward for this many sequences, while all replicas that have some run."""
    copies = min(REPLICAS[name], at_once)
    command = [sys.executable, "-m", "specqd", "bench", "forward", str(model)]
    command += ["--threads", str(CORES // REPLICAS[name]), "--rows", str(at_once // copies)]
    with TemporaryDirectory() as folder:
        files = [Path(folder) / str(i) for i in range(copies)]
        started = [
            subprocess.Popen([*command, "--json", file], stdout=subprocess.DEVNULL)
            for file in files
        ]
        assert not any(process.wait() for process in started)
        forwards = [each for file in files for each in json.loads(file.read_text())["forwards"]]
    return statistics.mean(each["seconds"] for each in forwards if each["precision"] == "bf16")


async def capacity_trial(client: httpx.AsyncClient, model: Path, chance: random.Random) -> Json:
    cases = [(name, at_once) for name in REPLICAS for at_once in AT_ONCE]
    forwards = {case: forward_seconds(model, *case) for case in cases}
    await deploy_arms(model, ("none",))
    found: Json = {}
    for name, at_once in cases:
        predicted, measured, surrounding = [], [], []
        for _ in range(9):
            asked = asked_for(chance, at_once)
            short = [body | {"max_tokens": 1} for body in asked]
            around, _ = await answers(client, short, at_once, f"{name}-none")
            seconds, tokens = await answers(client, asked, at_once, f"{name}-none")
            rounds = (tokens - len(asked)) / at_once
            surrounding.append(1e3 * around / len(asked))
            predicted.append(tokens / (around + rounds * forwards[name, at_once]))
            measured.append(tokens / seconds)
        found[f"{name} {at_once}"] = {
            "forward_ms": round(1e3 * forwards[name, at_once], 2),
            "one_token_ms": interval(surrounding, 1),
            "predicted": interval(predicted),
            "measured": interval(measured),
            "predicted_over_measured": interval(quotients(predicted, measured), 2),
        }
        print(name, at_once, found[f"{name} {at_once}"], flush=True)
    return found


async def prefix_trial(client: httpx.AsyncClient, model: Path, chance: random.Random) -> Json:
    begins = [text[:900] for text in prompts(chance, 200, 1800) if len(text) >= 900][:16]
    asked = [
        {"prompt": begin + tail, "max_tokens": 4, "temperature": 0}
        for begin in begins
        for tail in prompts(chance, 4, 60)
    ]
    chance.shuffle(asked)
    found: Json = {"requests": len(asked), "beginnings": len(begins)}
    for routing in ("prefix", "random"):
        await asyncio.to_thread(
            deploy, model, replicas=2, threads=1, routing=routing, cache_positions=4096
        )
        places = asyncio.Semaphore(8)

        async def one(body: Json, places: asyncio.Semaphore = places) -> Reply:
            async with places:
                return await whole(client, body)

        begun = time.perf_counter()
        replies = await asyncio.gather(*map(one, asked))
        assert all(reply.end == "whole" for reply in replies), replies
        read = sum(reply.usage["prompt_tokens"] for reply in replies)
        cached = sum(r.usage["prompt_tokens_details"]["cached_tokens"] for r in replies)
        found[routing] = {
            "prompt_tokens": read,
            "cached": cached,
            "share": round(cached / read, 3),
            "seconds": round(time.perf_counter() - begun, 1),
            "tokens_by_replica": await idle(client),
        }
        print(routing, found[routing], flush=True)
        serve.delete("default")
    return found


TRIALS = {"speed": speed_trial, "capacity": capacity_trial, "prefix": prefix_trial}

if __name__ == "__main__":
    main(TRIALS, __doc__, cores=4 * CORES)  # four arms take turns
