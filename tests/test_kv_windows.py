"""Pages outside every window are freed, and results do not change."""

import random

import numpy as np
import pytest

from specqd._native import DraftRequest, Level, NoDraft, Rows, testing
from specqd.engine.roles import Drafter
from specqd.model.model import Model
from support.cached_models import (
    NAN,
    PAGE,
    WINDOWED,
    Guessing,
    advance,
    logits,
    new_sequence,
    opened,
    poison_free_pages,
    random_tokens,
)
from support.fixtures import a_model

windowed_directory = a_model(WINDOWED, seed=12)
windowed = opened("windowed_directory")


@pytest.mark.parametrize("length", [0, 1, 5, 8])
def test_pages_behind_every_window_are_freed_without_changing_tokens(
    windowed: Model, length: int, chance: random.Random
) -> None:
    prompt = random_tokens(chance, 100)
    plain = new_sequence(prompt)
    expected = advance(Level(windowed, NoDraft()), plain, 300)
    windowed.release(plain)
    drafter: Drafter = NoDraft()
    if length:
        drafter = Level(windowed.as_draft(), Guessing(chance), length=length)
    level = Level(windowed, drafter)
    sequence = new_sequence(prompt)
    slot = windowed.context(sequence).slot
    while len(sequence.tokens) < 400:
        [step] = level.advance([DraftRequest(sequence, 400 - len(sequence.tokens))])
        assert step.tokens
        sequence.tokens.extend(step.tokens)
        windowed.forget_unseen(sequence)
        # The next row sees its own position and 69 before it.
        first_seen = max(0, len(sequence.tokens) - 1 - 69)
        held = [windowed.cache.has_page(slot, page) for page in range(len(sequence.tokens) // PAGE)]
        assert held == [(page + 1) * PAGE > first_seen for page in range(len(held))]
        poison_free_pages(windowed.cache)
    assert sequence.tokens[100:] == expected
    level.release(sequence)
    assert windowed.cache.free_pages == windowed.cache.total_pages


def test_blocks_that_no_row_sees_are_skipped(windowed: Model, chance: random.Random) -> None:
    """Attention weights of zero would not suffice: zero times NaN is NaN."""
    tokens = random_tokens(chance, 230)
    clean, poisoned = windowed.cache.create(), windowed.cache.create()
    for slot in (clean, poisoned):
        logits(windowed, slot, tokens[:200])
    for page in (0, 1):  # positions up to 127; row 200 sees from 131 on
        testing.poison(windowed.cache, poisoned, page, NAN)
    expected = logits(windowed, clean, tokens, 200)
    np.testing.assert_array_equal(logits(windowed, poisoned, tokens, 200), expected)


def test_a_page_behind_a_window_is_not_offered(windowed: Model, chance: random.Random) -> None:
    sequence = new_sequence(random_tokens(chance, 300))
    advance(Level(windowed, NoDraft()), sequence, 1)
    windowed.forget_unseen(sequence)
    windowed.publish(sequence)
    assert windowed.adopt_prefix(new_sequence(sequence.tokens)) == 0


def test_a_fork_needs_the_pages_that_its_first_row_sees(
    windowed: Model, chance: random.Random
) -> None:
    """A late sample finds its leader far ahead and pages of its prompt freed."""
    prompt = random_tokens(chance, 100)
    plain = new_sequence(prompt)
    expected = advance(Level(windowed, NoDraft()), plain, 40)
    level = Level(windowed, NoDraft())
    for ahead in (1, 30, 70, 200):
        leader, follower = new_sequence(prompt), new_sequence(prompt)
        while len(leader.tokens) < 100 + ahead:
            advance(level, leader, 1)
            windowed.forget_unseen(leader)
        poison_free_pages(windowed.cache)
        windowed.fork(leader, follower)
        assert advance(level, follower, 40) == expected
        level.release(leader)
        level.release(follower)


def test_cache_bytes_of_a_forward_are_counted(windowed: Model, chance: random.Random) -> None:
    """Blocks of 32 positions, each once per layer for any number of rows; here two sequences."""
    windowed.logits(random_tokens(chance, 230))
    layer_bytes = windowed.cache.page_bytes / PAGE / len(windowed.config.windows)
    sequences = [new_sequence(random_tokens(chance, count)) for count in (230, 70)]
    seen = 0
    rows = []
    for sequence, start in zip(sequences, (220, 0), strict=True):
        context = windowed.context(sequence)
        if start:
            windowed.forward([Rows(context, 0, sequence.tokens[:start], 0)])
        rows.append(Rows(context, start, sequence.tokens[start:], 1))
        last = -(-len(sequence.tokens) // 32) * 32
        for window in windowed.config.windows:
            first = max(start + 1 - window, 0) // 32 * 32 if window else 0
            seen += last - first
    before = windowed.cache_bytes_read
    windowed.forward(rows)
    assert windowed.cache_bytes_read - before == seen * layer_bytes
    assert windowed.as_draft().cache_bytes_read == 0
