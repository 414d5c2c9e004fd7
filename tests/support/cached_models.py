"""Models, sequences and drafts for tests of the cache, and free pages full of NaN."""

import random
from collections.abc import Sequence as SequenceOf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd._native import Context, DraftRequest, Level, Proposal, Rows, Sequence
from specqd.model.model import Machine, Model
from support.fake_model import FakeDrafter
from support.random_models import Shape

PAGE = _native.PAGE_POSITIONS
NAN = 0x7FC0
VOCABULARY = 301
WINDOWED = Shape("mistral", head_dim=32, vocab=VOCABULARY, window=70, is_peaked=True)


def open_model(directory: Path, pages: int = 24) -> Model:
    return Model.open(directory, machine=Machine.choose(1), cache_positions=pages * PAGE)


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def sequence(tokens: SequenceOf[int]) -> Sequence:
    return Sequence(list(tokens), _native.Picker(temperature=0.8, seed=5), len(tokens))


def advance(level: Level, text: Sequence, count: int) -> list[int]:
    """At least `count` new tokens, up to the end of a round."""
    begun = len(text.tokens)
    while (made := len(text.tokens) - begun) < count:
        [step] = level.advance([DraftRequest(text, count - made)])
        assert step.tokens
        text.tokens.extend(step.tokens)
    return text.tokens[begun:]


def logits(model: Model, slot: int, tokens: list[int], start: int = 0) -> NDArray[np.float32]:
    model.forward([Rows(Context(slot), start, tokens[start:], len(tokens) - start)])
    return model.decoder.logits()


def poison_free_pages(cache: _native.KvCache) -> None:
    """Fills every free page with NaN, as an earlier sequence might have."""
    slot = cache.create()
    pages = cache.free_pages
    assert cache.make_writable(slot, 0, pages * PAGE)
    for page in range(pages):
        cache.poison(slot, page, NAN)
    cache.release(slot)


class Guessing(FakeDrafter):
    """Proposes random tokens."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def answer(self, request: DraftRequest) -> Proposal:
        length = self._rng.randint(0, min(request.at_most, 12))
        return Proposal(random_tokens(self._rng, length), [0.5] * length)
