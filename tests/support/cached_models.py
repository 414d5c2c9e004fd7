"""Models, sequences and drafts for tests of the cache, and pages full of NaN."""

import random
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native
from specqd._native import Context, DraftRequest, Level, Proposal, Rows, Sequence, testing
from specqd.model.model import Machine, Model
from support.fake_model import FakeDrafter
from support.random_models import Shape

PAGE = _native.PAGE_POSITIONS
NAN = 0x7FC0
VOCABULARY = 301
WINDOWED = Shape("mistral", head_dim=32, vocab=VOCABULARY, window=70, is_peaked=True)


def open_model(directory: Path, pages: int = 24) -> Model:
    return Model.open(directory, machine=Machine.choose(1), cache_positions=pages * PAGE)


def opened(directory: str) -> Any:
    """A fixture: the model of another fixture's directory, with a new cache for each test."""

    @pytest.fixture
    def model(request: pytest.FixtureRequest) -> Model:
        return open_model(request.getfixturevalue(directory))

    return model


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def new_sequence(tokens: SequenceOf[int]) -> Sequence:
    return Sequence(list(tokens), _native.Sampler(temperature=0.8, seed=5), len(tokens))


def advance(level: Level, sequence: Sequence, count: int) -> list[int]:
    """`count` new tokens, and those of the same round as the last one."""
    begun = len(sequence.tokens)
    while (made := len(sequence.tokens) - begun) < count:
        [step] = level.advance([DraftRequest(sequence, count - made)])
        assert step.tokens
        sequence.tokens.extend(step.tokens)
    return sequence.tokens[begun:]


def logits(model: Model, slot: int, tokens: list[int], start: int = 0) -> NDArray[np.float32]:
    model.forward([Rows(Context(slot), start, tokens[start:], len(tokens) - start)])
    return model.decoder.logits()


def poison_free_pages(cache: _native.KvCache) -> None:
    """Fills every free page with NaN, as an earlier owner could have."""
    slot = cache.create()
    pages = cache.free_pages
    assert testing.make_writable(cache, slot, 0, pages * PAGE)
    for page in range(pages):
        testing.poison(cache, slot, page, NAN)
    cache.release(slot)


class Guessing(FakeDrafter):
    """Proposes random tokens."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def answer(self, request: DraftRequest) -> Proposal:
        length = self._rng.randint(0, min(request.at_most, 12))
        return Proposal(random_tokens(self._rng, length), [0.5] * length)
