"""The panels of their heads that drafts read."""

import numpy as np

from specqd import _native

VOCABULARY, PANEL, WINDOW, FIRST = 128_000, 16, 16384, 16384
PANELS = VOCABULARY // PANEL


def test_the_list_is_the_first_ids_the_kept_and_those_of_late(rng: np.random.Generator) -> None:
    partial_head = _native.PartialHead(VOCABULARY)
    kept = [VOCABULARY - 1, VOCABULARY - 2, 90_000, -1, 2 * VOCABULARY]
    partial_head.keep(kept)
    old, new = ([int(i) for i in rng.integers(0, VOCABULARY, n)] for n in (500, WINDOW))
    partial_head.record(old)
    partial_head.record(new)
    expected = {*range(FIRST // PANEL), *(token // PANEL for token in [*kept[:3], *new])}
    assert partial_head.panels(PANELS) == sorted(expected)
    fewer = PANELS // 2  # a smaller model's vocabulary may be padded less
    assert partial_head.panels(fewer) == sorted(panel for panel in expected if panel < fewer)


def test_a_small_vocabulary_is_read_whole() -> None:
    partial_head = _native.PartialHead(301)
    assert partial_head.panels(19) == list(range(19))
    assert partial_head.panels(25) == list(range(25))  # of a draft's larger head
