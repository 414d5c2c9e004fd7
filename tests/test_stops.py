"""Stop strings are found as in the whole text, with work that does not depend on their length."""

import itertools
import random
import sys
from types import FrameType
from typing import Any

import pytest

from specqd.text import stops
from specqd.text.stops import StopFinder
from specqd.text.stream import overlap


def test_a_search_in_pieces_of_any_size_finds_what_a_search_of_the_whole_text_finds(
    seed: int,
) -> None:
    rng = random.Random(seed)
    for _ in range(3000):
        alphabet = "ab" if rng.random() < 0.7 else "abc"
        text = "".join(rng.choices(alphabet, k=rng.randrange(40)))
        wanted = ["".join(rng.choices(alphabet, k=rng.randrange(1, 9))) for _ in range(3)]
        cuts = [0, *sorted(rng.choices(range(len(text) + 1), k=rng.randrange(6))), len(text)]
        finder, begin = StopFinder(wanted), None
        for first, end in itertools.pairwise(cuts):
            begin = finder.feed(text[first:end])
            found = [at for stop in wanted if (at := text[:end].find(stop)) >= 0]
            assert begin == min(found, default=None), (text, wanted, cuts)
            if begin is not None:
                break
            assert finder.held == max(overlap(text[:end], stop) for stop in wanted)


@pytest.mark.parametrize("near", [0, 1, 2])
def test_the_work_grows_with_the_text_and_not_with_the_stops(near: int) -> None:
    """near: how much of the text is the beginning of a stop string."""

    def work(stop_length: int, text_length: int) -> int:
        wanted = [f"{'a' * (stop_length - 5)}{i:05}" for i in range(4)]
        text = (["bcd", "aab", "aaa"][near] * text_length)[:text_length]
        finder, lines = StopFinder(wanted), 0

        def count(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            lines += event == "line"
            return count if frame.f_code.co_filename == stops.__file__ else None

        before = sys.gettrace()
        sys.settrace(count)
        try:
            for at in range(0, len(text), 3):
                finder.feed(text[at : at + 3])
        finally:
            sys.settrace(before)
        return lines

    short = work(64, 4096)
    assert short > 4 * 4096
    assert work(1024, 4096) < 1.5 * short
    assert work(64, 4 * 4096) < 4.1 * short
