"""Recurrent layers: the same bits for any split of a text into forwards and any proposal, and
states that roll back as a length."""

import random
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import LLM, SamplingParams, _native
from specqd._native import Context, DraftRequest, Level, NoDraft, Proposal, Rows, testing
from specqd.errors import CacheFullError
from specqd.model import cache_size
from specqd.model.model import Machine, Model
from support.cached_models import PAGE, advance, new_sequence
from support.exactness import Decoding, Trace, difference
from support.fake_model import FakeDrafter, Knowing
from support.families import FAMILY_SHAPES
from support.random_models import Shape, make_model
from support.subjects import Request

SHAPES = {name: FAMILY_SHAPES[name] for name in ("qwen3_5_text", "lfm2")}
VOCABULARY = min(shape.vocab for shape in SHAPES.values())
AROUND_ANCHORS = (1, 2, 3, 4, 31, 32, 33, 63, 64, 65, 95, 96, 97)
NEW_TOKENS = 70


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> Shape:
    return SHAPES[request.param]


@pytest.fixture(scope="module")
def directory(shape: Shape, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "hybrid", shape, seed)


@pytest.fixture(scope="module")
def model(directory: Path) -> Model:
    return model_of(directory)


def model_of(directory: Path) -> Model:
    return Model.open(directory, machine=Machine.choose(1), cache_positions=1 << 13)


class Scripted(FakeDrafter):
    """Proposes a random number of the tokens that will come, then random ones."""

    def __init__(self, tokens: SequenceOf[int], rng: random.Random) -> None:
        self._tokens = tokens
        self._rng = rng

    def answer(self, request: DraftRequest) -> Proposal:
        at, count = len(request.sequence.tokens), self._rng.randint(0, min(request.at_most, 40))
        right = self._tokens[at : at + self._rng.randint(0, count)]
        wrong = [self._rng.randrange(VOCABULARY) for _ in range(count - len(right))]
        tokens = [*right, *wrong]
        return Proposal(tokens, [0.5] * len(tokens))


def request_of(rng: np.random.Generator, length: int, new_tokens: int = NEW_TOKENS) -> Request:
    prompt = tuple(rng.integers(0, VOCABULARY, length).tolist())
    return Request(prompt, new_tokens, "noisy", int(rng.integers(1 << 40)))


def decoded(level: Level, request: Request, feeding: str = "whole") -> Trace:
    """Decodes in memory that another text has used: it must not be read."""
    level.model.logits([*reversed(request.prompt), *range(140)])
    [trace] = Decoding(level, [request], feeding).run()
    return trace


def plainly(model: Model, request: Request) -> Trace:
    return decoded(Level(model, NoDraft()), request)


def written(request: Request, trace: Trace) -> list[int]:
    return [*request.prompt, *(emission.token for emission in trace.emissions)]


def self_draft(model: Model, length: int) -> Level:
    return Level(model, Level(model.as_draft(), NoDraft(), length=length))


@pytest.mark.parametrize("length", AROUND_ANCHORS)
def test_proposals_of_up_to_40_tokens_change_no_bit(
    model: Model, length: int, rng: np.random.Generator
) -> None:
    request = request_of(rng, length)
    plain = plainly(model, request)
    for _ in range(4):
        script = Scripted(written(request, plain), random.Random(int(rng.integers(1 << 40))))
        assert difference(plain, decoded(Level(model, script), request, "parts")) is None


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6, 7, 8, 40])
def test_drafts_from_the_own_weights_change_no_bit(
    model: Model, k: int, rng: np.random.Generator
) -> None:
    for length in (31, 32, 33):
        request = request_of(rng, length)
        assert difference(plainly(model, request), decoded(self_draft(model, k), request)) is None


def test_a_text_has_the_same_logits_in_one_forward_and_in_parts(
    model: Model, rng: np.random.Generator
) -> None:
    tokens = rng.integers(0, VOCABULARY, 300).tolist()
    whole = model.logits(tokens)
    for most in (1, 8, 40, 200):
        assert in_parts(model, tokens, most, rng).tobytes() == whole.tobytes()


@pytest.mark.parametrize(("key_dim", "value_dim"), [(26, 112), (128, 128)])
def test_wide_heads_have_the_same_logits_in_parts_and_on_every_instruction_set(
    key_dim: int, value_dim: int, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    dims = {"linear_key_head_dim": key_dim, "linear_value_head_dim": value_dim}
    delta_net = SHAPES["qwen3_5_text"]
    shape = replace(delta_net, layers=2, extra=delta_net.extra | dims)
    directory = make_model(tmp_path, shape, seed)
    tokens = rng.integers(0, VOCABULARY, 100).tolist()
    results = set()
    for isa in _native.available_isas():
        machine = Machine(_native.Pool(2), isa)
        wide = Model.open(directory, machine=machine, cache_positions=1 << 9)
        results.add(wide.logits(tokens).tobytes())
        results.add(in_parts(wide, tokens, 12, rng).tobytes())
    assert len(results) == 1


def in_parts(
    model: Model, tokens: list[int], most: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """The logits of forwards of at most `most` rows."""
    slot, rows, start = model.cache.create(), [], 0
    while start < len(tokens):
        part = tokens[start : start + int(rng.integers(1, most + 1))]
        model.forward([Rows(Context(slot), start, part, len(part))])
        rows.append(model.decoder.logits())
        start += len(part)
    model.cache.release(slot)
    return np.concatenate(rows)


def test_a_last_recurrent_layer_sees_rows_without_logits(
    shape: Shape, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    types = shape.extra.get("layer_types", [None] * 4)[:3]
    extra = {**shape.extra, "layer_types": types} if types[0] else shape.extra
    last = model_of(make_model(tmp_path, replace(shape, layers=3, extra=extra), seed))
    tokens = rng.integers(0, VOCABULARY, 90).tolist()
    expected = last.logits(tokens)[-1]
    last.logits([*reversed(tokens)])  # other states in the memory
    context = Context(last.cache.create())
    last.forward([Rows(context, 0, tokens[:-1], 0)])
    last.forward([Rows(context, len(tokens) - 1, tokens[-1:], 1)])
    assert last.decoder.logits()[0].tobytes() == expected.tobytes()


def test_a_level_that_rolls_back_behind_its_states_reads_the_text_again(
    model: Model, rng: np.random.Generator
) -> None:
    request = request_of(rng, 300)
    level, sequence = Level(model, NoDraft()), request.sequence()
    other = rng.integers(0, VOCABULARY, 300).tolist()
    same = int(rng.integers(1, 150))  # states since then are gone
    context = model.context(sequence)
    model.forward([Rows(context, 0, [*request.prompt[:same], *other[same:]], 0)])
    assert context.length == 300
    assert not model.cache.can_continue(context.slot, same)
    [step] = level.advance([DraftRequest(sequence, 1)])
    level.release(sequence)
    assert step.tokens[0] == plainly(model, request).emissions[0].token


def test_a_draft_ahead_of_the_states_goes_on_at_their_end(
    model: Model, rng: np.random.Generator
) -> None:
    """The exact weights roll back the states that they share with the draft, which still knows
    the rows that it has read."""
    sequence = request_of(rng, 100).sequence()
    drafting = model.as_draft()
    draft = Level(drafting, NoDraft())
    exact, ahead = model.context(sequence), drafting.context(sequence)
    model.forward([Rows(exact, 0, sequence.tokens[:80], 0)])
    assert draft.num_unread(sequence) == 19  # it follows the exact context
    drafting.forward([Rows(ahead, 80, sequence.tokens[80:], 0)])
    assert draft.num_unread(sequence) == 0
    model.forward([Rows(exact, 70, sequence.tokens[70:80], 0)])
    assert draft.num_unread(sequence) == 19
    model.release(sequence)


def test_a_fork_continues_from_a_copy_of_the_states(model: Model, rng: np.random.Generator) -> None:
    for length in AROUND_ANCHORS:
        first = request_of(rng, length, 40)
        second = Request(first.prompt, 40, "noisy", first.seed + 1)
        expected = [plainly(model, each) for each in (first, second)]
        level = self_draft(model, 6)
        leader, follower = first.sequence(), second.sequence()
        [step] = level.advance([DraftRequest(leader, 8)])
        leader.tokens.extend(step.tokens)
        model.fork(leader, follower)
        assert model.context(follower).length == length
        for sequence, plain in zip((leader, follower), expected, strict=True):
            tokens = [emission.token for emission in plain.emissions]
            while len(sequence.tokens) < length + 40:
                room = length + 40 - len(sequence.tokens)
                [step] = level.advance([DraftRequest(sequence, room)])
                sequence.tokens.extend(step.tokens)
            assert sequence.tokens[length:] == tokens
            level.release(sequence)


def test_a_convolution_alone_reads_the_rows_right_before(tmp_path: Path, seed: int) -> None:
    shape = SHAPES["lfm2"]
    model = model_of(make_model(tmp_path, shape, seed))
    context = Context(model.cache.create())
    model.forward([Rows(context, 0, [*range(40)], 0)])
    before = model.cache_bytes_read
    model.forward([Rows(context, 40, [1], 1)])
    rows, layers = 3, shape.extra["layer_types"].count("conv")
    states = rows * layers * shape.hidden * 2
    assert model.cache_bytes_read - before == model.cache.page_bytes + states


def test_sequences_wait_for_states_and_none_leak(
    directory: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_size, "_MOST_STATES", 2)
    few = LLM(directory, "fp4:k=4", threads=1, cache_positions=1 << 12)
    cache = few.engine.level.model.cache
    assert cache.total_states == 2
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=3, n=2, ignore_eos=True)
    prompts = [rng.integers(0, 256, int(rng.integers(1, 90))).tolist() for _ in range(5)]
    together = few.generate(prompts, params)
    for prompt, result in zip(prompts, together, strict=True):
        [alone] = few.generate([prompt], params)
        assert [each.tokens for each in result.completions] == [
            each.tokens for each in alone.completions
        ]
    assert cache.free_states == cache.total_states
    assert cache.free_pages == cache.total_pages


def test_a_sequence_without_free_states_is_refused(directory: Path) -> None:
    model = Model.open(directory, machine=Machine.choose(1), cache_positions=1 << 10)
    cache = _native.KvCache(model.decoder, 8, 1)
    small = Model(model.config, model.weights, model.decoder, model.machine, cache)
    first, second = Context(cache.create()), Context(cache.create())
    small.forward([Rows(first, 0, [1], 0)])
    with pytest.raises(CacheFullError, match="fewer at once"):
        small.forward([Rows(second, 0, [1], 0)])


def test_a_sequence_takes_at_most_four_slots(directory: Path, rng: np.random.Generator) -> None:
    """Proposals that end between ends of pages move both anchors and the saved state at once."""
    model = model_of(directory)
    prompt = rng.integers(0, VOCABULARY, PAGE + 32).tolist()
    plain = new_sequence(prompt)
    text = prompt + advance(Level(model, NoDraft()), plain, 500)
    model.release(plain)
    level = Level(model, Knowing(text, PAGE - 1))
    assert prompt + advance(level, new_sequence(prompt), 500) == text
    assert level.stats.forwards < 12  # long proposals, accepted
    assert testing.num_slots(model.cache) <= 4
