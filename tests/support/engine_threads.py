"""Runs jobs on an engine's thread, and collects their updates."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from specqd import LLM, SamplingParams
from specqd.engine.engine import Engine
from specqd.engine.generation import GenerationRequest
from specqd.engine.thread import EngineThread, Job, Watcher
from specqd.engine.updates import Update

T = TypeVar("T")
Work = Callable[[EngineThread], Awaitable[T]]


def engine_of(llm: LLM, **limits: int) -> Engine:
    return Engine(llm.engine.level, llm.tokenizer, **limits)


def job_of(prompts: list[list[int]], params: SamplingParams) -> Job:
    return Job(GenerationRequest(prompts, params))


def run(engine: Engine, work: Work[T], watcher: Watcher | None = None) -> T:
    async def within() -> T:
        thread = EngineThread(engine, watcher)
        thread.start()
        try:
            return await work(thread)
        finally:
            await thread.stop()

    return asyncio.run(within())


def rounds_without_tokens(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes the engine's rounds do nothing but add "round" to a log, so that no request ends."""
    log: list[str] = []

    def step() -> None:
        log.append("round")
        time.sleep(0)

    monkeypatch.setattr(engine, "step", step)
    return log


def most_between_rounds(log: list[str]) -> int:
    """The most entries of other kinds between two rounds."""
    return max(map(len, "".join(each[0] for each in log).split("r")))


async def queued_together(thread: EngineThread, calls: list[Awaitable[object]]) -> None:
    """Awaits calls that all arrive while one command runs."""
    may_end = threading.Event()
    holder = asyncio.create_task(thread.ask(lambda: may_end.wait(60)))
    waiting = [asyncio.ensure_future(each) for each in calls]
    for _ in range(5):  # until all have come to their first command
        await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(holder, *waiting)


async def updates_of(thread: EngineThread, job: Job) -> list[Update]:
    """Returns all updates, in the order of arrival."""
    await thread.submit(job)
    updates = []
    while not job.is_over:
        updates += await job.updates()
    thread.close(job)
    return updates


async def finished(thread: EngineThread, job: Job) -> list[Update]:
    """Returns each sample's updates joined into one."""
    updates = await updates_of(thread, job)
    samples = [[u for u in updates if u.sample == i] for i in range(job.request.num_samples)]
    return [
        Update(
            i,
            "".join(part.text for part in parts),
            [token for part in parts for token in part.tokens],
            [logprob for part in parts for logprob in part.logprobs],
            parts[-1].finish_reason,
            None,
        )
        for i, parts in enumerate(samples)
    ]
