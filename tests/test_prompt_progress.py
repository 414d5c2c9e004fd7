"""How far a prompt is read: updates between its parts, and what ends when its reader leaves."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.engine import thread as engine_thread
from specqd.engine.generation import GenerationRequest
from specqd.engine.thread import EngineThread, Job
from specqd.engine.updates import PromptProgress, Update
from support.engine_threads import engine_of, run, updates_of

LENGTH, PART, PAGE = 250, 64, 64
PARAMS = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)


@pytest.fixture(autouse=True)
def every_part_is_handed_over(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine_thread, "_STREAM_SECONDS", 0.0)
    yield
    assert llm.model.cache.free_pages == llm.model.cache.total_pages


def request_of(prompt: list[int], params: SamplingParams = PARAMS) -> GenerationRequest:
    return GenerationRequest([prompt], params, cache_salt="engines with a salt share no prompts")


def job_of(prompt: list[int], params: SamplingParams = PARAMS, *, has_progress: bool) -> Job:
    return Job(request_of(prompt, params), has_prompt_progress=has_progress)


def updates_with(llm: LLM, *jobs: Job) -> list[list[Update]]:
    """The updates of the jobs, run one after another."""

    async def work(thread: EngineThread) -> list[list[Update]]:
        return [await updates_of(thread, job) for job in jobs]

    return run(engine_of(llm, prompt_tokens=PART), work)


def parts_of(updates: list[Update]) -> list[PromptProgress]:
    return [update.prompt_progress for update in updates if update.prompt_progress is not None]


def test_updates_say_how_far_the_prompt_is_read(llm: LLM, rng: np.random.Generator) -> None:
    prompt = rng.integers(0, 256, LENGTH).tolist()
    told, again, untold = updates_with(
        llm, *(job_of(prompt, has_progress=has) for has in (True, True, False))
    )
    assert [part.read for part in parts_of(told)] == [64, 128, 192, LENGTH]
    assert {(part.total, part.cached) for part in parts_of(told)} == {(LENGTH, 0)}
    seconds = [part.seconds for part in parts_of(told)]
    assert seconds == sorted(seconds)
    cached = LENGTH // PAGE * PAGE
    assert [(part.read, part.cached) for part in parts_of(again)] == [(LENGTH, cached)]
    assert parts_of(untold) == []
    texts = ["".join(update.text for update in updates) for updates in (told, again, untold)]
    assert texts[0] == texts[1] == texts[2]
    at = [update.prompt_progress is None for update in told]
    assert at == sorted(at), "no part of the prompt is read after the first token"


def test_samples_that_share_a_prompt_say_it_once_each(llm: LLM, rng: np.random.Generator) -> None:
    prompt = rng.integers(0, 256, LENGTH).tolist()
    params = SamplingParams(max_tokens=3, temperature=1, seed=1, n=2)
    [updates] = updates_with(llm, job_of(prompt, params, has_progress=True))
    reads = [
        [part.read for part in parts_of([each for each in updates if each.sample == sample])]
        for sample in range(2)
    ]
    assert reads == [[64, 128, 192, LENGTH], [LENGTH]]


def test_a_prompt_whose_reader_leaves_is_read_no_further(
    llm: LLM, rng: np.random.Generator
) -> None:
    prompt = rng.integers(0, 256, LENGTH).tolist()
    engine = engine_of(llm, prompt_tokens=16)

    async def work(thread: EngineThread) -> None:
        job = job_of(prompt, has_progress=True)
        await thread.submit(job)
        [first, *_] = parts_of(await job.updates())
        assert 0 < first.read < LENGTH
        thread.close(job)
        read = await thread.ask(lambda: engine.stats.read_tokens)
        assert read < LENGTH
        assert await thread.ask(lambda: engine.is_idle)
        await asyncio.gather(*(thread.ask(lambda: None) for _ in range(3)))
        assert await thread.ask(lambda: engine.stats.read_tokens) == read
        assert engine.prompt_tokens_left == 0

    run(engine, work)


def test_the_engine_counts_what_it_has_read_and_what_is_left(
    llm: LLM, rng: np.random.Generator
) -> None:
    engine = engine_of(llm, prompt_tokens=PART)
    prompt = rng.integers(0, 256, LENGTH).tolist()
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True, n=2)
    for cached in (0, LENGTH // PAGE * PAGE):
        before = engine.stats.read_tokens
        engine.submit(request_of(prompt, params))
        assert engine.prompt_tokens_left == LENGTH
        left = []
        while not engine.is_idle:
            engine.step()
            left.append(engine.prompt_tokens_left)
        assert left == sorted(left, reverse=True)
        assert left[-1] == 0
        # The second sample shares the prompt. Its last token counts as the first one of decoding.
        assert engine.stats.read_tokens - before == LENGTH - cached - 1
