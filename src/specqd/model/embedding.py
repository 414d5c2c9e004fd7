"""Computes the vectors of texts: pools the outputs of the final norm.

Knows token ids; knows no texts and no requests.
"""

import math
from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd._native import PAGE_POSITIONS, Context, Rows
from specqd.config.embedding import Pooling
from specqd.errors import TooLongError
from specqd.model.model import Model

Vector = NDArray[np.float64]
_MOST_TEXTS = 32  # of one forward; each takes a page of the cache
_MOST_STATES = 8  # the same for recurrent layers, whose states are large
_SMALLEST_NORM = 1e-12  # as in torch's normalize


@dataclass(slots=True)
class _Reading:
    """A text that has begun: the tokens that are read, and the sum of its pooled rows so far."""

    index: int
    tokens: list[int]
    context: Context
    num_read: int
    sum: Vector


class EmbeddingRun:
    """Texts that become vectors, a forward at a time, in exact precision.

    A vector has the same bits alone and with others, and however its text is divided among
    forwards. Keys and values are in a cache of the run's own, so it takes no page from sequences
    that generate. Raises RequestError for bad tokens, TooLongError for a text that the model cannot
    read or whose keys and values do not fit into memory.
    """

    def __init__(self, model: Model, texts: SequenceOf[SequenceOf[int]], pooling: Pooling) -> None:
        for text in texts:
            model.check_tokens(text)
        longest = max(map(len, texts), default=0)
        self._is_whole = not all(model.config.causal)  # each text must be in one forward
        if self._is_whole and longest > model.max_rows:
            raise TooLongError(
                f"the text has {longest} tokens, and this model, which attends in both directions, "
                f"reads {model.max_rows} at once; shorten the text"
            )
        self._is_mean = pooling == "mean"
        self._cache, self._most_texts = _make_cache(model, longest)
        parts = model.config, model.weights, model.decoder, model.machine, self._cache
        self._model = Model(*parts)
        self._waiting = deque(enumerate(map(list, texts)))
        self._begun: _Reading | None = None  # the text that is read in part
        self._vectors: dict[int, Vector] = {}
        self.num_tokens = sum(map(len, texts))

    @property
    def cache_bytes(self) -> int:
        """Memory that the keys and values may take."""
        states = self._most_texts * self._cache.state_bytes if self._cache.has_states else 0
        return self._cache.total_pages * self._cache.page_bytes + states

    @property
    def is_done(self) -> bool:
        return not self._waiting and self._begun is None

    def vectors(self, dimensions: int | None, *, normalizes: bool) -> NDArray[np.float32]:
        """The first `dimensions` values of each vector, or all, [texts, dimensions]. A vector that
        is shortened is normalised, too."""
        assert self.is_done
        width = self._model.config.hidden_size
        kept = width if dimensions is None else dimensions
        found = np.empty((len(self._vectors), kept), np.float32)
        for index, vector in self._vectors.items():
            part = vector[:kept]
            found[index] = part / _norm(part) if normalizes or kept < width else part
        return found

    def step(self, most_rows: int | None = None) -> None:
        """Runs one forward of at most `most_rows` tokens; None: as many as a forward takes. A text
        that must be in one forward is read whole in any case."""
        parts = self._plan(min(most_rows or self._model.max_rows, self._model.max_rows))
        self._model.forward_hidden(
            [
                Rows(each.context, each.num_read, each.tokens[each.num_read : end], pooled)
                for each, end, pooled in parts
            ]
        )
        hidden, first = self._model.decoder.hidden(), 0
        for each, end, pooled in parts:
            for row in hidden[first : first + pooled]:  # one after the other, in any division
                each.sum += row
            first += pooled
            each.num_read = end
            if end < len(each.tokens):
                self._begun = each
            else:
                self._finish(each)

    def _plan(self, most: int) -> list[tuple[_Reading, int, int]]:
        """The texts of the next forward: up to which token, and how many rows are pooled."""
        parts: list[tuple[_Reading, int, int]] = []
        room = most
        while room > 0 and len(parts) < self._most_texts:
            if (each := self._next(room, is_first=not parts)) is None:
                break
            left = len(each.tokens) - each.num_read
            count = left if self._is_whole else min(left, room)
            pooled = count if self._is_mean else int(count == left)
            parts.append((each, each.num_read + count, pooled))
            room -= count
        return parts

    def _next(self, room: int, *, is_first: bool) -> _Reading | None:
        """The text that has begun, or else a new one; None: no text is left, or it must be whole
        and does not fit."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            return begun
        if not self._waiting:
            return None
        index, tokens = self._waiting[0]
        if self._is_whole and not is_first and len(tokens) > room:
            return None
        self._waiting.popleft()
        sums = np.zeros(self._model.config.hidden_size)
        return _Reading(index, tokens, Context(self._cache.create()), 0, sums)

    def _finish(self, reading: _Reading) -> None:
        """Keeps the vector of a text that is read to its end."""
        self._cache.release(reading.context.slot)
        count = len(reading.tokens) if self._is_mean else 1
        self._vectors[reading.index] = reading.sum / count


def _make_cache(model: Model, longest: int) -> tuple[_native.KvCache, int]:
    """A cache for the longest text and for short ones beside it, and the most texts at once."""
    probe, available = _native.KvCache(model.decoder, 1), _native.usable_memory()
    most_texts = _MOST_STATES if probe.has_states else _MOST_TEXTS
    pages = -(-longest // PAGE_POSITIONS)
    needed = pages * probe.page_bytes + (probe.state_bytes if probe.has_states else 0)
    if 0 <= available < needed:
        raise TooLongError(
            f"the keys and values of a text of {longest} tokens need {needed / 1e9:.1f} GB of "
            f"memory and {available / 1e9:.1f} GB are available; shorten the text"
        )
    pages += most_texts + -(-model.max_rows // PAGE_POSITIONS)
    states = most_texts if probe.has_states else 0
    return _native.KvCache(model.decoder, pages, states), most_texts


def _norm(vector: Vector) -> float:
    """The Euclidean norm, whose bits depend on no instruction set."""
    return max(math.sqrt(math.fsum(vector * vector)), _SMALLEST_NORM)
