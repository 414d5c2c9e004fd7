"""Preempted sequences are prefilled again later: no bit depends on it, and all sequences end."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, product

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import LLM, SamplingParams, _native
from specqd.engine.engine import Engine
from specqd.engine.generation import Generation, GenerationRequest
from specqd.errors import CacheFullError, MachineError, RequestError
from support.engines import preempt_at_random
from support.families import FAMILY_SHAPES
from support.random_models import Shape, make_model

PAGE = _native.PAGE_POSITIONS
PAGES = 12
VOCABULARY = 320


# By state: a third of the tokens is forbidden.
MASKS = np.packbits(
    np.arange(VOCABULARY) % 3 != np.arange(3)[:, None], axis=1, bitorder="little"
).view(np.uint32)


@dataclass(slots=True)
class StatefulGrammar:
    """A grammar with a state: the tokens so far determine which tokens may follow."""

    state: int = 0

    def masks(self, proposal: list[int]) -> NDArray[np.uint32]:
        states = [self.state, *(self.state + s + i for i, s in enumerate(accumulate(proposal), 1))]
        return MASKS[np.array(states) % 3]

    def accept(self, token: int) -> None:
        self.state += token + 1


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, seed: int) -> LLM:
    return roomy(tmp_path_factory, Shape(is_peaked=True), seed)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory, seed: int) -> LLM:
    """It frees pages behind its window, so a preempted sequence computes them again."""
    return roomy(tmp_path_factory, Shape("mistral", window=48, is_peaked=True), seed)


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory, seed: int) -> LLM:
    """Its last layers read the keys and values of earlier ones, in a cache of two head sizes."""
    shape = replace(FAMILY_SHAPES["gemma4_text"], vocab=VOCABULARY, context=512)
    return roomy(tmp_path_factory, shape, seed)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory, seed: int) -> LLM:
    """A preempted sequence reads again what follows its last cached state."""
    return roomy(tmp_path_factory, FAMILY_SHAPES["qwen3_5_text"], seed)


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory, seed: int) -> LLM:
    return roomy(tmp_path_factory, FAMILY_SHAPES["lfm2"], seed)


def roomy(tmp_path_factory: pytest.TempPathFactory, shape: Shape, seed: int) -> LLM:
    directory = make_model(tmp_path_factory.mktemp("models") / "small", shape, seed)
    return LLM(directory, "none", threads=1, cache_positions=64 * PAGE)


@pytest.fixture(scope="module")
def tight(plain: LLM) -> LLM:
    """The same model with a cache for little more than one sequence."""
    return LLM(plain.directory, "none", threads=1, cache_positions=PAGES * PAGE)


def params_of(rng: np.random.Generator) -> SamplingParams:
    return SamplingParams(
        max_tokens=int(rng.integers(200, 400)),
        temperature=float(rng.choice([0.0, 0.8])),
        seed=int(rng.integers(1 << 40)),
        n=int(rng.choice([1, 1, 3])),
        repetition_penalty=float(rng.choice([1.0, 1.3])),
        stop=["\x00\x01\x02"],
        logprobs=2,
        ignore_eos=True,
    )


def prompt_of(rng: np.random.Generator, length: int) -> list[int]:
    return rng.integers(0, 256, length).tolist()


def requests_of(rng: np.random.Generator, count: int) -> list[tuple[list[int], SamplingParams]]:
    return [(prompt_of(rng, int(rng.integers(1, 110))), params_of(rng)) for _ in range(count)]


def engine_of(llm: LLM, draft: str, rng: np.random.Generator) -> Engine:
    rows = int(rng.integers(8, 100)) if rng.random() < 0.5 else None
    return Engine(llm.with_draft(draft).engine.level, llm.tokenizer, prompt_tokens=rows)


def run(engine: Engine) -> None:
    """Runs to the end; every step must advance the oldest sequence."""
    while not engine.is_idle:
        waiting = engine.scheduler.running or list(engine.scheduler.waiting)
        oldest = waiting[0]
        count, unread = oldest.count, engine.level.num_unread(oldest.sequence)
        engine.step()
        assert oldest.count > count or engine.level.num_unread(oldest.sequence) < unread
    cache = engine.level.model.cache
    assert cache.free_pages == cache.total_pages


def facts(generation: Generation) -> tuple[object, ...]:
    return (
        generation.tokens,
        generation.text,
        generation.logprobs,
        generation.finish_reason,
        generation.confidence,
    )


@pytest.mark.parametrize("has_grammar", [False, True])
@pytest.mark.parametrize("draft", ["none", "fp4:k=8", "auto", "ngram:k=64"])
def test_preempted_sequences_equal_themselves_alone(
    plain: LLM, tight: LLM, draft: str, has_grammar: bool, rng: np.random.Generator
) -> None:
    engine = engine_of(tight, draft, rng)
    make_grammar = StatefulGrammar if has_grammar else None
    submitted = assert_equal_alone(plain, engine, requests_of(rng, 7), make_grammar)
    assert engine.scheduler.preemptions == sum(
        g.preemptions for samples in submitted for g in samples
    )


MODELS = ("plain", "windowed", "sharing", "hybrid", "convolutions")
CASES = [*product(MODELS, ["fp4:k=8"]), ("plain", "none"), ("plain", "auto"), ("hybrid", "auto")]
RARE = [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in product(MODELS, ("none", "auto"))
    if case not in CASES
]


@pytest.mark.parametrize(("model", "draft"), [*CASES, *RARE])
def test_sequences_may_be_preempted_at_any_time(
    request: pytest.FixtureRequest,
    model: str,
    draft: str,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = request.getfixturevalue(model)
    engine = engine_of(plain, draft, rng)
    preempt_at_random(engine, rng, monkeypatch)
    assert_equal_alone(plain, engine, requests_of(rng, 5), StatefulGrammar)


def assert_equal_alone(
    plain: LLM,
    engine: Engine,
    requests: list[tuple[list[int], SamplingParams]],
    make_grammar: Callable[[], StatefulGrammar] | None,
) -> list[list[Generation]]:
    """The samples of the requests, which the engine must preempt."""
    submitted = [
        engine.submit(GenerationRequest([prompt], params, make_grammar))
        for prompt, params in requests
    ]
    run(engine)
    assert engine.scheduler.preemptions > 0
    alone = Engine(plain.engine.level, plain.tokenizer, max_batch=1)
    for (prompt, params), samples in zip(requests, submitted, strict=True):
        expected = alone.submit(GenerationRequest([prompt], params, make_grammar))
        run(alone)
        assert [facts(g) for g in samples] == [facts(g) for g in expected]
    return submitted


def test_pages_are_not_reserved_for_max_tokens(tight: LLM, rng: np.random.Generator) -> None:
    engine = Engine(tight.engine.level, tight.tokenizer, eos_token_ids=range(VOCABULARY))
    most = SamplingParams(max_tokens=300)  # each writes one token
    sequences = engine.submit(GenerationRequest([prompt_of(rng, 20) for _ in range(3)], most))
    engine.step()
    assert [each.finish_reason for each in sequences] == ["stop"] * 3
    assert engine.scheduler.preemptions == 0


def test_the_newest_sequence_is_preempted_and_resumes_first(
    tight: LLM, rng: np.random.Generator
) -> None:
    engine = Engine(tight.engine.level, tight.tokenizer)
    params = SamplingParams(max_tokens=300, temperature=0, ignore_eos=True)
    sequences = engine.submit(GenerationRequest([prompt_of(rng, 100) for _ in range(3)], params))
    [late] = engine.submit(GenerationRequest([prompt_of(rng, 10)], params))
    scheduler = engine.scheduler
    while scheduler.preemptions == 0:
        engine.step()
    preempted = scheduler.waiting[0]
    assert preempted.preemptions == 1
    assert preempted.count > 0
    assert scheduler.running == sequences[: len(scheduler.running)]
    assert list(scheduler.waiting) == [*sequences[len(scheduler.running) :], late]
    run(engine)
    assert sequences[0].preemptions == 0


def test_a_preempted_sequence_may_be_cancelled(tight: LLM, rng: np.random.Generator) -> None:
    engine = Engine(tight.engine.level, tight.tokenizer)
    params = SamplingParams(max_tokens=300, temperature=0, ignore_eos=True, stop=["\x00" * 20])
    engine.submit(GenerationRequest([prompt_of(rng, 100) for _ in range(3)], params))
    while engine.scheduler.preemptions == 0:
        engine.step()
    preempted = engine.scheduler.waiting[0]
    engine.cancel(preempted)
    assert preempted.finish_reason == "cancelled"
    assert preempted.text == tight.tokenizer.decode(preempted.tokens)
    assert preempted not in engine.scheduler.waiting
    run(engine)
    assert preempted.finish_reason == "cancelled"


def test_a_sequence_ends_at_the_capacity_of_the_cache(tight: LLM) -> None:
    small = LLM(tight.directory, "none", threads=1, cache_positions=4 * PAGE)
    for most in (2 * PAGE, None):
        params = SamplingParams(max_tokens=most, ignore_eos=True)
        [result] = small.generate([[1] * PAGE], params)
        assert len(result.tokens) == PAGE
        assert result.completions[0].finish_reason == "length"
    with pytest.raises(RequestError, match=r"with 128 tokens .* as the KV cache has room for 128"):
        small.generate([[1] * (2 * PAGE)], params)
    with pytest.raises(MachineError, match="the KV cache has 128 positions, too few for any text"):
        LLM(tight.directory, "none", threads=1, cache_positions=2 * PAGE)


def test_generate_preempts_and_equals_each_prompt_alone(
    plain: LLM, tight: LLM, rng: np.random.Generator
) -> None:
    prompts = [prompt_of(rng, 60) for _ in range(6)]
    params = SamplingParams(max_tokens=400, temperature=0.8, seed=3, ignore_eos=True)
    results = tight.generate(prompts, params)
    assert tight.engine.scheduler.preemptions > 0
    for prompt, result in zip(prompts, results, strict=True):
        assert result.tokens == plain.generate([prompt], params)[0].tokens


def test_log_probabilities_get_the_pages_of_running_texts(
    plain: LLM, rng: np.random.Generator
) -> None:
    small = LLM(plain.directory, "none", threads=1, cache_positions=6 * PAGE)
    prompts = [prompt_of(rng, 20) for _ in range(2)]
    params = SamplingParams(max_tokens=100, temperature=0.8, seed=3, ignore_eos=True)
    streams = [small.stream(prompt, params) for prompt in prompts]
    for stream in streams:
        next(stream)
    ids = prompt_of(rng, 6 * PAGE)
    np.testing.assert_array_equal(small.logprobs(ids), plain.logprobs(ids))
    assert small.engine.scheduler.preemptions == 2
    next(streams[0])
    with pytest.raises(CacheFullError, match="of 384 positions is full"):
        small.logprobs([*ids, 1])
    assert small.engine.scheduler.preemptions == 2
    for stream, prompt in zip(streams, prompts, strict=True):
        list(stream)
        assert stream.result is not None
        assert stream.result.tokens == plain.generate([prompt], params)[0].tokens
