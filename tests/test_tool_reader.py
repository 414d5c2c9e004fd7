"""Tool calls are read equally from pieces of any size, and their markup is not content."""

import itertools
import json
import random
from collections.abc import Sequence

import pytest

from specqd.text import tool_reader
from specqd.text.tool_calls import CALL_MARK, OPENER
from specqd.text.tool_reader import ToolReader
from support.work import Counted, CountedPattern, Work

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "}<\\"é"}}\n</tool_call>'
ARGUMENTS = '{"a": "}<\\"é"}'


def read(text: str, cuts: Sequence[int], *, is_tagged: bool) -> tuple[str, list[tuple[str, str]]]:
    reader = ToolReader({"f", "g"}, is_tagged=is_tagged)
    places = [0, *cuts, len(text)]
    pieces = [p for a, b in itertools.pairwise(places) for p in reader.feed(text[a:b])]
    content, calls = "", list[tuple[str, str]]()
    for piece in pieces + reader.finish():
        if isinstance(piece, str):
            content += piece
            continue
        if piece.name is not None:
            assert piece.index == len(calls)
            calls.append((piece.name, ""))
        name, arguments = calls[piece.index]
        calls[piece.index] = (name, arguments + piece.arguments)
    return content, calls


def check(
    text: str, content: str, calls: list[tuple[str, str]], seed: int, *, is_tagged: bool
) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(8)))
        assert read(text, cuts, is_tagged=is_tagged) == (content, calls), cuts
    assert read(text, range(len(text)), is_tagged=is_tagged) == (content, calls)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (CALL, "", [("f", ARGUMENTS)]),
        (f"hi\n{CALL}\n{CALL}\nbye ", "hi\nbye", [("f", ARGUMENTS)] * 2),
        (' x <tool_ca{"name"\n', ' x <tool_ca{"name"\n', []),
        (
            '<tool_call>{"arguments": {"a": [1]}, "name": "g"}</tool_call>',
            "",
            [("g", '{"a": [1]}')],
        ),
        ('<tool_call>{"name": "g"}</tool_call>', "", [("g", "{}")]),
        (
            '<tool_call>{"name": "g", "arguments": "{\\"a\\": 1}"}</tool_call>',
            "",
            [("g", '{"a": 1}')],
        ),
        (CALL[: -len("\n</tool_call>")], "", [("f", ARGUMENTS)]),
        (CALL[: -len("call>")], "", [("f", ARGUMENTS)]),
        (CALL.replace("\n</tool_call>", "") + CALL, "", [("f", ARGUMENTS)] * 2),
    ],
)
def test_calls_in_tags_are_read_and_the_rest_is_content(
    text: str, content: str, calls: list[tuple[str, str]], seed: int
) -> None:
    check(text, content, calls, seed, is_tagged=True)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call> ',
        "<tool_call>f(1)</tool_call>",
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        "a\n <tool_call>" + "[" * 5000 + "</tool_call>\nb",
        '<tool_call>\n{"name": "f", "argu',
        "a <tool_call",
        "<tool_call>",
    ],
)
def test_text_that_is_not_a_call_stays_content_unchanged(text: str, seed: int) -> None:
    check(text, text, [], seed, is_tagged=True)


def test_arguments_keep_their_spelling(seed: int) -> None:
    cut = CALL[: CALL.index("é")]
    check(cut, "", [("f", '{"a": "}<\\"')], seed, is_tagged=True)
    wrong = '<tool_call>\n{"name": "f", "arguments": {"a": tru\n</tool_call>after'
    check(wrong, "after", [("f", '{"a": tru\n')], seed, is_tagged=True)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "f", "parameters": {"a": {}}}', "", [("f", '{"a": {}}')]),
        (' {"name": "f", "arguments": {}} ', "", [("f", "{}")]),
        (
            '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"b": 1}}',
            "",
            [("f", "{}"), ("g", '{"b": 1}')],
        ),
        ('{"parameters": {}, "name": "f"}', "", [("f", "{}")]),
        ('{"answer": {"name": "f"}} x', '{"answer": {"name": "f"}} x', []),
        ('hi {"name": "f", "parameters": {}}', 'hi {"name": "f", "parameters": {}}', []),
        ('{"name": "f", "parame', '{"name": "f", "parame', []),
        ('{"name": "f", "parameters": {"a": ', "", [("f", '{"a": ')]),
        ("<|python", "<|python", []),
        (" ", " ", []),
    ],
)
def test_json_is_a_call_if_it_names_a_function(
    text: str, content: str, calls: list[tuple[str, str]], seed: int
) -> None:
    check(text, content, calls, seed, is_tagged=False)


def test_a_lone_surrogate_in_a_call_is_passed_on_as_an_escape(seed: int) -> None:
    arguments = '{"a": "\\ud83d", "b": "\\ude00 é"}'
    for spelled in (arguments, json.dumps(arguments)):
        call = f'{{"arguments": {spelled}, "name": "f"}}'
        check(call, "", [("f", arguments)], seed, is_tagged=False)
        check(f"<tool_call>{call}</tool_call>", "", [("f", arguments)], seed, is_tagged=True)


LONG_TEXTS = {
    "spaces": (True, " ", ""),
    "an unknown call": (True, "<tool_call>{", "ab "),
    "no end of a call": (True, CALL[: -len("</tool_call>")], "ab "),
    "calls": (True, "", CALL),
    "calls without ends": (True, "", CALL[: -len("\n</tool_call>")]),
    "begins of calls": (True, "", "<tool_call> "),
    "calls in another order": (True, "", '<tool_call>{"arguments": {}, "name": "f"}</tool_call>'),
    "marked calls": (True, "", '[TOOL_CALLS]f[ARGS]{"a": 1}'),
    "an unknown marked call": (True, "[TOOL_CALLS]h[ARGS]{", "ab "),
    "begins of marked calls": (True, "", "[TOOL_CALLS]f"),
    "untagged spaces": (False, " ", ""),
    "an untagged unknown call": (False, '{"name": "h", ', '"a": 1, '),
    "untagged calls": (False, "", '{"name": "f", "parameters": {}};'),
    "spaces after untagged calls": (False, '{"name": "f", "parameters": {}}', " "),
}


@pytest.mark.parametrize("name", LONG_TEXTS)
@pytest.mark.parametrize("step", [3, 1 << 20])
def test_reading_takes_linear_time(name: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    is_tagged, begin, repeated = LONG_TEXTS[name]
    opener = CALL_MARK if "marked" in name else OPENER

    def work(length: int) -> int:
        text = (begin + (repeated or begin) * length)[:length]
        done = Work()
        with monkeypatch.context() as patched:
            for pattern in ("_HEAD", "_MARKED_HEAD", "_SPACE", "_TAG"):
                counted = CountedPattern(getattr(tool_reader, pattern), done)
                patched.setattr(tool_reader, pattern, counted)
            reader = ToolReader({"f"}, is_tagged=is_tagged, opener=opener)
            for at in range(0, length, step):
                reader.feed(Counted(text[at : at + step], done))
            reader.finish()
        return done.characters

    once, twice = work(20_000), work(40_000)
    assert once >= 20_000
    assert twice < 2.5 * once  # the part of each text that does not repeat costs a constant
