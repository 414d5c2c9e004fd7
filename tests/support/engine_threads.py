"""Runs jobs on an engine's thread, and collects their updates."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

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
