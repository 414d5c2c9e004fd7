"""The pages of a long context that drafts read."""

import random
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native
from specqd._native import Context, DraftRequest, Level, NoDraft, Rows, testing
from specqd.model.model import Machine, Model
from support import reference
from support.cached_models import NAN, PAGE, advance, new_sequence, opened, random_tokens
from support.families import FAMILY_SHAPES
from support.fixtures import a_model
from support.random_models import Shape, make_model, read_model

LONG = Shape("llama", head_dim=32, heads=6, kv_heads=2, layers=3, vocab=301, is_peaked=True)
STRIPS = LONG.layers * LONG.kv_heads
long_directory = a_model(LONG, seed=31)
model = opened("long_directory")
WEIGHED = {
    "llama": LONG,
    "soft caps and windows": FAMILY_SHAPES["gemma2"],
    "sinks and windows": FAMILY_SHAPES["gpt_oss"],
}


# --- Weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", WEIGHED.values(), ids=WEIGHED.keys())
def test_weights_of_pages_are_the_sums_of_softmax_weights(
    shape: Shape, tmp_path: Path, seed: int
) -> None:
    directory = make_model(tmp_path, shape, seed)
    model = Model.open(directory, machine=Machine.choose(2), cache_positions=1024)
    model.as_draft().set_draft_context(PAGE)
    chance = random.Random(seed)
    tokens = [chance.randrange(shape.vocab) for _ in range(9 * PAGE + 21)]  # two chunks
    scored = 5
    context = Context(model.cache.create())
    for first, last in ((0, 300), (300, len(tokens))):
        logits = scored if last == len(tokens) else 0
        model.forward([Rows(context, first, tokens[first:last], logits)])
    config, tensors = read_model(directory)
    described = reference.config_of(config)
    attended: list[NDArray[np.float64]] = []
    reference.forward(described, reference.values(tensors), tokens, None, attended)
    full = [layer for layer, window in enumerate(described.windows) if not window]
    groups = [
        each
        for layer in full
        for each in np.split(attended[layer], described.attention(layer).num_kv_heads)
    ]
    expected = np.stack([_by_page(each[:, 2 - scored : 4 - scored]) for each in groups])
    found = testing.page_weights(model.decoder, 2, 4)
    # What rounds are queries, keys and the softmax's exponentials: 2^-8 of scores of a few units.
    np.testing.assert_allclose(found, expected, rtol=0.1, atol=2e-3 * expected.max())


def _by_page(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of weights [heads, rows, positions] over heads and rows, by page."""
    summed = weights.sum((0, 1))
    return np.add.reduceat(summed, range(0, len(summed), PAGE))


def test_the_weights_of_a_row_do_not_depend_on_its_company(
    model: Model, chance: random.Random
) -> None:
    model.as_draft().set_draft_context(PAGE)
    tokens = random_tokens(chance, 6 * PAGE)
    found = []
    for first in (len(tokens) - 1, len(tokens) - 7, 0):
        context, other = Context(model.cache.create()), Context(model.cache.create())
        model.forward([Rows(context, 0, tokens[:first], 0)] if first else [Rows(other, 0, [1], 0)])
        count = min(len(tokens) - first, 7)
        rows = [Rows(context, first, tokens[first:], count)]
        model.forward([Rows(other, other.length, [3, 4], 1), *rows] if first else rows)
        last = model.decoder.logits().shape[0]
        found.append(testing.page_weights(model.decoder, last - 1, last))
        for each in (context, other):
            model.cache.release(each.slot)
    for weights in found:
        np.testing.assert_array_equal(weights, found[0])


# --- What others proposed -------------------------------------------------------------------------


def test_a_draft_reads_the_guesses_of_others_once_and_with_chosen_pages(
    model: Model, chance: random.Random
) -> None:
    draft = model.as_draft()
    draft.set_draft_context(3 * PAGE)
    sequence = new_sequence(random_tokens(chance, 6 * PAGE + 20))
    level = Level(model, Level(draft, NoDraft(), length=1))
    advance(level, sequence, 2)
    inner = level.drafter
    assert isinstance(inner, Level)

    def rows_and_bytes() -> tuple[int, int]:
        before = inner.stats.rows, inner.stats.cache_bytes_read
        inner.propose([DraftRequest(sequence, 1)])
        return inner.stats.rows - before[0], inner.stats.cache_bytes_read - before[1]

    alone, usual = rows_and_bytes()
    sequence.guess(random_tokens(chance, 4))
    first, read_first = rows_and_bytes()
    again, read_again = rows_and_bytes()
    assert (alone, first, again) == (1, 4, 1)  # it has read the last token before them
    assert max(read_first, read_again) == usual
    sequence.forget_guesses(4)


# --- The choice -----------------------------------------------------------------------------------


def test_a_draft_reads_the_first_page_the_best_and_the_newest(chance: random.Random) -> None:
    """The best of all strips together, but at most twice as many of a strip as on average."""
    strips, context = 3, Context(0)
    for _ in range(30):  # the choices of one context, one after the other
        pages = chance.randrange(6, 40)
        most = chance.randrange(3, pages)
        start = (pages - 1) * PAGE + chance.randrange(PAGE)
        weights = np.random.default_rng(chance.getrandbits(32)).random((strips, pages), np.float32)
        weights[0] *= chance.choice([0.1, 0.5, 100.0])  # of 100, it has as many as it may
        weighed = chance.randrange(pages - 5, pages + 1)
        weights[:, weighed:] = 0.0
        testing.weigh_pages(context, np.ascontiguousarray(weights[:, :weighed]))
        chosen = testing.draft_pages(context, strips, start, most)
        assert chosen is not None
        newest, mean = {pages - 2, pages - 1}, most - 2
        limit = min(2 * mean, pages - 3) - 1
        best = sorted(
            (
                (weights[strip, page], page, -strip)
                for strip in range(strips)
                for page in _best(weights[strip], pages - 2, limit)
            ),
            reverse=True,
        )[: strips * (mean - 1)]
        for strip, found in enumerate(chosen):
            assert found == sorted({0, *(page for _, page, at in best if at == -strip), *newest})
        assert sum(map(len, chosen)) == strips * most


def _best(weights: NDArray[np.float32], end: int, count: int) -> list[int]:
    """The pages of most weight, but the first; of equal ones, the newer."""
    return sorted(range(1, end), key=lambda page: (-weights[page], -page))[:count]


def test_without_weights_the_newest_pages_are_read() -> None:
    other = Context(0)
    testing.weigh_pages(other, np.ones((2, 20), np.float32))  # of another number of strips
    for context in (Context(0), other):
        found = testing.draft_pages(context, 3, 20 * PAGE, 6)
        assert found == 3 * [[0, 16, 17, 18, 19, 20]]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_draft_reads_at_least_the_first_and_the_newest_pages(most: int) -> None:
    assert testing.draft_pages(Context(0), 3, 20 * PAGE, most) == 3 * [[0, 19, 20]]


@pytest.mark.parametrize(("pages", "most"), [(5, 5), (3, 4), (1, 3), (30, 0)])
def test_short_contexts_and_unlimited_drafts_read_everything(pages: int, most: int) -> None:
    assert testing.draft_pages(Context(0), 2, pages * PAGE - 1, most) is None


def test_a_choice_holds_until_the_weights_change() -> None:
    context = Context(0)
    weights = np.zeros((1, 12), np.float32)
    weights[0, 3] = 1.0
    testing.weigh_pages(context, weights)
    assert testing.draft_pages(context, 1, 12 * PAGE - 1, 4) == [[0, 3, 10, 11]]
    assert testing.draft_pages(context, 1, 12 * PAGE, 4) == [[0, 3, 10, 11, 12]]  # a page more
    weights[0, 5] = 2.0
    testing.weigh_pages(context, weights)
    assert testing.draft_pages(context, 1, 12 * PAGE, 4) == [[0, 5, 11, 12]]


# --- Forwards -------------------------------------------------------------------------------------


def test_a_draft_reads_no_other_pages_and_exact_rows_read_all(
    model: Model, chance: random.Random
) -> None:
    draft = model.as_draft()
    for each in (model, draft):
        each.set_draft_context(4 * PAGE)
    sequence, read = _drafted(model, random_tokens(chance, 10 * PAGE + 5))
    context, start = model.context(sequence), len(sequence.tokens) - 1
    unread = set(range(11)) - read
    assert unread, "choose another seed"
    expected = _draft_logits(draft, sequence)
    for page in unread:
        testing.poison(model.cache, context.slot, page, NAN)
    np.testing.assert_array_equal(_draft_logits(draft, sequence), expected)
    model.forward([Rows(context, start, sequence.tokens[start:], 1)])
    assert np.isnan(model.decoder.logits()).all(), "an exact row did not read every page"


def test_a_draft_reads_each_page_of_its_choice(model: Model, chance: random.Random) -> None:
    draft = model.as_draft()
    draft.set_draft_context(4 * PAGE)
    prompt = random_tokens(chance, 10 * PAGE + 5)
    sequence, read = _drafted(model, prompt)
    expected = _draft_logits(draft, sequence)
    for page in read:
        testing.poison(model.cache, model.context(sequence).slot, page, NAN)
        assert (_draft_logits(draft, sequence) != expected).any(), page
        model.release(sequence)
        sequence, _ = _drafted(model, prompt)
        np.testing.assert_array_equal(_draft_logits(draft, sequence), expected)


def _drafted(model: Model, prompt: list[int]) -> tuple[_native.Sequence, set[int]]:
    """A sequence with a few more tokens, and the pages that its draft reads in some strip."""
    sequence = new_sequence(prompt)
    advance(Level(model, NoDraft()), sequence, 3)
    start = len(sequence.tokens) - 1
    chosen = testing.draft_pages(model.context(sequence), STRIPS, start, 4)
    assert chosen is not None
    return sequence, set(chain.from_iterable(chosen))


def _draft_logits(draft: Model, sequence: _native.Sequence) -> NDArray[np.float32]:
    context = draft.context(sequence)
    context.begin(len(sequence.tokens))
    draft.forward([Rows(context, len(sequence.tokens) - 1, sequence.tokens[-1:], 1)])
    return draft.decoder.logits().copy()


def test_a_draft_that_may_read_everything_reads_the_same_bits(
    model: Model, chance: random.Random
) -> None:
    draft = model.as_draft()
    sequence = new_sequence(random_tokens(chance, 9 * PAGE + 30))
    advance(Level(model, NoDraft()), sequence, 2)
    draft.set_draft_context(0)
    expected = _draft_logits(draft, sequence)
    draft.set_draft_context(10 * PAGE)
    np.testing.assert_array_equal(_draft_logits(draft, sequence), expected)
    draft.set_draft_context(9 * PAGE)
    assert (_draft_logits(draft, sequence) != expected).any()


def test_a_draft_counts_what_it_reads_and_what_it_leaves_out(
    model: Model, chance: random.Random
) -> None:
    draft = model.as_draft()
    draft.set_draft_context(4 * PAGE)
    sequence = new_sequence(random_tokens(chance, 12 * PAGE))
    advance(Level(model, NoDraft()), sequence, 1)
    _draft_logits(draft, sequence)
    assert draft.whole_cache_bytes - draft.cache_bytes_read == 9 * model.cache.page_bytes
    assert model.whole_cache_bytes == model.cache_bytes_read


@pytest.mark.parametrize("most", [3, 5, 9, 40])
def test_tokens_do_not_depend_on_what_drafts_read(
    model: Model, chance: random.Random, most: int
) -> None:
    prompt = random_tokens(chance, chance.randrange(3 * PAGE, 12 * PAGE))
    plain = new_sequence(prompt)
    expected = advance(Level(model, NoDraft()), plain, 150)
    model.release(plain)
    draft = model.as_draft()
    for each in (model, draft):
        each.set_draft_context(most * PAGE)
    level = Level(model, Level(draft, NoDraft(), length=chance.randrange(1, 12)))
    sequence = new_sequence(prompt)
    assert advance(level, sequence, 150)[:150] == expected[:150]


def test_a_fork_drafts_with_the_weights_of_its_origin(model: Model, chance: random.Random) -> None:
    model.as_draft().set_draft_context(4 * PAGE)
    prompt = random_tokens(chance, 8 * PAGE + 2)
    sequence, other = new_sequence(prompt), new_sequence(prompt)
    Level(model, NoDraft()).advance([DraftRequest(sequence, 1)])
    model.fork(sequence, other)
    start = len(prompt) - 1
    expected = testing.draft_pages(model.context(sequence), STRIPS, start, 4)
    assert testing.draft_pages(model.context(other), STRIPS, start, 4) == expected
    unweighed = testing.draft_pages(Context(0), STRIPS, start, 4)
    assert expected != unweighed, "choose another seed"
