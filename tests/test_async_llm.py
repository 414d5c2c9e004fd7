"""AsyncLLM: awaited calls give the bits of the LLM, alone and among others."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, AsyncLLM, SamplingParams
from specqd.errors import RequestError, SpecqdError
from support.fixtures import an_llm
from support.refusals import refused

MESSAGES = [{"role": "user", "content": "Hi"}]
# Whole characters alone, so that each round has text.
LONG = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True, logit_bias={97: 100.0})
TEXT = replace(LONG, max_tokens=20)
SHORT = SamplingParams(max_tokens=2, temperature=0)

llm = an_llm("chat_model", "fp4")


@pytest.fixture(autouse=True)
def pages_are_returned(llm: LLM) -> Iterator[None]:
    yield
    assert llm.engine.is_idle
    assert llm.model.cache.free_pages == llm.model.cache.total_pages


def run(llm: LLM, work: Callable[[AsyncLLM], Awaitable[Any]]) -> Any:
    async def within() -> Any:
        async with AsyncLLM(llm) as served:
            return await work(served)

    return asyncio.run(within())


def params_of(rng: np.random.Generator, **fields: Any) -> SamplingParams:
    sampling = {"temperature": float(rng.choice([0.0, 0.8])), "seed": int(rng.integers(1 << 40))}
    return SamplingParams(max_tokens=int(rng.integers(1, 60)), **sampling, **fields)


def prompts_of(rng: np.random.Generator, count: int) -> list[list[int]]:
    return [rng.integers(0, 256, int(rng.integers(1, 90))).tolist() for _ in range(count)]


async def streamed(llm: AsyncLLM, prompt: list[int], params: SamplingParams) -> Any:
    stream, text = llm.stream(prompt, params), ""
    async for piece in stream:
        text += piece
    assert stream.result is not None
    assert stream.result.text == text
    return stream.result


def test_calls_at_once_have_the_bits_that_they_have_alone(
    llm: LLM, rng: np.random.Generator
) -> None:
    prompts = prompts_of(rng, 6)
    params = [params_of(rng, logprobs=1, prompt_logprobs=0) for _ in prompts]
    pair = params_of(rng, n=2)

    async def work(served: AsyncLLM) -> list[Any]:
        pieces = [streamed(served, *each) for each in zip(prompts, params, strict=True)]
        wholes = [served.generate(*each) for each in zip(prompts, params, strict=True)]
        return await asyncio.gather(*pieces, *wholes, served.generate(prompts, pair))

    *pieces, several = run(llm, work)
    for i, prompt in enumerate(prompts):
        [expected] = llm.generate([prompt], params[i])
        [whole] = pieces[len(prompts) + i]
        for got in (pieces[i], whole):
            assert got.completions == expected.completions
            assert got.prompt_logprobs == expected.prompt_logprobs
            assert got.prompt_tokens == prompt
        assert several[i].completions == llm.generate([prompt], pair)[0].completions


def test_a_loop_over_a_stream_goes_on_after_the_pieces_that_anext_gave(llm: LLM) -> None:
    async def work(served: AsyncLLM) -> Any:
        stream = served.stream([97, 98], TEXT)
        assert repr(stream).startswith("AsyncStream(SamplingParams(max_tokens=20, ")
        text = await anext(stream)
        text += await anext(stream)
        async for piece in stream:
            text += piece
        assert repr(stream).endswith(f", result={stream.result!r})")
        other = served.stream([97, 98], replace(TEXT, max_tokens=1))
        assert await anext(other) == "a"
        for _ in range(2):
            assert await anext(other, None) is None
        return text

    assert run(llm, work) == "a" * 20


def test_a_chat_is_that_of_the_llm(llm: LLM, rng: np.random.Generator) -> None:
    params = params_of(rng)

    async def work(served: AsyncLLM) -> tuple[str, str]:
        text = [piece async for piece in served.stream_chat(MESSAGES, params)]
        return "".join(text), (await served.chat(MESSAGES, params)).text

    assert run(llm, work) == (llm.chat(MESSAGES, params).text,) * 2


def test_threads_may_use_the_llm_meanwhile(llm: LLM, rng: np.random.Generator) -> None:
    prompts, params = prompts_of(rng, 8), params_of(rng)

    async def work(served: AsyncLLM) -> list[Any]:
        calls = [
            served.generate([each], params)
            if i % 2
            else asyncio.to_thread(llm.generate, [each], params)
            for i, each in enumerate(prompts)
        ]
        return await asyncio.gather(*calls)

    together = run(llm, work)
    for prompt, [got] in zip(prompts, together, strict=True):
        assert got.completions == llm.generate([prompt], params)[0].completions


class Gate:
    """Holds the engine before its second round, so that no request ends meanwhile."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_held, self._is_open = threading.Event(), threading.Event()
        self._rounds, self._step = 0, llm.engine.step
        monkeypatch.setattr(llm.engine, "step", self._one)

    def _one(self) -> Any:
        if self._rounds:
            self.is_held.set()
            assert self._is_open.wait(60)
        self._rounds += 1
        return self._step()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.is_held.wait, 60)

    def open(self) -> None:
        self._is_open.set()


@pytest.fixture
def gate(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(llm, monkeypatch)


def test_a_stream_that_is_left_is_cancelled(llm: LLM, gate: Gate) -> None:
    async def work(served: AsyncLLM) -> None:
        async for _ in served.stream("ab", LONG):
            break
        assert served._thread is not None
        async with asyncio.timeout(60):  # only so that nothing hangs
            while served._thread.num_open_samples:
                await asyncio.sleep(0)
        gate.open()

    before = llm.engine.stats.new_tokens
    run(llm, work)
    assert llm.engine.stats.new_tokens - before < 400


def test_a_cancelled_task_ends_its_request(llm: LLM, gate: Gate) -> None:
    async def work(served: AsyncLLM) -> None:
        task = asyncio.create_task(served.generate("ab", LONG))
        await gate.reached()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()

    before = llm.engine.stats.new_tokens
    run(llm, work)
    assert llm.engine.stats.new_tokens - before < 400


def test_closing_ends_requests_with_an_error_and_a_later_call_begins_anew(
    llm: LLM, gate: Gate
) -> None:
    async def work(served: AsyncLLM) -> Any:
        task = asyncio.create_task(served.generate("ab", LONG))
        await gate.reached()
        closing = asyncio.create_task(served.close())
        with pytest.raises(SpecqdError, match="was closed; call again"):
            await task
        gate.open()
        await closing
        return await served.generate("ab", SHORT)

    [result] = run(llm, work)
    assert result.tokens == llm.generate("ab", SHORT)[0].tokens


def test_one_object_serves_event_loops_one_after_the_other(llm: LLM) -> None:
    served, params = AsyncLLM(llm), SamplingParams(max_tokens=5, temperature=0)
    texts = {asyncio.run(served.generate("ab", params))[0].text for _ in range(3)}
    assert texts == {llm.generate("ab", params)[0].text}
    asyncio.run(served.close())


def test_two_event_loops_at_once_are_refused(llm: LLM) -> None:
    async def work(served: AsyncLLM) -> str:
        await served.generate([])
        other = lambda: asyncio.run(served.generate("ab"))  # noqa: E731
        return await asyncio.to_thread(refused, RequestError, other)

    assert "belongs to another event loop" in run(llm, work)


@pytest.mark.parametrize("bad", [5, [[1 << 20]], [[65] * 600]])
def test_what_is_wrong_is_refused_and_others_go_on(llm: LLM, bad: Any) -> None:
    async def work(served: AsyncLLM) -> list[Any]:
        calls = served.generate("ab", LONG), served.generate(bad), served.chat("Hi")  # type: ignore[arg-type]
        return await asyncio.gather(*calls, return_exceptions=True)

    good, *wrong = run(llm, work)
    assert len(good[0].tokens) == 400
    assert all(isinstance(each, SpecqdError) for each in wrong)


PROGRAM = """
import asyncio
from specqd import AsyncLLM, SamplingParams

llm = AsyncLLM()

async def main():
    async for piece in llm.stream("import os", SamplingParams(2000, ignore_eos=True)):
        return

asyncio.run(main())
"""


def test_a_program_that_never_closes_it_ends_without_a_word() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_the_garbage_collector_may_end_it_within_a_round(
    chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(chat_model, "none", threads=1)
    params = SamplingParams(max_tokens=4)
    cycle: list[Any] = [AsyncLLM(llm)]
    cycle.append(cycle)
    asyncio.run(cycle[0].generate("ab", params))
    del cycle
    step = llm.engine.step

    def collecting() -> None:
        gc.collect()
        step()

    monkeypatch.setattr(llm.engine, "step", collecting)
    thread = threading.Thread(target=llm.generate, args=("ab", params), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
