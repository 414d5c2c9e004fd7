"""Prefixes of hybrids: pages end at a cached state, bits do not depend on it, and no slot leaks."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, SamplingParams, _native
from specqd._native import DraftRequest, Level, NoDraft, Rows, testing
from specqd.engine.engine import Engine
from specqd.engine.generation import Generation, GenerationRequest
from specqd.model.model import Machine, Model
from specqd.model.scoring import score
from support.cached_models import PAGE, advance, new_sequence
from support.engines import preempt_at_random, run_to_end
from support.families import FAMILY_SHAPES
from support.fixtures import a_model
from support.random_models import make_model

SHAPE = FAMILY_SHAPES["qwen3_5_text"]
hybrid = a_model(SHAPE)
convolutions = a_model(FAMILY_SHAPES["lfm2"])


@pytest.fixture(params=["hybrid", "convolutions"])
def directory(request: pytest.FixtureRequest) -> Path:
    made: Path = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def model(directory: Path) -> Model:
    return Model.open(directory, machine=Machine.choose(1), cache_positions=1 << 13)


@pytest.fixture
def llm(directory: Path) -> LLM:
    return LLM(directory, "fp4:k=4", threads=1, cache_positions=1 << 13)


def tokens_of(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(0, 256, count).tolist()


def published(model: Model, tokens: list[int]) -> None:
    """Leaves the pages of a prompt in the cache, and its last state."""
    sequence = new_sequence(tokens)
    Level(model, NoDraft()).advance([DraftRequest(sequence, 1)])
    model.publish(sequence)
    model.release(sequence)


def adopted(model: Model, tokens: list[int]) -> int:
    sequence = new_sequence(tokens)
    held = model.adopt_prefix(sequence)
    model.release(sequence)
    return held


def assert_no_slot_is_held(cache: _native.KvCache) -> None:
    assert cache.free_states == cache.total_states
    assert cache.used_slots == cache.cached_slots <= cache.total_slots


def run(engine: Engine, prompt: list[int], params: SamplingParams) -> Generation:
    [generation] = engine.submit(GenerationRequest([prompt], params))
    run_to_end(engine)
    return generation


def params_of(rng: np.random.Generator, max_tokens: int = 70, n: int = 1) -> SamplingParams:
    seed = int(rng.integers(1 << 40))
    return SamplingParams(
        max_tokens=max_tokens, temperature=0.8, seed=seed, n=n, logprobs=2, ignore_eos=True
    )


@pytest.mark.parametrize("length", [64, 65, 66, 128, 129, 200, 300])
def test_a_prompt_leaves_a_state_at_its_last_full_page(
    model: Model, length: int, rng: np.random.Generator
) -> None:
    tokens = tokens_of(rng, length)
    published(model, tokens)
    assert adopted(model, tokens) == (length - 1) // PAGE * PAGE
    assert adopted(model, [*tokens, *tokens]) == (length - 1) // PAGE * PAGE
    assert_no_slot_is_held(model.cache)


@pytest.mark.parametrize("draft", ["none", "fp4:k=4", "auto"])
def test_chat_turns_begin_at_the_end_of_the_last_reply(
    llm: LLM, draft: str, rng: np.random.Generator
) -> None:
    engine = Engine(llm.with_draft(draft).engine.level, llm.tokenizer)
    unaided = Engine(llm.engine.level, llm.tokenizer)
    unaided.scheduler.reuses_prefixes = False
    history = tokens_of(rng, int(rng.integers(70, 300)))
    turns = []
    for _ in range(3):
        params = params_of(rng, int(rng.integers(20, 150)))
        reply, expected = run(engine, history, params), run(unaided, history, params)
        assert (reply.tokens, reply.logprobs) == (expected.tokens, expected.logprobs)
        assert expected.cached_prompt_tokens == 0
        turns.append((len(history), reply))
        history = [*history, *reply.tokens, *tokens_of(rng, int(rng.integers(1, 80)))]
    assert turns[0][1].cached_prompt_tokens == 0
    for (length, before), (_, reply) in pairwise(turns):
        # The state at the end of a page exists once a token behind it was forwarded.
        assert reply.cached_prompt_tokens == (length + before.count - 2) // PAGE * PAGE
    assert_no_slot_is_held(llm.model.cache)


def test_another_reply_to_the_same_prompt_begins_at_the_prompts_last_page(
    llm: LLM, rng: np.random.Generator
) -> None:
    prompt = tokens_of(rng, 200)
    run(llm.engine, prompt, params_of(rng))
    again = [*prompt, *tokens_of(rng, 20)]  # a template that leaves out what the model thought
    assert run(llm.engine, again, params_of(rng)).cached_prompt_tokens == 192


def test_requests_share_a_prompt_while_its_first_reader_writes(
    llm: LLM, rng: np.random.Generator
) -> None:
    prompt = tokens_of(rng, 200)
    [first] = llm.engine.submit(GenerationRequest([prompt], params_of(rng, 100)))
    llm.engine.step()
    [second] = llm.engine.submit(GenerationRequest([prompt], params_of(rng, 5)))
    run_to_end(llm.engine)
    assert (first.cached_prompt_tokens, second.cached_prompt_tokens) == (0, 192)


def test_texts_that_part_leave_a_state_where_they_part(
    model: Model, rng: np.random.Generator
) -> None:
    common = tokens_of(rng, 150)
    first, second, third = ([*common, each, *tokens_of(rng, 200)] for each in (1, 2, 3))
    published(model, first)
    assert adopted(model, second) == 0  # no state lies in what both share
    sequence = new_sequence(second)
    assert model.adopt_prefix(sequence) == 0
    Level(model, NoDraft()).advance([DraftRequest(sequence, 1)])
    model.publish(sequence)
    assert adopted(model, third) == 128
    model.release(sequence)
    assert_no_slot_is_held(model.cache)


def test_texts_that_go_on_take_no_room_for_states_that_are_cached(
    model: Model, rng: np.random.Generator
) -> None:
    cache = _native.KvCache(model.decoder, 64, 8, 2)
    small = Model(model.config, model.weights, model.decoder, model.machine, cache)
    for _ in range(3):
        common = tokens_of(rng, 150)
        first, second, third = ([*common, each, *tokens_of(rng, 200)] for each in (1, 2, 3))
        published(small, first)
        sequence = new_sequence(second)
        small.adopt_prefix(sequence)
        Level(small, NoDraft()).advance([DraftRequest(sequence, 1)])
        small.publish(sequence)  # and is not released
        assert adopted(small, third) == 128


def test_long_prompts_leave_a_state_every_1536_tokens(
    tmp_path: Path, rng: np.random.Generator, seed: int
) -> None:
    long = make_model(tmp_path / "long", replace(SHAPE, context=4096), seed)
    model = Model.open(long, machine=Machine.choose(2), cache_positions=1 << 13)
    tokens = tokens_of(rng, 3200)
    published(model, tokens)
    for at, held in ((1000, 0), (1535, 0), (1536, 1536), (3000, 1536), (3100, 3072)):
        assert adopted(model, [*tokens[:at], (tokens[at] + 1) % 256, 5]) == held
    assert_no_slot_is_held(model.cache)


def test_bits_behind_a_cached_state_are_those_of_one_forward(
    model: Model, rng: np.random.Generator
) -> None:
    tokens = tokens_of(rng, 400)
    expected = model.logits(tokens)
    for count in (65, 100, 129, 191, 193, 257):
        published(model, tokens[:count])
        sequence = new_sequence(tokens)
        held = model.adopt_prefix(sequence)
        assert held == (count - 1) // PAGE * PAGE
        model.logits(tokens_of(rng, 150))  # other states and rows in the memory
        context = model.context(sequence)
        for most in (int(rng.integers(1, 40)), len(tokens)):
            part = tokens[context.length : context.length + most]
            start = context.length
            model.forward([Rows(context, start, part, len(part))])
            found = model.decoder.logits()
            assert found.tobytes() == expected[start : start + len(part)].tobytes()
        model.release(sequence)


def test_samples_share_the_states_of_their_prompt(llm: LLM, rng: np.random.Generator) -> None:
    cache = llm.model.cache
    prompt = tokens_of(rng, 131)
    samples = llm.engine.submit(GenerationRequest([prompt], params_of(rng, 100, n=6)))
    llm.engine.step()
    assert cache.used_slots == 1
    llm.engine.step()  # the others are admitted behind the first
    assert len(llm.engine.scheduler.running) == 6
    assert cache.used_slots <= 3
    run_to_end(llm.engine)
    alone = Engine(llm.engine.level, llm.tokenizer, max_batch=1)
    alone.scheduler.reuses_prefixes = False
    expected = alone.submit(GenerationRequest([prompt], samples[0].params))
    run_to_end(alone)
    assert [each.tokens for each in samples] == [each.tokens for each in expected]
    assert_no_slot_is_held(cache)


def test_a_preempted_sequence_reads_again_what_follows_its_last_page(
    llm: LLM, rng: np.random.Generator
) -> None:
    engine = llm.engine
    [generation] = engine.submit(GenerationRequest([tokens_of(rng, 100)], params_of(rng, 200)))
    while generation.count < 100:
        engine.step()
    engine.scheduler.running.remove(generation)
    engine.scheduler._release(generation)
    engine.scheduler.waiting.appendleft(generation)
    generation.preemptions += 1
    length = len(generation.sequence.tokens)
    engine.scheduler.admit()
    context = engine.level.model.context(generation.sequence)
    assert context.length == (length - 2) // PAGE * PAGE
    run_to_end(engine)
    assert generation.count == 200


def test_requests_that_share_prefixes_equal_themselves_alone(
    llm: LLM, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(llm.engine.level, llm.tokenizer, prompt_tokens=int(rng.integers(20, 200)))
    preempt_at_random(engine, rng, monkeypatch)
    commons = [tokens_of(rng, int(rng.integers(PAGE, 200))) for _ in range(3)]
    requests: list[tuple[list[int], SamplingParams]] = []
    submitted: list[Generation] = []

    def submit(common: list[int]) -> None:
        prompt = [*common, *tokens_of(rng, int(rng.integers(1, 120)))]
        requests.append((prompt, params_of(rng, int(rng.integers(20, 90)))))
        submitted.append(engine.submit(GenerationRequest([prompt], requests[-1][1]))[0])

    for _ in range(16):
        submit(commons[int(rng.integers(3))])
        for _ in range(int(rng.integers(0, 6))):
            engine.step()
        if rng.random() < 0.3:
            engine.cancel(submitted[int(rng.integers(len(submitted)))])
    for _ in range(3):  # the second leaves a state where it parts from the first
        run_to_end(engine)
        submit(commons[0])
    run_to_end(engine)
    assert submitted[-1].cached_prompt_tokens > 0
    alone = Engine(llm.engine.level, llm.tokenizer, max_batch=1)
    alone.scheduler.reuses_prefixes = False
    for (prompt, params), found in zip(requests, submitted, strict=True):
        expected = run(alone, prompt, params)
        count = found.count
        assert found.finish_reason == "cancelled" or count == params.max_tokens
        assert found.tokens == expected.tokens[:count]
        assert found.logprobs == expected.logprobs[:count]
    assert_no_slot_is_held(llm.model.cache)


@pytest.mark.slow
def test_no_slot_leaks_over_2000_requests(
    llm: LLM, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, cache = llm.engine, llm.model.cache
    preempt_at_random(engine, rng, monkeypatch)
    commons = [tokens_of(rng, int(rng.integers(60, 300))) for _ in range(40)]
    for begun in range(0, 2000, 10):
        for _ in range(10):
            common = commons[int(rng.integers(len(commons)))]
            prompt = [*common, *tokens_of(rng, int(rng.integers(1, 90)))]
            params = params_of(rng, int(rng.integers(1, 40)), n=int(rng.choice([1, 1, 1, 3])))
            submitted = engine.submit(GenerationRequest([prompt], params))
            for _ in range(int(rng.integers(0, 5))):
                engine.step()
            if rng.random() < 0.2:
                engine.cancel(submitted[0])
        if begun % 500 == 0:
            run_to_end(engine)
            assert_no_slot_is_held(cache)
    run_to_end(engine)
    assert_no_slot_is_held(cache)
    assert engine.scheduler.preemptions > 100
    assert cache.free_pages == cache.total_pages


def test_the_least_recently_used_state_is_dropped_first(
    directory: Path, rng: np.random.Generator
) -> None:
    model = Model.open(directory, machine=Machine.choose(1), cache_positions=1 << 13)
    cache = _native.KvCache(model.decoder, 64, 4, 2)
    small = Model(model.config, model.weights, model.decoder, model.machine, cache)
    first, second, third = (tokens_of(rng, 100) for _ in range(3))
    published(small, first)
    published(small, second)
    assert adopted(small, first) == 64
    published(small, third)
    assert [adopted(small, each) for each in (first, second, third)] == [64, 0, 64]
    assert cache.cached_slots == cache.used_slots == 2


def test_an_evicted_page_takes_its_state_with_it(directory: Path, rng: np.random.Generator) -> None:
    model = Model.open(directory, machine=Machine.choose(1), cache_positions=8 * PAGE)
    tokens = tokens_of(rng, 300)
    published(model, tokens)
    assert model.cache.cached_slots == 1
    slot = model.cache.create()
    assert testing.make_writable(model.cache, slot, 0, 8 * PAGE)
    assert model.cache.cached_slots == 0
    model.cache.release(slot)
    assert_no_slot_is_held(model.cache)


def test_a_salt_keeps_states_apart(model: Model, rng: np.random.Generator) -> None:
    tokens = tokens_of(rng, 100)
    published(model, tokens)
    sequence = new_sequence(tokens)
    sequence.cache_salt = 7
    assert model.adopt_prefix(sequence) == 0


def test_contexts_of_scores_leave_a_state(model: Model, rng: np.random.Generator) -> None:
    context, ends = tokens_of(rng, 150), [tokens_of(rng, 70) for _ in range(2)]
    fresh = [score(model, [*context], each) for each in ends]
    assert adopted(model, [*context, 1]) == 128
    assert [score(model, context, each) for each in ends] == fresh


def test_a_rewritten_text_leaves_no_state_of_what_it_was(
    model: Model, rng: np.random.Generator
) -> None:
    """A context may go back behind a saved state, and other tokens may follow."""
    first = tokens_of(rng, 100)
    other = [*first[:60], *tokens_of(rng, 140)]
    sequence = new_sequence(other)
    context = model.context(sequence)
    context.match(first, 100)
    model.forward([Rows(context, 0, first, 0)])
    level = Level(model, NoDraft())
    found = advance(level, sequence, 20)
    model.publish(sequence)
    model.release(sequence)
    assert_no_slot_is_held(model.cache)
    again = new_sequence(other)
    assert model.adopt_prefix(again) == 192
    assert advance(level, again, 20) == found
    assert found == advance(level, unshared(model, other), 20)


def unshared(model: Model, tokens: list[int]) -> _native.Sequence:
    """A sequence that begins with nothing cached."""
    sequence = new_sequence(tokens)
    assert model.context(sequence).length == 0
    return sequence


def test_a_state_that_is_shared_when_a_forward_begins_is_not_written_by_it(
    model: Model, rng: np.random.Generator
) -> None:
    """Threads run its sequences side by side, so one may still read what all others left."""
    prompt = tokens_of(rng, 98)  # its last anchor is no end of a page
    leader = new_sequence(prompt)
    context = model.context(leader)
    context.match(prompt, len(prompt))
    model.forward([Rows(context, 0, prompt, 0)])
    followers = [new_sequence(prompt) for _ in range(3)]
    for each in followers:
        model.fork(leader, each)
    model.release(leader)
    contexts = [model.context(each) for each in followers]
    [shared] = {testing.state_slot(model.cache, each.slot) for each in contexts}
    for each in contexts:
        each.match(prompt, len(prompt) + 40)  # so that the next state is final at once
    model.forward([Rows(each, 98, tokens_of(rng, 40), 0) for each in contexts])
    assert [each.length for each in contexts] == [138] * 3
    own = {testing.state_slot(model.cache, each.slot) for each in contexts}
    assert len(own) == 3
    assert shared not in own
    for each in followers:
        model.release(each)
    assert_no_slot_is_held(model.cache)
