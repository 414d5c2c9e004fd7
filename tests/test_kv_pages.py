"""Pages: which prefixes are found again, which pages make room, and that none is lost."""

import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native
from specqd.model.model import Machine, Model
from support.cached_models import PAGE, VOCABULARY, random_tokens
from support.random_models import Shape, make_model


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), Shape(vocab=VOCABULARY), seed=1)


def open_cache(directory: Path, pages: int) -> _native.KvCache:
    return Model.open(directory, machine=Machine.choose(1), cache_positions=pages * PAGE).cache


@pytest.fixture
def cache(directory: Path) -> _native.KvCache:
    return open_cache(directory, 24)


def publish(cache: _native.KvCache, tokens: list[int]) -> None:
    slot = cache.create()
    assert cache.make_writable(slot, 0, 256)
    cache.publish(slot, tokens)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 127, 128, 129, 200])
def test_only_full_pages_are_offered(
    cache: _native.KvCache, length: int, rng: random.Random
) -> None:
    tokens = random_tokens(rng, 400)
    publish(cache, tokens[:length])
    taker = cache.create()
    assert cache.attach_prefix(taker, tokens) == length // PAGE * PAGE


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 129, 192, 193])
def test_a_prefix_hit_leaves_a_token_to_forward(
    cache: _native.KvCache, length: int, rng: random.Random
) -> None:
    tokens = random_tokens(rng, 256)
    publish(cache, tokens)
    taker = cache.create()
    assert cache.attach_prefix(taker, tokens[:length]) == (length - 1) // PAGE * PAGE


def test_a_hit_ends_at_the_first_page_that_differs(
    cache: _native.KvCache, rng: random.Random
) -> None:
    tokens = random_tokens(rng, 256)
    publish(cache, tokens)
    for at in (0, 63, 64, 150, 191):
        changed = [*tokens[:at], (tokens[at] + 1) % VOCABULARY, *tokens[at + 1 :]]
        taker = cache.create()
        assert cache.attach_prefix(taker, changed) == at // PAGE * PAGE
        cache.release(taker)


def test_a_salt_keeps_prefixes_apart(cache: _native.KvCache, rng: random.Random) -> None:
    tokens = random_tokens(rng, 200)
    slot = cache.create()
    assert cache.make_writable(slot, 0, 200)
    cache.publish(slot, tokens, salt=1)
    for salt, positions in ((0, 0), (2, 0), (1, 192), (1 << 63, 0)):
        taker = cache.create()
        assert cache.attach_prefix(taker, tokens, salt=salt) == positions


def mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64, which the cache's hash is made of."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def colliding_pages() -> tuple[list[int], list[int]]:
    """Two first pages of one hash, whose last two tokens differ.

    The hash takes 32 bits a token, so two states that agree in their upper 32 bits meet in the
    next token: among 2^18 second-to-last tokens, some do (the birthday paradox).
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


def test_pages_of_one_hash_and_other_tokens_are_not_mistaken(cache: _native.KvCache) -> None:
    first, second = colliding_pages()
    assert first != second
    rest = list(range(2 * PAGE))
    slots = [cache.create() for _ in range(2)]
    for slot, page in zip(slots, (first, second), strict=True):
        assert cache.make_writable(slot, 0, 3 * PAGE)
        cache.publish(slot, [*page, *(t + slot for t in rest)])
    for i, (slot, page) in enumerate(zip(slots, (first, second), strict=True)):
        taker = cache.create()
        # If the second page is found too, the hash is another one: make new collisions.
        assert cache.attach_prefix(taker, [*page, *(t + slot for t in rest), 0]) == (192, 0)[i]
        cache.release(taker)
    # The second text's later pages must not be found behind the first text's first page.
    taker = cache.create()
    assert cache.attach_prefix(taker, [*first, *(t + slots[1] for t in rest), 0]) == PAGE


def test_prefixes_make_room_from_their_ends(directory: Path, rng: random.Random) -> None:
    """A page is of no use without those before it."""
    cache = open_cache(directory, 6)
    tokens = random_tokens(rng, 5 * PAGE)
    slot = cache.create()
    assert cache.make_writable(slot, 0, 4 * PAGE)
    cache.publish(slot, tokens[: 4 * PAGE])
    cache.release(slot)
    assert cache.free_pages == 6
    slot = cache.create()
    assert cache.make_writable(slot, 0, 3 * PAGE)  # takes the two free ones and one more
    taker = cache.create()
    assert cache.attach_prefix(taker, tokens) == 3 * PAGE


class MirroredCache:
    """A cache beside lists that say what each sequence should hold: by page a word, or None.

    Every page written is filled with a word of its own, so the word names the page: a page that is
    shared by mistake, or written while shared, shows.
    """

    def __init__(self, cache: _native.KvCache) -> None:
        self.cache = cache
        self.tables: dict[int, list[int | None]] = {}
        self.texts: dict[int, list[int]] = {}
        self.offered: dict[int, tuple[int, ...]] = {}  # word -> tokens to the end of its page
        self._words = iter(range(1, 1 << 16))

    def create(self, text: list[int], length: int) -> None:
        slot = self.cache.create()
        hit = self.cache.attach_prefix(slot, text[:length])
        assert hit % PAGE == 0
        assert hit <= (length - 1) // PAGE * PAGE
        table = [int(self.cache.page_bits(slot, page)[0]) for page in range(hit // PAGE)]
        for page, word in enumerate(table):
            assert self.offered[word] == tuple(text[: (page + 1) * PAGE])
        self.tables[slot], self.texts[slot] = list(table), text

    def release(self, slot: int) -> None:
        self.cache.release(slot)
        del self.tables[slot], self.texts[slot]

    def fork(self, slot: int, length: int) -> None:
        copy = self.cache.fork(slot, length)
        self.tables[copy] = self.tables[slot][: -(-length // PAGE)]
        self.texts[copy] = self.texts[slot]

    def write(self, slot: int, first: int, last: int) -> None:
        table = self.tables[slot]
        pages = range(first // PAGE, -(-last // PAGE))
        free = self.cache.free_pages
        done = self.cache.make_writable(slot, first, last)
        needed = sum(page >= len(table) or self._is_shared(table[page]) for page in pages)
        if not done:
            assert len(pages) > free
            assert self.cache.free_pages == free
            return
        assert needed <= free
        table += [None] * (pages.stop - len(table))
        for page in pages:
            table[page] = next(self._words)
            self.cache.poison(slot, page, table[page])

    def _is_shared(self, word: int | None) -> bool:
        """Whether writing takes a new page: also where there is none."""
        return word is None or sum(table.count(word) for table in self.tables.values()) > 1

    def publish(self, slot: int, length: int) -> None:
        tokens = self.texts[slot][:length]
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


def test_any_operations_lose_no_page(directory: Path, rng: random.Random) -> None:
    mirrored = MirroredCache(open_cache(directory, 12))
    tables = mirrored.tables
    beginnings = [random_tokens(rng, PAGE) for _ in range(2)]  # few, so that prefixes are shared
    texts = [[*a, *b, *c, *a] for a in beginnings for b in beginnings for c in beginnings]
    for _ in range(3000):
        slot = rng.choice(list(tables)) if tables else -1
        length = len(tables[slot]) * PAGE if tables else 0
        match rng.choice(["create", "release", "fork", "write", "write", "publish", "behind"]):
            case "create" if len(tables) < 6:
                mirrored.create(rng.choice(texts), rng.randint(1, 4 * PAGE))
            case "release" if tables:
                mirrored.release(slot)
            case "fork" if length and len(tables) < 6:
                mirrored.fork(slot, rng.randint(1, length))
            case "write" if tables:
                first = rng.randint(0, min(length, 4 * PAGE)) // PAGE * PAGE
                mirrored.write(slot, first, first + rng.randint(1, 2 * PAGE))
            case "publish" if tables:
                mirrored.publish(slot, rng.randint(0, length))
            case "behind" if length and rng.random() < 0.3:
                mirrored.release_behind(slot, rng.randint(0, length))
        mirrored.check()
    for slot in list(tables):
        mirrored.release(slot)
    mirrored.check()
    last = mirrored.cache.create()
    assert mirrored.cache.make_writable(last, 0, 12 * PAGE)
