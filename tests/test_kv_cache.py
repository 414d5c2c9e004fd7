"""The hazards of one cache for two precisions (docs/design.md, "One KV cache")."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native
from specqd._native import Context, DraftRequest, Level, NoDraft, Rows, testing
from specqd.engine.roles import Drafter
from specqd.errors import MachineError
from specqd.model.decoder_spec import decoder_spec
from specqd.model.model import Model
from specqd.model.weights import load_weights
from support.broken_models import position_of_words
from support.cached_models import (
    NAN,
    PAGE,
    VOCABULARY,
    WINDOWED,
    Guessing,
    advance,
    logits,
    new_sequence,
    open_model,
    opened,
    poison_free_pages,
    random_tokens,
)
from support.fixtures import a_model
from support.random_models import Shape, make_model

# Heads of 32 fill their tiles, so that no word of a page is padding.
SHAPE = Shape(heads=4, kv_heads=2, head_dim=32, hidden=64, vocab=VOCABULARY, is_peaked=True)

directory = a_model(SHAPE, seed=11)
windowed_directory = a_model(WINDOWED, seed=12)
model = opened("directory")
windowed = opened("windowed_directory")


def cached_bits(model: Model, slot: int, length: int) -> list[NDArray[np.uint16]]:
    """The words of positions [0, length), by page."""
    positions = position_of_words(model)
    return [
        model.cache.page_bits(slot, page)[positions < length - page * PAGE]
        for page in range(-(-length // PAGE))
    ]


def assert_same_bits(found: list[NDArray[np.uint16]], expected: list[NDArray[np.uint16]]) -> None:
    for page, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(a, b, f"page {page}")


# --- Drafts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 8])
def test_rejected_draft_leaves_no_trace_in_the_cache(
    model: Model, length: int, chance: random.Random
) -> None:
    """Keys and values of accepted positions have the bits of plain decoding."""
    prompt = random_tokens(chance, 40)
    plain = new_sequence(prompt)
    expected = advance(Level(model, NoDraft()), plain, 150)
    drafts: list[Drafter] = [
        Guessing(chance),
        Level(model.as_draft(), NoDraft(), length=length),
        Level(model.as_draft(), Guessing(chance), length=length),
    ]
    rejected = []
    for drafter in drafts:
        level = Level(model, drafter)
        sequence = new_sequence(prompt)
        assert advance(level, sequence, 150) == expected
        rejected.append(level.stats.drafted - level.stats.accepted)
        held = min(model.context(sequence).length, model.context(plain).length)
        assert held > 180
        slots = [model.context(each).slot for each in (sequence, plain)]
        assert_same_bits(*(cached_bits(model, slot, held) for slot in slots))
        level.release(sequence)
    assert rejected[0] > 0  # short drafts may all be right by chance; guesses are not


def test_a_draft_leaves_a_trace_until_it_is_verified(model: Model, chance: random.Random) -> None:
    """Shows that the test above can fail."""
    sequence = new_sequence(random_tokens(chance, 40))
    level = Level(model, Level(model.as_draft(), NoDraft(), length=8))
    advance(level, sequence, 10)
    context = model.context(sequence)
    before = cached_bits(model, context.slot, context.length + 8)
    level.drafter.propose([DraftRequest(sequence, 8)])
    after = cached_bits(model, context.slot, context.length + 8)
    assert not all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    held = context.length
    assert_same_bits(
        *([page[:1] for page in bits] for bits in (before, after))  # position 0 is untouched
    )
    assert held == len(sequence.tokens) - 1


def test_a_draft_with_non_finite_logits_ends_the_proposal(
    directory: Path, model: Model, chance: random.Random
) -> None:
    """The embedding of every fifth token is NaN in the drafter; loading would refuse that."""
    weights = load_weights(directory, model.config, model.machine.pool, model.machine.isa)
    assert weights.embedding is not None
    damaged = weights.embedding.copy()
    damaged[::5] = NAN
    decoder = _native.Decoder(
        pool=model.machine.pool, isa=model.machine.isa, spec=decoder_spec(model.config),
        layers=weights.layers,
        final_norm=weights.final_norm, head=weights.head, embedding=damaged, max_rows=512,
    )  # fmt: skip
    broken = Model(
        model.config,
        replace(weights, embedding=damaged),
        decoder,
        model.machine,
        _native.KvCache(decoder, 24),
    )
    prompts = [[t for t in random_tokens(chance, 60) if t % 5] for _ in range(8)]
    plain, length = Level(model, NoDraft()), chance.randint(2, 8)
    level = Level(model, Level(broken, NoDraft(), length=length))
    for prompt in prompts:  # without such tokens, which would prevent all drafts
        expected, sequence = new_sequence(prompt), new_sequence(prompt)
        assert advance(level, sequence, 50) == advance(plain, expected, 50)
        level.release(sequence)
        plain.release(expected)
    assert 0 < level.stats.drafted < level.stats.forwards * length


# --- Pages with old contents ------------------------------------------------------------------


def test_old_contents_of_a_recycled_page_change_nothing(
    model: Model, windowed: Model, chance: random.Random
) -> None:
    """Values past the last valid row are read as zero, and masked keys are not read."""
    for each in (model, windowed):
        tokens = random_tokens(chance, 230)
        slot = each.cache.create()
        expected = logits(each, slot, tokens)
        each.cache.release(slot)
        for step in (230, 64, 33, 7):
            poison_free_pages(each.cache)
            slot = each.cache.create()
            parts = [
                logits(each, slot, tokens[: start + step], start)
                for start in range(0, len(tokens), step)
            ]
            np.testing.assert_array_equal(np.concatenate(parts), expected)
            each.cache.release(slot)


def test_old_rows_after_the_last_one_change_nothing(model: Model, chance: random.Random) -> None:
    """A slot holds a longer sequence's rows, as after a rejected draft."""
    tokens, other = random_tokens(chance, 100), random_tokens(chance, 120)
    fresh, used = model.cache.create(), model.cache.create()
    logits(model, used, [*tokens[:70], *other])
    for end in (71, 72, 90, 97, 100):
        expected = logits(model, fresh, tokens[:end])
        found = logits(model, used, tokens[:end], 70)
        np.testing.assert_array_equal(found, expected[70:])
        logits(model, used, [*tokens[:70], *other], 70)


# --- Publishing and sharing -------------------------------------------------------------------


def test_a_published_page_is_never_written(model: Model, chance: random.Random) -> None:
    """Neither by the slots that attach it nor by the slot that published it."""
    cache = model.cache
    tokens, other = random_tokens(chance, 160), random_tokens(chance, 160)
    owner, taker = cache.create(), cache.create()
    logits(model, owner, tokens)
    cache.publish(owner, tokens)
    assert cache.attach_prefix(taker, tokens) == 128
    before = cached_bits(model, taker, 128)
    for slot in (owner, taker):
        logits(model, slot, [*tokens[:90], *other], 90)
        last = cache.create()
        assert cache.attach_prefix(last, tokens) == 128
        assert_same_bits(cached_bits(model, last, 128), before)
        cache.release(last)
    np.testing.assert_array_equal(cache.page_bits(owner, 0), cache.page_bits(taker, 0))


@pytest.mark.parametrize("length", [1, 50, 64, 100, 128, 130])
def test_a_fork_copies_a_page_before_writing_it(
    model: Model, length: int, chance: random.Random
) -> None:
    cache = model.cache
    tokens = random_tokens(chance, length)
    ends = [random_tokens(chance, 80) for _ in range(3)]
    leader = cache.create()
    logits(model, leader, tokens)
    free = cache.free_pages
    forks = [cache.fork(leader, length) for _ in ends]
    assert cache.free_pages == free
    for slot, end in zip(forks, ends, strict=True):
        alone = cache.create()
        expected = logits(model, alone, [*tokens, *end])[length:]
        np.testing.assert_array_equal(logits(model, slot, [*tokens, *end], length), expected)
        cache.release(alone)
    alone = cache.create()
    expected = logits(model, alone, [*tokens, *ends[0]])[length:]
    np.testing.assert_array_equal(logits(model, leader, [*tokens, *ends[0]], length), expected)
    for slot in (leader, alone, *forks):
        cache.release(slot)
    assert cache.free_pages == cache.total_pages


# --- Kept pages, and a full cache ----------------------------------------------------------------


def test_full_attention_frees_nothing(model: Model, chance: random.Random) -> None:
    sequence = new_sequence(random_tokens(chance, 300))
    advance(Level(model, NoDraft()), sequence, 1)
    model.forget_unseen(sequence)
    assert all(model.cache.has_page(model.context(sequence).slot, page) for page in range(4))


def test_when_pages_run_out_nothing_changes(directory: Path, chance: random.Random) -> None:
    model = open_model(directory, pages=4)
    cache = model.cache
    slot, other = cache.create(), cache.create()
    tokens = random_tokens(chance, 130)
    logits(model, slot, tokens)
    assert testing.make_writable(cache, other, 0, PAGE)
    before = cached_bits(model, slot, 130)
    assert cache.free_pages == 0
    for first, last in ((130, 200), (64, 1000), (190, 193)):
        assert not testing.make_writable(cache, slot, first, last)
        assert cache.free_pages == 0
        assert [cache.has_page(slot, page) for page in range(4)] == [True, True, True, False]
        assert_same_bits(cached_bits(model, slot, 130), before)
    forked = cache.fork(slot, 130)
    assert not testing.make_writable(cache, forked, 129, 130)
    with pytest.raises(MachineError, match="KV cache"):
        model.forward([Rows(Context(slot), 130, random_tokens(chance, 100), 1)])
    cache.release(other)
    assert testing.make_writable(cache, forked, 129, 130)


def test_a_cache_too_large_to_be_listed_is_refused(directory: Path) -> None:
    with pytest.raises(MachineError, match="list of its pages"):
        Model.open(directory, cache_positions=1 << 36)


# --- Wrong calls ---------------------------------------------------------------------------------


def test_a_fork_has_no_more_positions_than_its_sequence(
    model: Model, chance: random.Random
) -> None:
    slot = model.cache.create()
    logits(model, slot, random_tokens(chance, PAGE))
    for length in (-1, PAGE + 1, 1 << 40):
        with pytest.raises(ValueError, match="no pages for so many positions"):
            model.cache.fork(slot, length)


def test_the_cache_of_another_decoder_is_refused(model: Model, seed: int, tmp_path: Path) -> None:
    narrow = replace(SHAPE, kv_heads=1)
    other = Model.open(make_model(tmp_path / "other", narrow, seed), cache_positions=PAGE)
    with pytest.raises(ValueError, match="made for another decoder"):
        model.decoder.forward(False, other.cache, [1], [other.cache.create()], [0], [1], [1])
