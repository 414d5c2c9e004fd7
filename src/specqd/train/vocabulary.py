"""Chooses the tokens that a head knows. Knows ids and counts only."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def frequent_ids(
    texts: Iterable[Sequence[int]], size: int, count: int, forced: Iterable[int]
) -> Ids:
    """The `count` commonest ids below `size`, ascending. `forced` ones come first; equally common
    ones by id."""
    counts = np.zeros(size, np.int64)
    for text in texts:
        np.add.at(counts, np.asarray(text, np.int64), 1)
    counts[[each for each in forced if 0 <= each < size]] = np.iinfo(np.int64).max
    return np.sort(np.argsort(-counts, kind="stable")[:count])


def offsets_of(ids: Ids) -> Ids:
    """`d2t`: what is added to a head's token to get the model's."""
    return ids - np.arange(len(ids))


def known_by_target(ids: Ids, size: int) -> NDArray[np.bool_]:
    """`t2d`: whether the head knows each of the model's tokens."""
    return np.isin(np.arange(size), ids)
