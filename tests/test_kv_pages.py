"""Pages of the cache: prefix hits, eviction, and no page is lost."""

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native
from specqd._native import testing
from support.cached_models import (
    NAN,
    PAGE,
    VOCABULARY,
    open_model,
    poison_free_pages,
    random_tokens,
)
from support.fixtures import a_model
from support.random_models import Shape

directory = a_model(Shape(vocab=VOCABULARY), seed=1)


@pytest.fixture
def cache(directory: Path) -> _native.KvCache:
    return open_model(directory).cache


def published(cache: _native.KvCache, tokens: list[int], salt: int = 0) -> int:
    """A slot that has written and published these tokens."""
    slot = cache.create()
    assert testing.make_writable(cache, slot, 0, max(len(tokens), 1))
    cache.publish(slot, tokens, salt=salt)
    return slot


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 129, 200])
def test_only_full_pages_are_offered(
    cache: _native.KvCache, length: int, chance: random.Random
) -> None:
    tokens = random_tokens(chance, 400)
    published(cache, tokens[:length])
    taker = cache.create()
    assert cache.attach_prefix(taker, tokens) == length // PAGE * PAGE


@pytest.mark.parametrize("accepted", [0, 63, 64, 150])
def test_pages_behind_the_published_tokens_are_not_offered(
    cache: _native.KvCache, accepted: int, chance: random.Random
) -> None:
    """They hold what a draft wrote, or tokens of which some are not verified."""
    tokens = random_tokens(chance, 256)
    owner, taker = cache.create(), cache.create()
    assert testing.make_writable(cache, owner, 0, 256)
    cache.publish(owner, tokens[:accepted])
    assert cache.attach_prefix(taker, tokens) == accepted // PAGE * PAGE
    places = [testing.page_distance(cache, owner, page) for page in range(4)]
    assert testing.make_writable(cache, owner, accepted, 256)
    assert [testing.page_distance(cache, owner, page) for page in range(4)] == places  # no copies


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 129, 192, 193])
def test_a_prefix_hit_leaves_a_token_to_forward(
    cache: _native.KvCache, length: int, chance: random.Random
) -> None:
    tokens = random_tokens(chance, 256)
    published(cache, tokens)
    taker = cache.create()
    assert cache.attach_prefix(taker, tokens[:length]) == (length - 1) // PAGE * PAGE


def test_a_hit_ends_at_the_first_page_that_differs(
    cache: _native.KvCache, chance: random.Random
) -> None:
    tokens = random_tokens(chance, 256)
    published(cache, tokens)
    for at in (0, 63, 64, 150, 191):
        changed = [*tokens[:at], (tokens[at] + 1) % VOCABULARY, *tokens[at + 1 :]]
        taker = cache.create()
        assert cache.attach_prefix(taker, changed) == at // PAGE * PAGE
        cache.release(taker)


def test_a_salt_keeps_prefixes_apart(cache: _native.KvCache, chance: random.Random) -> None:
    tokens = random_tokens(chance, 200)
    published(cache, tokens, salt=1)
    for salt, positions in ((0, 0), (2, 0), (1, 192), (1 << 63, 0)):
        taker = cache.create()
        assert cache.attach_prefix(taker, tokens, salt=salt) == positions


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64, of which the cache's hash consists."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def colliding_pages() -> tuple[list[int], list[int]]:
    """Two first pages with equal hashes, whose last two tokens differ.

    The hash takes 32 bits per token, so two states with equal upper 32 bits become equal by the
    next token. Among 2^18 second-to-last tokens there are such pairs (birthday paradox).
    """
    with np.errstate(over="ignore"):
        state = mixed(np.array([0x9E3779B97F4A7C15], np.uint64))
        for _ in range(1 + 62):
            state = mixed(state)  # no parent, then tokens 0
        states = mixed(state ^ np.arange(1 << 18, dtype=np.uint64))
    order = np.argsort(states >> np.uint64(32), kind="stable")
    upper = (states >> np.uint64(32))[order]
    [*_, at] = np.flatnonzero(upper[1:] == upper[:-1])
    a, b = order[at], order[at + 1]
    last = int(states[a] ^ states[b])
    assert last < 1 << 32
    signed = last - (1 << 32) if last >= 1 << 31 else last
    return [0] * 62 + [int(a), 0], [0] * 62 + [int(b), signed]


def test_pages_with_equal_hashes_and_other_tokens_are_not_confused(cache: _native.KvCache) -> None:
    first, second = colliding_pages()
    assert first != second
    rest = list(range(2 * PAGE))
    slots = [cache.create() for _ in range(2)]
    for slot, page in zip(slots, (first, second), strict=True):
        assert testing.make_writable(cache, slot, 0, 3 * PAGE)
        cache.publish(slot, [*page, *(t + slot for t in rest)])
    for i, (slot, page) in enumerate(zip(slots, (first, second), strict=True)):
        taker = cache.create()
        # If the second page is found too, the hash has changed: find new collisions.
        assert cache.attach_prefix(taker, [*page, *(t + slot for t in rest), 0]) == (192, 0)[i]
        cache.release(taker)
    # Later pages of the second sequence must not be found after the first page of the first.
    taker = cache.create()
    assert cache.attach_prefix(taker, [*first, *(t + slots[1] for t in rest), 0]) == PAGE


def test_prefixes_are_evicted_from_their_ends(directory: Path, chance: random.Random) -> None:
    """A page is useless without the pages before it."""
    cache = open_model(directory, pages=6).cache
    tokens = random_tokens(chance, 5 * PAGE)
    cache.release(published(cache, tokens[: 4 * PAGE]))
    assert cache.free_pages == 6
    slot = cache.create()
    assert testing.make_writable(cache, slot, 0, 3 * PAGE)  # takes two free pages and one published
    taker = cache.create()
    assert cache.attach_prefix(taker, tokens) == 3 * PAGE


def test_an_evicted_prefix_can_be_published_again(directory: Path, chance: random.Random) -> None:
    cache = open_model(directory, pages=2).cache
    tokens = random_tokens(chance, PAGE + 1)
    cache.release(published(cache, tokens[:PAGE]))
    other = cache.create()
    for _ in range(2):  # takes all pages, then has them
        assert testing.make_writable(cache, other, 0, 2 * PAGE)
    cache.release(other)
    assert cache.attach_prefix(cache.create(), tokens) == 0
    cache.release(published(cache, tokens[:PAGE]))
    assert cache.attach_prefix(cache.create(), tokens) == PAGE


def test_pages_without_a_prefix_are_taken_first(directory: Path, chance: random.Random) -> None:
    cache = open_model(directory, pages=3).cache
    tokens = random_tokens(chance, PAGE + 1)
    cache.release(published(cache, tokens[:PAGE]))
    for _ in range(3):
        slot = cache.create()
        assert testing.make_writable(cache, slot, 0, 2 * PAGE)
        cache.release(slot)
    assert cache.attach_prefix(cache.create(), tokens) == PAGE


def test_a_released_slot_is_unknown(cache: _native.KvCache, chance: random.Random) -> None:
    slot = published(cache, random_tokens(chance, PAGE))
    cache.release(slot)
    with pytest.raises(IndexError):
        cache.release(slot)
    with pytest.raises(IndexError):
        testing.make_writable(cache, slot, 0, 1)
    assert cache.free_pages == cache.total_pages


class MirroredCache:
    """A cache, and the expected contents of each sequence: a word for each page, or None.

    Each write fills a page with a new word, so the word identifies the page, and a page that is
    shared by mistake or written while shared is detected.
    """

    def __init__(self, cache: _native.KvCache) -> None:
        self.cache = cache
        self.tables: dict[int, list[int | None]] = {}
        self.sequences: dict[int, list[int]] = {}
        self.offered: dict[int, tuple[int, ...]] = {}  # word -> tokens to the end of its page
        self._words = iter(range(1, 1 << 16))

    def create(self, sequence: list[int], length: int) -> None:
        slot = self.cache.create()
        hit = self.cache.attach_prefix(slot, sequence[:length])
        assert hit % PAGE == 0
        assert hit <= (length - 1) // PAGE * PAGE
        table = [int(self.cache.page_bits(slot, page)[0]) for page in range(hit // PAGE)]
        for page, word in enumerate(table):
            assert self.offered[word] == tuple(sequence[: (page + 1) * PAGE])
        self.tables[slot], self.sequences[slot] = list(table), sequence

    def release(self, slot: int) -> None:
        self.cache.release(slot)
        del self.tables[slot], self.sequences[slot]

    def fork(self, slot: int, length: int) -> None:
        copy = self.cache.fork(slot, length)
        self.tables[copy] = self.tables[slot][: -(-length // PAGE)]
        self.sequences[copy] = self.sequences[slot]

    def write(self, slot: int, first: int, last: int) -> None:
        table = self.tables[slot]
        pages = range(first // PAGE, -(-last // PAGE))
        free = self.cache.free_pages
        done = testing.make_writable(self.cache, slot, first, last)
        needed = sum(page >= len(table) or self._is_shared(table[page]) for page in pages)
        if not done:
            assert len(pages) > free
            assert self.cache.free_pages == free
            return
        assert needed <= free
        table += [None] * (pages.stop - len(table))
        for page in pages:
            table[page] = next(self._words)
            testing.poison(self.cache, slot, page, table[page])

    def _is_shared(self, word: int | None) -> bool:
        """Whether a write needs a new page, because the page is shared or absent."""
        return word is None or sum(table.count(word) for table in self.tables.values()) > 1

    def publish(self, slot: int, length: int) -> None:
        tokens = self.sequences[slot][:length]
        self.cache.publish(slot, tokens)
        for page, word in enumerate(self.tables[slot][: length // PAGE]):
            if word is None:
                return
            self.offered.setdefault(word, tuple(tokens[: (page + 1) * PAGE]))

    def release_behind(self, slot: int, position: int) -> None:
        self.cache.release_behind(slot, position)
        passed = min(position // PAGE, len(self.tables[slot]))
        self.tables[slot][:passed] = [None] * passed

    def check(self) -> None:
        held = {word for table in self.tables.values() for word in table if word is not None}
        assert self.cache.free_pages == self.cache.total_pages - len(held)
        for slot, table in self.tables.items():
            for page, word in enumerate(table):
                assert self.cache.has_page(slot, page) == (word is not None)
                if word is not None:
                    words = self.cache.page_bits(slot, page)
                    assert words[0] == words[-1] == word


def test_random_operations_lose_no_page(directory: Path, chance: random.Random) -> None:
    mirrored = MirroredCache(open_model(directory, pages=12).cache)
    tables = mirrored.tables
    beginnings = [random_tokens(chance, PAGE) for _ in range(2)]  # few, so that prefixes are shared
    sequences = [[*a, *b, *c, *a] for a in beginnings for b in beginnings for c in beginnings]
    for _ in range(3000):
        slot = chance.choice(list(tables)) if tables else -1
        length = len(tables[slot]) * PAGE if tables else 0
        match chance.choice(["create", "release", "fork", "write", "write", "publish", "behind"]):
            case "create" if len(tables) < 6:
                mirrored.create(chance.choice(sequences), chance.randint(1, 4 * PAGE))
            case "release" if tables:
                mirrored.release(slot)
            case "fork" if length and len(tables) < 6:
                mirrored.fork(slot, chance.randint(1, length))
            case "write" if tables:
                first = chance.randint(0, min(length, 4 * PAGE)) // PAGE * PAGE
                mirrored.write(slot, first, first + chance.randint(1, 2 * PAGE))
            case "publish" if tables:
                mirrored.publish(slot, chance.randint(0, length))
            case "behind" if length and chance.random() < 0.3:
                mirrored.release_behind(slot, chance.randint(0, length))
        mirrored.check()
    for slot in list(tables):
        mirrored.release(slot)
    mirrored.check()
    last = mirrored.cache.create()
    assert testing.make_writable(mirrored.cache, last, 0, 12 * PAGE)


def test_sequences_that_grow_by_turns_have_their_pages_in_a_row(cache: _native.KvCache) -> None:
    """Attention reads a chunk of keys in one run."""
    slots = [cache.create(), cache.create()]
    pages = testing.CHUNK_POSITIONS // PAGE
    for page in range(pages):
        for slot in slots:
            assert testing.make_writable(cache, slot, page * PAGE, (page + 1) * PAGE)
    words = PAGE * 32  # keys of 16 dimensions are padded
    for slot in slots:
        distances = [testing.page_distance(cache, slot, page) for page in range(pages)]
        assert distances == [page * words for page in range(pages)]


def test_a_full_frame_is_followed_by_an_unused_one(cache: _native.KvCache) -> None:
    """Not by the first page of a frame whose next page is another sequence's."""
    frame = testing.CHUNK_POSITIONS
    growing, other = cache.create(), cache.create()
    assert testing.make_writable(cache, growing, 0, frame)
    assert testing.make_writable(cache, other, 0, 2 * PAGE)
    cache.release_behind(other, PAGE)
    for at in range(frame, 2 * frame, PAGE):
        assert testing.make_writable(cache, growing, at, at + PAGE)
    first, last = (testing.page_distance(cache, growing, at // PAGE) for at in (frame, at))
    assert last - first == (frame // PAGE - 1) * PAGE * 32


def test_only_what_precedes_the_first_position_is_copied(cache: _native.KvCache) -> None:
    poison_free_pages(cache)
    leader = cache.create()
    assert testing.make_writable(cache, leader, 0, 2 * PAGE)
    testing.poison(cache, leader, 1, 7)
    for first, kept in ((PAGE, NAN), (PAGE + 1, 7)):
        fork = cache.fork(leader, 2 * PAGE)
        assert testing.make_writable(cache, fork, first, first + 1)
        assert (cache.page_bits(fork, 1) == kept).all()
        cache.release(fork)
        poison_free_pages(cache)


def test_a_sequence_may_write_its_own_pages_though_none_is_free(directory: Path) -> None:
    cache = open_model(directory, pages=4).cache
    slot = cache.create()
    assert testing.make_writable(cache, slot, 0, 4 * PAGE)
    assert cache.free_pages == 0
    for page in range(4):
        assert testing.make_writable(cache, slot, page * PAGE, (page + 1) * PAGE)


def test_pages_are_copied_to_other_caches_bit_for_bit(
    directory: Path, chance: random.Random
) -> None:
    cache, other = open_model(directory).cache, open_model(directory, pages=3).cache
    slot, copy = published(cache, random_tokens(chance, 200)), other.create()
    for page in range(3):
        testing.poison(cache, slot, page, chance.randrange(1 << 16))
        assert other.append_page(copy, cache.page_bits(slot, page))
    for page in range(3):
        np.testing.assert_array_equal(other.page_bits(copy, page), cache.page_bits(slot, page))
    assert not other.append_page(copy, cache.page_bits(slot, 0))  # no page is free
    assert not other.has_page(copy, 3)


def test_a_page_that_a_sequence_lacks_and_bits_of_another_size_are_refused(
    cache: _native.KvCache, chance: random.Random
) -> None:
    slot = published(cache, random_tokens(chance, 100))
    for page in (-1, 2, 1 << 40):
        with pytest.raises(ValueError, match="no such page"):
            cache.page_bits(slot, page)
        with pytest.raises(ValueError, match="no such page"):
            cache.state_bits(slot, page)
    for words in (0, 1, cache.page_bytes // 2 + 1):
        with pytest.raises(ValueError, match="exactly the words of one page"):
            cache.append_page(slot, np.zeros(words, np.uint16))
    with pytest.raises(ValueError, match="exactly the bytes of one state"):
        cache.restore_state(slot, np.zeros(1, np.uint8))
