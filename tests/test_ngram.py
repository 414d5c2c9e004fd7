"""The n-gram drafter's index against a search by brute force."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specqd._native import testing

GRAMS = (8, 4, 2, 1)
DOUBT = 2.0

tokens = st.integers(0, 2)
sequences = st.lists(tokens, max_size=60)
guesses = st.lists(tokens, max_size=12)
splits = st.lists(st.integers(0, 60), max_size=4)
corpora = st.lists(st.lists(tokens, max_size=40), max_size=3)


# --- By brute force -------------------------------------------------------------------------------


def match(sequence: list[int], end: int, context: list[int]) -> int:
    """Counts the tokens before `end` that equal those at the end of the context."""
    length = 0
    while (
        length < min(end, len(context), testing.LONGEST_MATCH)
        and sequence[end - 1 - length] == context[-1 - length]
    ):
        length += 1
    return length


def places_of(sequence: list[int], ends: list[int], context: list[int]) -> list[tuple[int, int]]:
    """(match, end) of the places that speak, the leader first."""
    matches = [(match(sequence, end, context), end) for end in ends]
    chosen: list[tuple[int, int]] = []
    for gram in GRAMS:
        latest = sorted(
            (p for p in matches if p[0] >= gram and p not in chosen), key=lambda p: -p[1]
        )
        chosen += latest[: testing.MOST_PLACES - len(chosen)]
    return sorted(chosen, reverse=True)


def follow(
    places: list[tuple[int, int]], sequence: list[int], most: int
) -> tuple[list[int], list[float]]:
    """Continues `sequence` as the leading place does, and counts how far the others agree."""
    sequence, proposed, confidences = list(sequence), [], []

    def weight(places: list[tuple[int, int]]) -> float:
        return sum(length**1.5 for length, _ in places)

    while places and len(proposed) < most and sequence[places[0][1]] >= 0:
        token = sequence[places[0][1]]
        agreeing = [p for p in places if sequence[p[1]] == token]
        confidences.append(weight(agreeing) / (weight(places) + DOUBT))
        places = [(min(n + 1, testing.LONGEST_MATCH), end + 1) for n, end in agreeing]
        proposed.append(token)
        sequence.append(token)
    return proposed, confidences


def expected(
    sequence: list[int], guesses: list[int], most: int, corpus: list[list[int]] | None = None
) -> tuple[list[int], list[float]]:
    context = sequence + guesses
    own = places_of(sequence, list(range(1, len(sequence))), context)
    if corpus:
        joined = [token for document in corpus for token in [*document, -1]]
        ends = [i for i in range(1, len(joined)) if joined[i] >= 0 and joined[i - 1] >= 0]
        other = places_of(joined, ends, context)
        if other and (not own or other[0][0] > own[0][0]):
            return follow(other, joined, most)
    return follow(own, context, most)


def index_of(*documents: list[int]) -> testing.NgramIndex:
    index = testing.NgramIndex()
    for document in documents:
        index.append(document)
        index.end_text()
    return index


def assert_same(
    found: tuple[list[int], list[float]], wanted: tuple[list[int], list[float]]
) -> None:
    assert found[0] == wanted[0]
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5)


# --- The index ------------------------------------------------------------------------------------


@given(sequences, guesses, splits, st.integers(0, 20))
def test_proposes_what_a_search_by_brute_force_proposes(
    sequence: list[int], guesses: list[int], splits: list[int], most: int
) -> None:
    index, start = testing.NgramIndex(), 0
    for end in [*sorted(splits), len(sequence)]:
        index.append(sequence[start:end])
        start = max(start, end)
        known = sequence[:start]
        assert_same(index.propose(guesses, most), expected(known, guesses, most))


@given(sequences, guesses, corpora, st.integers(0, 20))
def test_corpus_is_asked_where_its_match_is_longer(
    sequence: list[int], guesses: list[int], corpus: list[list[int]], most: int
) -> None:
    index = testing.NgramIndex()
    index.append(sequence)
    found = index.propose(guesses, most, index_of(*corpus))
    assert_same(found, expected(sequence, guesses, most, corpus))


@given(st.lists(st.integers(0, 5), min_size=2, max_size=40))
def test_first_token_followed_the_latest_of_the_longest_matches(sequence: list[int]) -> None:
    if Counter(sequence)[sequence[-1]] > testing.MOST_PLACES:
        return  # only the latest of them are looked at
    index = testing.NgramIndex()
    index.append(sequence)
    longest = max((match(sequence, end, sequence), end) for end in range(1, len(sequence)))
    proposed, confidences = index.propose([], 1)
    assert proposed == ([sequence[longest[1]]] if longest[0] else [])
    assert all(0.0 < confidence < 1.0 for confidence in confidences)


@given(sequences, st.lists(guesses, max_size=5))
def test_guesses_leave_no_trace(sequence: list[int], guessed: list[list[int]]) -> None:
    index, untouched = testing.NgramIndex(), testing.NgramIndex()
    for at, token in enumerate(sequence):
        index.append([token])
        untouched.append([token])
        for guess in guessed:
            index.propose(guess, 8)
        assert len(index) == at + 1
        assert index.propose([], 8) == untouched.propose([], 8)
    assert index.bytes == untouched.bytes


def test_no_match_reaches_over_the_end_of_a_text() -> None:
    corpus = index_of([1, 2], [3, 4], [])
    own = testing.NgramIndex()
    own.append([1, 2])
    assert own.propose([], 8, corpus) == ([], [])
    assert own.propose([3], 8, corpus)[0] == [4]


@pytest.mark.parametrize("vocabulary", [1, 40, 150_000])
def test_memory_grows_with_the_text_and_no_faster(
    vocabulary: int, rng: np.random.Generator
) -> None:
    index = testing.NgramIndex()
    most = 4 + 4 * (4 + 32 / 3)
    for count in (100, 1000, 40_000):
        index.append(rng.integers(0, vocabulary, count).tolist())
        assert index.bytes <= 2 * most * len(index) + 1024, "vectors reserve twice what they hold"


def test_a_long_run_of_one_token_is_asked_in_bounded_time() -> None:
    """A search that looked at every place, or at whole matches, would take minutes."""
    index = testing.NgramIndex()
    index.append([7] * 300_000)
    for _ in range(20_000):
        assert len(index.propose([7, 7], 4)[0]) == 4


def test_tokens_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        testing.NgramIndex().append([3, -1])
