"""One model used by several threads: each call has the tokens that it has alone."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd._native import DraftRequest, Level, Proposal, Sequence
from specqd.errors import RequestError
from support.random_models import Shape, make_model

THREADS = 24
SHAPE = Shape(is_peaked=True, context=1 << 13)

Call = Callable[[LLM], object]


@pytest.fixture(scope="module")
def llms(tmp_path_factory: pytest.TempPathFactory, seed: int) -> list[LLM]:
    """Two models with drafts, each with threads of its own."""
    directory = tmp_path_factory.mktemp("models")
    models = [make_model(directory / str(i), SHAPE, seed + i) for i in range(2)]
    return [LLM(model, threads=2) for model in models]


def together(jobs: list[Callable[[], object]]) -> list[object]:
    """The results of all jobs, each begun on its own thread at the same time."""
    start = threading.Barrier(len(jobs))

    def begin(job: Callable[[], object]) -> object:
        start.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        futures: list[Future[object]] = [pool.submit(begin, job) for job in jobs]
        return [future.result(timeout=120) for future in futures]


def num_waiting(llm: LLM) -> int:
    return len(llm.turns._askers) + len(llm.turns._runners)


def calls(rng: np.random.Generator, count: int) -> list[Call]:
    """Random calls of all kinds; each returns what it must have alone too."""

    def call(kind: int, prompt: list[int], params: SamplingParams) -> Call:
        if kind == 0:
            return lambda llm: "".join(llm.stream(prompt, params))
        if kind == 1:
            return lambda llm: llm.logprobs(prompt).tobytes()
        if kind == 2:
            return lambda llm: [r.completions for r in llm.generate([prompt, prompt[1:]], params)]
        return lambda llm: llm.generate(prompt, params)[0].completions

    return [
        call(
            i % 5,
            [int(token) for token in rng.integers(3, 320, int(rng.integers(2, 100)))],
            SamplingParams(
                max_tokens=int(rng.integers(1, 40)),
                temperature=float(rng.choice([0.0, 0.8])),
                seed=int(rng.integers(1 << 32)),
                n=int(rng.integers(1, 3)),
                logprobs=2 if rng.random() < 0.3 else None,
            ),
        )
        for i in range(count)
    ]


def test_threads_on_two_models_get_the_tokens_of_each_call_alone(
    llms: list[LLM], rng: np.random.Generator
) -> None:
    made = [(llms[i % 2], call) for i, call in enumerate(calls(rng, THREADS))]
    alone = [call(llm) for llm, call in made]
    for _ in range(4):
        jobs = [lambda llm=llm, call=call: call(llm) for llm, call in made]
        assert together(jobs) == alone
    for llm in llms:
        assert llm.engine.is_idle
        assert llm.model.cache.free_pages == llm.model.cache.total_pages


def test_calls_that_come_together_are_one_batch(
    llms: list[LLM], monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    llm, sizes = llms[0], []
    step = llm.engine.step

    def first_waits_for_all() -> object:
        while not sizes and num_waiting(llm) < THREADS - 1:
            threading.Event().wait(0)
        ready = step()
        sizes.append(len(ready))
        return ready

    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    prompts = [[int(token) for token in rng.integers(3, 320, 9)] for _ in range(THREADS)]
    alone = [llm.generate(prompt, params)[0].tokens for prompt in prompts]
    monkeypatch.setattr(llm.engine, "step", first_waits_for_all)
    found = together([lambda p=p: llm.generate(p, params)[0].tokens for p in prompts])
    assert found == alone
    assert max(sizes) == 16  # all places of the batch


def test_calls_by_asyncio_to_thread_have_their_own_tokens(llms: list[LLM]) -> None:
    llm, params = llms[0], SamplingParams(max_tokens=12, temperature=0)
    prompts = [[65 + i, 66, 67] for i in range(8)]
    alone = [llm.generate(prompt, params)[0].tokens for prompt in prompts]

    async def all_at_once() -> list[list[int]]:
        calls = [asyncio.to_thread(llm.generate, prompt, params) for prompt in prompts]
        return [result[0].tokens for result in await asyncio.gather(*calls)]

    assert asyncio.run(all_at_once()) == alone


def test_a_round_that_fails_ends_all_calls_and_the_next_begin_anew(
    llms: list[LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, threads = llms[0], 6
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    alone = llm.generate([[65]], params)[0].tokens
    step, rounds = llm.engine.step, 0

    def fail_third() -> object:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            while num_waiting(llm) < threads - 1:
                threading.Event().wait(0)
        if rounds == 3:
            raise ValueError("broken\nin two lines")
        return step()

    def call() -> BaseException | None:
        try:
            llm.generate([[65]], params)
        except Exception as error:
            return error
        return None

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "step", fail_third)
        errors = together([call] * threads)
    assert sum(isinstance(error, ValueError) for error in errors) == 1
    others = [error for error in errors if isinstance(error, RequestError)]
    assert len(others) == threads - 1
    for error in others:
        assert str(error).startswith("a round for several calls failed")
        assert "\n" not in str(error)
    assert llm.engine.is_idle
    assert llm.model.cache.free_pages == llm.model.cache.total_pages
    assert llm.generate([[65]], params)[0].tokens == alone


def test_a_stream_that_is_left_ends_while_others_go_on(llms: list[LLM]) -> None:
    llm = llms[0]
    long = SamplingParams(max_tokens=150, temperature=0, ignore_eos=True)
    endless = SamplingParams(max_tokens=8000, temperature=0, ignore_eos=True)
    whole = llm.generate([[65, 66]], long)[0].tokens

    def leave() -> list[int]:
        stream = llm.stream([65, 66], endless)
        for _ in stream:
            break
        with llm.turns.alone():
            assert stream.result is not None
            assert stream.result.completions[0].finish_reason == "cancelled"
            return stream.result.tokens[: len(whole)]

    jobs = [leave] * 6 + [lambda: llm.generate([[65, 66]], long)[0].tokens] * 6
    for found in together(jobs):
        assert isinstance(found, list)
        assert found == whole[: len(found)]
    assert llm.engine.is_idle


def test_a_stream_may_be_stopped_by_another_thread(llms: list[LLM]) -> None:
    llm = llms[0]
    stream = llm.stream([65], SamplingParams(max_tokens=200, temperature=0, ignore_eos=True))
    pieces = iter(stream)
    first = next(pieces)
    stopper = threading.Thread(target=stream.stop)
    stopper.start()
    stopper.join()
    text = first + "".join(pieces)
    assert stream.result is not None
    assert stream.result.completions[0].finish_reason == "cancelled"
    assert stream.result.text == text


def test_models_that_end_in_one_thread_leave_the_others_alone(tmp_path: Path, seed: int) -> None:
    """Each thread opens a model, generates, and drops the model: also its pool."""
    model = make_model(tmp_path / "model", SHAPE, seed)
    params = SamplingParams(max_tokens=10, temperature=0)

    def open_and_drop() -> list[int]:
        return LLM(model, threads=2).generate([[65, 66]], params)[0].tokens

    found = together([open_and_drop] * 4)
    assert found == [open_and_drop()] * 4


def test_a_native_object_that_two_threads_use_at_once_raises(llms: list[LLM]) -> None:
    """A forward waits in Python code, where another thread tries every use of its objects."""
    model = llms[0].model
    found: list[str] = []

    def attempt(use: Callable[[], object]) -> None:
        try:
            use()
            found.append("no error")
        except RequestError as error:
            found.append(str(error))

    sequence = Sequence([65, 66], SamplingParams().sampler(0, 0), 2)

    class Drafter:
        levels = ("fake",)

        def propose(self, requests: list[DraftRequest]) -> list[Proposal]:
            context = model.context(sequence)  # the same thread may
            request = DraftRequest(sequence, 2)
            uses: list[Callable[[], object]] = [
                lambda: level.advance([request]),
                lambda: level.propose([request]),
                lambda: level.values([request]),
                lambda: level.release(sequence),
                lambda: level.measure(),
                lambda: sequence.tokens.append(1),
                lambda: sequence.tokens.extend([1]),
                lambda: sequence.guess([1]),
            ]
            for use in uses:
                thread = threading.Thread(target=attempt, args=(use,))
                thread.start()
                thread.join()
            assert context.slot == model.context(sequence).slot
            return [Proposal() for _ in requests]

        def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None: ...

        def values(self, requests: list[DraftRequest]) -> list[tuple[float, float]]:
            return [(0.0, 0.0)] * len(requests)

        def release(self, sequence: Sequence) -> None: ...

    level = Level(model, Drafter())
    alone = level.advance([DraftRequest(sequence, 1)])  # prefills; asks for no draft
    sequence.tokens.extend(alone[0].tokens)
    level.advance([DraftRequest(sequence, 4)])
    assert len(found) == 8
    assert all("another thread uses this object" in each for each in found)
    level.release(sequence)


def test_forwards_of_one_model_from_two_threads_raise_or_are_right(llms: list[LLM]) -> None:
    """Without an LLM nothing makes them wait: each forward is right, or an error in one line."""
    model = llms[1].model
    tokens = [[int(t) for t in np.random.default_rng(i).integers(3, 320, 60)] for i in range(4)]
    expected = [model.logits(each) for each in tokens]

    errors: list[str] = []

    def forward(i: int) -> None:
        for _ in range(30):
            try:
                logits = model.logits(tokens[i])
            except RequestError as error:
                errors.append(str(error))
            else:
                np.testing.assert_array_equal(logits, expected[i])

    together([lambda i=i: forward(i) for i in range(4)])
    assert errors
    assert all("another thread uses this object" in error for error in errors)
    for each, logits in zip(tokens, expected, strict=True):
        np.testing.assert_array_equal(model.logits(each), logits)
