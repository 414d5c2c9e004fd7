"""Markdown on a terminal: drawn while it grows as it is drawn at once, and nothing is lost."""

import re
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from specqd.cli import markdown, screens
from support.page_answers import MARKDOWN
from support.terminal_screen import TerminalScreen

COLUMNS, ROWS = 50, 12
BLOCKS = (
    "# A title\n\n",
    "Some *words* and **more words** with `code`, which need more than one line of it.\n\n",
    "A poem\nof two lines\n\n",
    "- one\n- two\n  - inner\n- three, which needs more than one line of this terminal\n\n",
    "1. first\n2. second\n\n   more of it\n\n3. third\n\n",
    "1. lazy\n1. numbers\n1. here\n\n",
    "```python\ndef area(r):\n\n    return 3 * r\n```\n\n",
    "```\n" + "".join(f"line {i} of code\n" for i in range(20)) + "```\n\n",
    "> a quote\n> of two lines\n\n",
    "| a | b |\n|---|--:|\n| 1 | 2 |\n\n",
    "Heading\n---\ntext\n",
    "<b>tags</b> &amp; [a link](https://example.com/a) 模型 ~~gone~~\n\n",
    "---\n\n",
    "[1]: https://example.com/definition\n\n",
)


@pytest.fixture(autouse=True)
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "_size_of", lambda stream: (COLUMNS, ROWS))
    monkeypatch.setattr(markdown, "columns", lambda: COLUMNS)
    monkeypatch.setattr(markdown, "DRAW_S", -1.0)  # at every piece
    monkeypatch.setenv("TERM", "xterm-256color")


def drawn(pieces: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of the terminal after an answer in these pieces."""
    screen = TerminalScreen(COLUMNS, ROWS)
    monkeypatch.setattr(sys, "stdout", screen)
    rendered = markdown.Rendered()
    for piece in pieces:
        rendered.feed(piece)
    rendered.finish()
    lines = screen.lines
    assert lines.pop() == "", "the cursor is not on a line of its own"
    return lines


def test_a_growing_text_ends_as_if_drawn_at_once(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(12):
        text = "".join(rng.choice(BLOCKS, size=int(rng.integers(1, 7))).tolist())
        cuts = sorted(rng.integers(0, len(text) + 1, int(rng.integers(0, 40))).tolist())
        ends = zip([0, *cuts], [*cuts, len(text)], strict=True)
        grown = drawn([text[begin:end] for begin, end in ends], monkeypatch)
        assert grown == drawn([text], monkeypatch), text
        assert words_of("\n".join(grown)) >= words_of(text) - {"python"}, text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1. one\n\n1. two\n", [" 1 one", "", " 2 two"]),
        ("1. one\n\n1) another\n", [" 1 one", "", " 1 another"]),
        ("1. one\n\n2\n\n1. another\n", [" 1 one", "", "2", "", " 1 another"]),
    ],
)
def test_items_are_numbered_as_if_drawn_at_once(
    text: str, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert drawn(list(text), monkeypatch) == drawn([text], monkeypatch) == shown


def words_of(text: str) -> set[str]:
    return set(re.findall("[a-zA-Z0-9模型]+", text))


def test_each_block_has_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn([MARKDOWN], monkeypatch) == [
        "Reversing",
        "",
        "A short answer with code and a link",
        "(https://example.com/a?b=c&d=e).",
        "",
        " 1 first",
        " 2 second",
        "    • nested",
        "",
        "python ───────────────────────────────────────────",
        "def area(r):",
        "    return 3 * r",
        "──────────────────────────────────────────────────",
        "",
        " a  b",
        " ────",
        " 1  2",
    ]


def test_long_lines_of_code_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "x=" + "1+" * 40 + "1"
    text = f"```python\n{line}\n```\n"
    lines = drawn([text[:40], text[40:]], monkeypatch)
    assert "".join(lines[1:-1]) == line


def test_text_has_no_way_to_control_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "a\x1b[2Jb &#27;[2J `\x9b31m` [x](http://a/\x1b]0;t\x07) \u202e\n\n"
    hostile += "```&#27;[2J\nc\x1b[1A\n```\n"
    lines = drawn(list(hostile), monkeypatch)  # the screen refuses controls
    assert "a[2Jb &#27;[2J" in lines[0]


def test_a_list_that_is_longer_than_the_terminal_is_shown_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "".join(f"{i}. item {i}\n" for i in range(1, 41))
    lines = drawn(re.findall(".{1,7}", text, re.DOTALL), monkeypatch)
    assert [line.split() for line in lines] == [[str(i), "item", str(i)] for i in range(1, 41)]


def test_the_reasoning_is_folded_into_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "DRAW_S", -1.0)
    monkeypatch.setattr(screens, "columns", lambda: COLUMNS)
    screen = TerminalScreen(COLUMNS, ROWS)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(screens, "has_colour", lambda stream: False)
    folded = screens.Folded("/reasoning shows it")
    for i in range(100):
        folded.feed(f"thought {i}, ")
        assert screen.lines[0] == "thinking"
        assert len(screen.lines) <= 4
        assert f"thought {i}," in " ".join(each.strip() for each in screen.lines)
    folded.finish()
    line, *rest = screen.lines
    assert re.fullmatch(r"thought for \d+\.\d s; /reasoning shows it", line)
    assert rest == ["", ""]
