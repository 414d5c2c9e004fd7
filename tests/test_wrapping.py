"""Text is broken between words, on a terminal as in the function."""

import os
import random
import sys
from itertools import pairwise

import pytest

from specqd.cli.wrapping import WordWrap
from support.terminal_session import COLUMNS, TerminalSession

WORDS = ["a", "bb", "ccc", "dddd", "of-eleven-", "twenty-letters-long!", "héllo", "模型", "界"]


def wrapped(text: str, columns: int, chance: random.Random) -> str:
    """The text through WordWrap, in random pieces."""
    wrap, shown = WordWrap(lambda: columns), ""
    while text:
        end = chance.randint(1, len(text))
        shown, text = shown + wrap.feed(text[:end]), text[end:]
    return shown + wrap.finish()


def cells(line: str) -> int:
    return sum(2 if "\u4e00" <= character <= "\u9fff" else 1 for character in line)


@pytest.mark.parametrize("columns", range(20, 61))
def test_words_stay_whole_and_lines_fit(chance: random.Random, columns: int) -> None:
    words = chance.choices(WORDS, k=80)
    shown = wrapped(" ".join(words), columns, chance)
    assert max(map(cells, shown.split("\n"))) <= columns
    pieces = shown.split()
    assert "".join(pieces) == "".join(words)
    for piece in pieces:  # a word of wide characters may be broken, others not
        assert piece in words or piece in "模型界"
    lines = shown.split("\n")
    for line, following in pairwise(lines):
        first = following.split()[0] if cells(following[0]) == 1 else following[0]
        assert cells(line) + cells(first) > columns - 1, "a line was broken too early"


def test_own_lines_and_indents_are_kept(chance: random.Random) -> None:
    code = "def f(x):\n    return x\n\n\tdone  now\n"
    assert wrapped(code, 40, chance) == code


def test_a_word_longer_than_a_line_is_left_to_the_terminal(chance: random.Random) -> None:
    assert wrapped("ab " + "x" * 25 + " cd", 10, chance) == "ab " + "x" * 25 + " \ncd"
    assert wrapped("x" * 20 + " cd ef", 10, chance) == "x" * 20 + "\ncd ef"


def test_a_text_without_spaces_is_not_held_back() -> None:
    wrap = WordWrap(lambda: 10)
    assert (wrap.feed("x" * 10), wrap.feed("x"), wrap.feed("x")) == ("", "x" * 11, "x")
    assert wrap.finish() == ""


def test_a_terminal_shows_whole_words(chance: random.Random) -> None:
    words = chance.choices([word for word in WORDS if word.isascii()], k=100)
    code = (
        "from specqd.cli.screens import Streamed\n"
        "screen = Streamed(is_wrapped=True)\n"
        f"for word in {words!r}: screen.feed(word + ' ')\n"
        "screen.finish()\nprint('the end')\n"
    )
    with TerminalSession([sys.executable, "-c", code], os.environ) as session:
        lines = session.expect("the end").split("\r\n")
    assert [word for line in lines for word in line.split()] == words
    assert max(map(len, lines)) <= COLUMNS
    assert len(lines) > 3
