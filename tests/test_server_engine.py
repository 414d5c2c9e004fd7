"""The engine's thread: jobs join and leave between rounds, and never change each other's bits."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd._native import DraftRequest, Level, Proposal
from specqd.engine import thread as engine_thread
from specqd.engine.engine import Engine
from specqd.engine.generation import GenerationRequest
from specqd.engine.thread import EngineThread, Job, StoppedError
from specqd.engine.updates import Update
from specqd.errors import RequestError
from support.engine_threads import (
    engine_of,
    finished,
    job_of,
    most_between_rounds,
    queued_together,
    rounds_without_tokens,
    run,
    updates_of,
)
from support.fake_model import FakeDrafter
from support.faults import FaultError


@pytest.fixture(autouse=True)
def pages_are_returned(llm: LLM) -> Iterator[None]:
    yield
    assert llm.model.cache.free_pages == llm.model.cache.total_pages


async def until_it_fails(job: Job) -> None:
    while True:
        await job.updates()


def prompt_of(rng: np.random.Generator, length: int) -> list[int]:
    return rng.integers(0, 256, length).tolist()


@dataclass(frozen=True)
class Arrival:
    """A request that arrives after a delay, and whose client may disconnect before the end."""

    prompt: list[int]
    params: SamplingParams
    delay_s: float
    patience_s: float | None
    is_streamed: bool


def arrivals_of(rng: np.random.Generator, count: int) -> list[Arrival]:
    arrivals = []
    for _ in range(count):
        params = SamplingParams(
            max_tokens=int(rng.integers(1, 60)),
            temperature=float(rng.choice([0.0, 0.8])),
            seed=int(rng.integers(1 << 40)),
            n=int(rng.choice([1, 1, 3])),
            repetition_penalty=float(rng.choice([1.0, 1.3])),
            logprobs=2,
        )
        leaves = rng.random() < 0.25
        arrivals.append(
            Arrival(
                prompt_of(rng, int(rng.choice([1, 5, 40, 70, 250]))),
                params,
                float(rng.uniform(0, 0.3)),
                float(rng.uniform(0, 0.05)) if leaves else None,
                is_streamed=bool(rng.integers(2)),
            )
        )
    return arrivals


@pytest.mark.parametrize("draft", ["none", "fp4", "auto"])
def test_requests_that_come_and_go_get_the_same_bits_as_alone(
    llm: LLM, rng: np.random.Generator, draft: str
) -> None:
    arrivals = arrivals_of(rng, 16)
    engine = engine_of(llm.with_draft(draft), max_batch=8, prompt_tokens=int(rng.integers(16, 200)))

    async def one(thread: EngineThread, arrival: Arrival) -> list[Update] | None:
        await asyncio.sleep(arrival.delay_s)
        job = Job(
            GenerationRequest([arrival.prompt], arrival.params), is_streamed=arrival.is_streamed
        )
        try:
            return await asyncio.wait_for(finished(thread, job), arrival.patience_s)
        except TimeoutError:
            thread.close(job)
            return None

    async def all_of_them(thread: EngineThread) -> list[list[Update] | None]:
        return await asyncio.gather(*(one(thread, arrival) for arrival in arrivals))

    results = run(engine, all_of_them)
    assert engine.is_idle
    assert any(result is not None for result in results)
    for arrival, result in zip(arrivals, results, strict=True):
        if result is None:
            continue
        alone = llm.generate([arrival.prompt], arrival.params)[0]
        for update, completion in zip(result, alone.completions, strict=True):
            assert update.tokens == completion.tokens
            assert update.text == completion.text
            assert update.logprobs == completion.logprobs
            assert update.finish_reason == completion.finish_reason


def test_a_long_prompt_is_prefilled_in_parts_while_others_decode(
    llm: LLM, rng: np.random.Generator
) -> None:
    engine = engine_of(llm, prompt_tokens=32)
    greedy = SamplingParams(max_tokens=100, temperature=0)
    [early] = engine.submit(GenerationRequest([prompt_of(rng, 3)], greedy))
    engine.step()
    prompt = prompt_of(rng, 300)
    [late] = engine.submit(GenerationRequest([prompt], replace(greedy, max_tokens=4)))
    before = early.count
    rounds = 0
    while late.count == 0:
        engine.step()
        rounds += 1
    assert rounds == -(-299 // 32)
    assert early.count - before == rounds
    while late.finish_reason is None:
        engine.step()
    engine.cancel(early)
    assert late.tokens == llm.generate([prompt], replace(greedy, max_tokens=4))[0].tokens


class RecordsValue(FakeDrafter):
    """Proposes nothing, and records the last value of a token."""

    def __init__(self) -> None:
        self.last = 0.0

    def answer(self, request: DraftRequest) -> Proposal:
        self.last = request.token_value_s
        return Proposal()


def test_a_token_is_worth_less_while_other_prompts_are_prefilled(
    llm: LLM, rng: np.random.Generator
) -> None:
    ticks = count()
    drafter = RecordsValue()
    level = Level(llm.model, drafter, clock=lambda: float(next(ticks)))  # one second a call
    level.measure()
    engine = Engine(level, llm.tokenizer, prompt_tokens=32)
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    [early] = engine.submit(GenerationRequest([prompt_of(rng, 3)], params))
    for _ in range(20):
        engine.step()
    alone = drafter.last
    others = engine.submit(GenerationRequest([prompt_of(rng, 60) for _ in range(3)], params))
    engine.step()
    value = drafter.last
    assert not any(other.count for other in others)
    for each in (early, *others):
        engine.cancel(each)
    assert 0.0 < value <= alone / 4


def test_prompts_share_the_rows_of_a_step_in_their_order(
    llm: LLM, rng: np.random.Generator
) -> None:
    engine = engine_of(llm, prompt_tokens=64)
    params = SamplingParams(max_tokens=1)
    prompts = [prompt_of(rng, 60) for _ in range(3)]
    all_of_them = engine.submit(GenerationRequest(prompts, params))
    engine.step()
    assert [g.finish_reason for g in all_of_them] == ["length", None, None]
    engine.step()
    assert [g.finish_reason for g in all_of_them] == ["length", "length", None]
    engine.step()
    assert engine.is_idle


def test_prompts_that_arrive_together_read_their_common_beginning_once(
    llm: LLM, rng: np.random.Generator
) -> None:
    engine = engine_of(llm, prompt_tokens=64)
    params = SamplingParams(max_tokens=3, temperature=0)
    beginning = prompt_of(rng, 320)
    prompts = [[*beginning, *prompt_of(rng, int(rng.integers(2, 60)))] for _ in range(6)]
    all_of_them = engine.submit(GenerationRequest(prompts, params))
    while not engine.is_idle:
        engine.step()
    assert engine.stats.read_tokens < 2 * 320 + 6 * 60
    assert sum(each.cached_prompt_tokens == 320 for each in all_of_them) >= 4
    assert engine.scheduler.cached_prompt_tokens == sum(
        each.cached_prompt_tokens for each in all_of_them
    )
    for prompt, generation in zip(prompts, all_of_them, strict=True):
        assert generation.tokens == llm.with_draft("none").generate(prompt, params)[0].tokens


class CountingWatcher:
    """Counts its calls."""

    def __init__(self) -> None:
        self.first = self.next = 0
        self.reasons: list[str] = []

    def first_token(self, seconds: float) -> None:
        self.first += 1

    def next_tokens(self, seconds: float, count: int) -> None:
        self.next += count

    def finished(self, reason: str, seconds: float) -> None:
        self.reasons.append(reason)


def test_a_job_without_a_stream_gives_one_update_and_is_counted_by_token(
    llm: LLM, rng: np.random.Generator
) -> None:
    prompts = [prompt_of(rng, 5), prompt_of(rng, 9)]
    params = SamplingParams(max_tokens=30, n=2, seed=1, ignore_eos=True)
    watcher = CountingWatcher()

    updates = run(
        engine_of(llm),
        lambda thread: updates_of(
            thread, Job(GenerationRequest(prompts, params), is_streamed=False)
        ),
        watcher,
    )
    alone = [each for p in prompts for each in llm.generate([p], params)[0].completions]
    assert sorted(update.sample for update in updates) == [0, 1, 2, 3]
    for update in updates:
        assert update.tokens == alone[update.sample].tokens
        assert update.text == alone[update.sample].text
        assert update.finish_reason == "length"
    assert (watcher.first, watcher.next, watcher.reasons) == (4, 4 * 29, ["length"] * 4)


@pytest.mark.parametrize(("seconds", "parts"), [(0.0, 40), (1e9, 2)])
def test_updates_of_a_stream_keep_the_interval(
    llm: LLM,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    parts: int,
) -> None:
    """The first token is sent at once, and the last ones together with the end."""
    monkeypatch.setattr(engine_thread, "_STREAM_SECONDS", seconds)
    params = SamplingParams(max_tokens=40, ignore_eos=True, seed=1, logprobs=1)
    prompt = prompt_of(rng, 5)

    updates = run(engine_of(llm), lambda thread: updates_of(thread, job_of([prompt], params)))
    assert [len(update.tokens) for update in updates[:-1]] == [1] * (parts - 1)
    alone = llm.generate([prompt], params)[0].completions[0]
    assert [token for update in updates for token in update.tokens] == alone.tokens
    assert "".join(update.text for update in updates) == alone.text
    assert [each for update in updates for each in update.logprobs] == alone.logprobs


def test_jobs_wait_while_the_cache_is_full_and_all_are_answered(
    llm: LLM, rng: np.random.Generator
) -> None:
    params = SamplingParams(max_tokens=None, temperature=0, ignore_eos=True)
    jobs = [job_of([prompt_of(rng, 10)], params) for _ in range(7)]  # room for four contexts

    async def work(thread: EngineThread) -> list[list[Update]]:
        return await asyncio.gather(*(finished(thread, job) for job in jobs))

    for samples in run(engine_of(llm), work):
        assert len(samples[0].tokens) == 502


@pytest.mark.parametrize("bad", [[], [320], [1] * 512])
def test_either_all_samples_of_a_request_are_queued_or_none(llm: LLM, bad: list[int]) -> None:
    engine = engine_of(llm)
    with pytest.raises(RequestError):
        engine.submit(GenerationRequest([[1], bad], SamplingParams()))
    assert engine.is_idle
    assert engine.stats.prompt_tokens == 0


def test_one_bad_prompt_of_a_job_leaves_nothing_behind(llm: LLM) -> None:
    engine = engine_of(llm, max_context=100)

    async def work(thread: EngineThread) -> None:
        with pytest.raises(RequestError, match="the context has 100"):
            await thread.submit(job_of([[1], [1] * 100], SamplingParams()))
        assert await thread.ask(lambda: engine.is_idle)

    run(engine, work)


def test_a_closed_job_is_removed_before_the_next_round(llm: LLM, rng: np.random.Generator) -> None:
    engine = engine_of(llm)

    async def work(thread: EngineThread) -> None:
        job = job_of([prompt_of(rng, 5)], SamplingParams(max_tokens=500, ignore_eos=True))
        await thread.submit(job)
        await job.updates()
        thread.close(job)
        assert thread.num_open_samples == 0
        assert await thread.ask(lambda: engine.is_idle)

    run(engine, work)


def test_a_client_that_does_not_read_delays_no_other_client(
    llm: LLM, rng: np.random.Generator
) -> None:
    params = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True)

    async def work(thread: EngineThread) -> None:
        slow = job_of([prompt_of(rng, 5)], params)
        await thread.submit(slow)
        await finished(thread, job_of([prompt_of(rng, 5)], params))
        deadline = time.monotonic() + 60
        while not await thread.ask(lambda: engine.is_idle):
            assert time.monotonic() < deadline
        assert sum(len(update.tokens) for update in await slow.updates()) == 200
        assert slow.is_over
        thread.close(slow)

    engine = engine_of(llm)
    run(engine, work)


def test_clients_that_ask_again_at_once_leave_a_round_between_their_commands(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, times, asked = engine_of(llm), 20, [0, 0]
    log = rounds_without_tokens(engine, monkeypatch)

    async def work(thread: EngineThread) -> None:
        job = job_of([[1]], SamplingParams(max_tokens=8))
        await thread.submit(job)

        def question(own: int) -> None:
            log.append("question")
            asked[own] += 1
            while thread._commands.empty() and asked[1 - own] < times:
                time.sleep(0)  # until the other client has asked again

        async def ask(own: int) -> None:
            for _ in range(times):
                await thread.ask(lambda: question(own))

        await asyncio.gather(ask(0), ask(1))
        thread.close(job)

    run(engine, work)
    assert log.count("question") == 2 * times
    assert most_between_rounds(log) <= 2


def test_of_forwards_without_a_job_one_comes_between_two_rounds(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, sizes = engine_of(llm), set()
    log = rounds_without_tokens(engine, monkeypatch)

    def forward(most_rows: int | None) -> None:
        log.append("forward")
        sizes.add(most_rows)

    async def work(thread: EngineThread) -> None:
        await thread.forward(forward)
        assert sizes == {None}  # nobody waits
        log.clear()
        job = job_of([[1]], SamplingParams(max_tokens=8))
        await thread.submit(job)
        await queued_together(thread, [thread.forward(forward) for _ in range(8)])
        assert sizes == {None, engine.rows_beside()}
        thread.close(job)

    run(engine, work)
    assert log.count("forward") == 8
    assert most_between_rounds(log) == 1


@pytest.mark.parametrize("fault", [MemoryError, FaultError])
def test_a_broken_engine_fails_every_job_with_the_cause(
    llm: LLM,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    fault: type[BaseException],
) -> None:
    engine = engine_of(llm)

    step, rounds = engine.step, 0

    def break_in_the_second_round() -> object:
        nonlocal rounds
        rounds += 1
        if rounds > 1:
            raise fault
        return step()

    monkeypatch.setattr(engine, "step", break_in_the_second_round)

    async def work(thread: EngineThread) -> None:
        job = job_of([prompt_of(rng, 5)], SamplingParams(max_tokens=500, ignore_eos=True))
        await thread.submit(job)
        with pytest.raises(StoppedError, match=fault.__name__):
            await until_it_fails(job)
        with pytest.raises(StoppedError):
            thread.check()
        with pytest.raises(StoppedError):
            await thread.submit(job_of([[1]], SamplingParams()))

    run(engine, work)


def test_a_fault_in_one_request_does_not_affect_the_others(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(llm)

    def broken(request: GenerationRequest) -> None:
        raise FaultError("of this request")

    async def work(thread: EngineThread) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(engine, "submit", broken)
            job = job_of([[1]], SamplingParams())
            with pytest.raises(RuntimeError, match="FaultError: of this request"):
                await thread.submit(job)
            thread.close(job)
        thread.check()
        [sample] = await finished(thread, job_of([[1]], SamplingParams(max_tokens=3)))
        assert sample.tokens

    run(engine, work)
