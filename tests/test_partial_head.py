"""The panels of their heads that drafts read, and the rule that chooses them."""

from collections import deque

import numpy as np
import pytest

from specqd import _native

VOCABULARY, PANEL, WINDOW = 128_000, 16, 16384
PANELS = VOCABULARY // PANEL
PARTS = (32, 16, 8, 4, 2)


def costs(head_share: float, draft_of_target: float = 0.33) -> dict[str, float]:
    """Costs of a draft whose head is this share of its bytes."""
    return {
        "rest_bytes": draft_of_target * (1.0 - head_share),
        "panel_bytes": draft_of_target * head_share / PANELS,
        "panels": PANELS,
        "verify_bytes": 1.0,
    }


def write(
    partial_head: _native.PartialHead,
    picks: list[int],
    *,
    right: float = 0.9,
    rng: np.random.Generator,
) -> None:
    """The target picks; a draft of up to seven tokens is right that often where it can be."""
    at = 0
    while at < len(picks):
        agreed = min(int(rng.geometric(1.0 - right)) - 1, 7)
        part = picks[at : at + agreed + 1]
        proposal = part[:agreed] + [VOCABULARY - 1] * (7 - agreed)
        partial_head.picked(part, proposal)
        at += len(part)


def common(rng: np.random.Generator, count: int) -> list[int]:
    """Ids as merges have them: mostly low, all sizes hold nearly all."""
    return [int(i) for i in rng.geometric(1 / 600, count) % VOCABULARY]


def rare(rng: np.random.Generator, count: int) -> list[int]:
    """Ids from all over the vocabulary, hardly ever one twice."""
    return [int(i) for i in rng.integers(0, VOCABULARY, count)]


def test_the_whole_head_is_read_until_the_text_has_said_what_it_needs() -> None:
    assert _native.PartialHead(VOCABULARY).ids_that_pay(**costs(0.24)) == VOCABULARY


def test_common_ids_let_most_of_a_large_head_out(rng: np.random.Generator) -> None:
    partial_head = _native.PartialHead(VOCABULARY)
    write(partial_head, common(rng, 400), rng=rng)
    assert partial_head.ids_that_pay(**costs(0.24)) <= VOCABULARY // 4


def test_rare_ids_bring_the_whole_head_back(rng: np.random.Generator) -> None:
    partial_head = _native.PartialHead(VOCABULARY)
    write(partial_head, rare(rng, 400), rng=rng)
    assert partial_head.ids_that_pay(**costs(0.24)) == VOCABULARY
    write(partial_head, common(rng, 2000), rng=rng)
    assert partial_head.ids_that_pay(**costs(0.24)) < VOCABULARY
    write(partial_head, rare(rng, 60), rng=rng)
    assert partial_head.ids_that_pay(**costs(0.24)) == VOCABULARY


def test_a_small_head_is_read_whole_whatever_is_written(rng: np.random.Generator) -> None:
    partial_head = _native.PartialHead(VOCABULARY)
    write(partial_head, common(rng, 2000), rng=rng)
    assert partial_head.ids_that_pay(**costs(0.02)) == VOCABULARY


def test_a_size_between_is_chosen_where_the_text_needs_it(rng: np.random.Generator) -> None:
    partial_head = _native.PartialHead(VOCABULARY)
    ids = rng.integers(VOCABULARY // 8, VOCABULARY // 4, 1000)
    write(partial_head, [int(i) for i in ids], rng=rng)
    assert partial_head.ids_that_pay(**costs(0.24)) == VOCABULARY // 4


def test_what_each_size_leaves_out_is_counted_whichever_is_in_force(
    rng: np.random.Generator,
) -> None:
    """Against counting one by one: picks outside a size and not among the last 16,384 tokens."""
    partial_head = _native.PartialHead(VOCABULARY)
    at_first = [partial_head.share_left_out(VOCABULARY // part) for part in PARTS]
    prompt = rare(rng, 4000) + common(rng, 14_000) + rare(rng, 1000)
    partial_head.read(prompt)
    partial_head.panels(VOCABULARY // int(rng.choice(PARTS)), PANELS)
    recent = deque((token // PANEL for token in prompt), maxlen=WINDOW)
    picks = common(rng, 100) + rare(rng, 300)
    rng.shuffle(picks)
    missed = dict.fromkeys(PARTS, 0)
    for pick in picks:
        for part in PARTS:
            missed[part] += pick // PANEL not in recent and pick // PANEL >= PANELS // part
        recent.append(pick // PANEL)
    write(partial_head, picks, rng=rng)
    prior = 32  # picks that the first guess counts for
    for part, guess in zip(PARTS, at_first, strict=True):
        expected = (missed[part] + guess * prior) / (len(picks) + prior)
        assert partial_head.share_left_out(VOCABULARY // part) == pytest.approx(expected)
    assert partial_head.share_left_out(VOCABULARY) == 0.0


def test_the_list_is_the_first_ids_the_kept_and_those_of_late(rng: np.random.Generator) -> None:
    partial_head = _native.PartialHead(VOCABULARY)
    kept = [VOCABULARY - 1, VOCABULARY - 2, 90_000, -1, 2 * VOCABULARY]
    partial_head.keep(kept)
    old, new = rare(rng, 500), rare(rng, WINDOW)
    partial_head.read(old)
    partial_head.read(new[: WINDOW // 2])
    write(partial_head, new[WINDOW // 2 :], rng=rng)
    expected = {*range(-(-5000 // PANEL)), *(token // PANEL for token in [*kept[:3], *new])}
    assert partial_head.panels(5000, PANELS) == sorted(expected)
    fewer = PANELS // 2  # a smaller model's vocabulary may be padded less
    assert partial_head.panels(5000, fewer) == sorted(panel for panel in expected if panel < fewer)


def test_all_ids_are_all_panels() -> None:
    partial_head = _native.PartialHead(301)
    assert partial_head.panels(301, 19) == list(range(19))
    assert partial_head.panels(_native.ALL_IDS, 25) == list(range(25))  # of a draft's larger head
