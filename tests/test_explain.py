"""The level that first proposed a token, and how a terminal and HTML show it safely."""

import json
import re
from collections.abc import Sequence as SequenceOf
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from specqd import LLM, SamplingParams, _native
from specqd._native import DraftRequest, Level, NoDraft, Proposal, Sequence
from specqd.cli import main
from specqd.cli.explain import Span, as_html, explained, for_terminal, legend
from specqd.cli.terminal import harmless
from support.fake_model import FakeModel, next_by_hash, often
from support.fixtures import an_llm

VOCABULARY = 64
TARGET = next_by_hash(VOCABULARY)
HOSTILE = "<script>alert('1')</script>&\"\x1b[31m\u202e"
SPANS = [Span("def", 0, 0.5), Span(HOSTILE, 1, 0.25), Span("\n", 1, 0.75), Span("x", 2, 1.0)]
CHAIN = ["bf16", "<b>fp4</b>\x1b", "ngram"]


llm = an_llm("small_model", "fp4:k=3")


# --- Depths -----------------------------------------------------------------------------------


def test_depths_default_to_the_proposer() -> None:
    assert Proposal([5, 6], [0.5, 0.5]).depths_of([5, 7]) == [1, 0]
    assert Proposal([5, 6], [0.5, 0.5], depths=[1, 0]).depths_of([5, 7]) == [2, 0]


@pytest.mark.parametrize(
    ("verified", "depths"), [([9], [0]), ([5, 9], [2, 0]), ([5, 6, 7, 9], [2, 1, 1, 0])]
)
def test_accepted_tokens_keep_their_proposers_depth(verified: list[int], depths: list[int]) -> None:
    assert Proposal([5, 6, 7], [0.9] * 3, depths=[1, 0, 0]).depths_of(verified) == depths


class Recorder:
    """Passes proposals on and records them."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self.levels = level.levels
        self.proposals: list[Proposal] = []
        self.values = level.values
        self.observe, self.release = getattr(level, "observe", None), level.release

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        proposals = self.level.propose(requests)
        self.proposals += proposals
        return proposals


def test_depths_name_the_innermost_proposer_of_an_accepted_token() -> None:
    exact = FakeModel(TARGET)
    middle_rule = often(TARGET, next_by_hash(VOCABULARY, salt=1), percent=80)
    inner_rule = often(middle_rule, next_by_hash(VOCABULARY, salt=2), percent=60)
    inner = Recorder(Level(FakeModel(inner_rule), NoDraft(), length=2))
    middle = Recorder(Level(exact.as_draft(middle_rule), inner, length=6))
    level = Level(exact, middle)
    sequence = Sequence([1, 2, 3], _native.Sampler(), 3)
    seen = set()
    while len(sequence.tokens) < 150:
        [step] = level.advance([DraftRequest(sequence, 9)])
        assert step.depths[-1] == 0
        assert len(step.depths) == len(step.tokens)
        proposal = middle.proposals[-1]
        assert step.depths[:-1] == [d + 1 for d in proposal.depths[: len(step.tokens) - 1]]
        prefix = list(sequence.tokens)
        for token, depth in zip(step.tokens, step.depths, strict=True):
            if depth > 0:
                assert token == middle_rule(tuple(prefix))
            if depth == 2:
                assert token == inner_rule(tuple(prefix))
            prefix.append(token)
        seen |= set(step.depths)
        sequence.tokens.extend(step.tokens)
    assert seen == {0, 1, 2}


# --- Spans ------------------------------------------------------------------------------------


def test_spans_are_the_text(llm: LLM, seed: int) -> None:
    params = SamplingParams(max_tokens=60, temperature=0.9, seed=seed)
    [completion] = llm.generate("héllo 🙂", params)[0].completions
    spans = explained(completion, llm.tokenizer)
    assert "".join(span.text for span in spans) == completion.text
    assert [span.depth for span in spans] == [origin.depth for origin in completion.origins]


def test_spans_end_where_a_stop_string_cut(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, temperature=0)
    text = llm.generate("ab", params)[0].text
    stop = text[9:12]
    cut = SamplingParams(max_tokens=40, temperature=0, stop=[stop])
    [completion] = llm.generate("ab", cut)[0].completions
    spans = explained(completion, llm.tokenizer)
    assert "".join(span.text for span in spans) == completion.text == text[: text.index(stop)]


# --- The terminal -----------------------------------------------------------------------------


def test_colours_are_the_only_escape_sequences() -> None:
    shown = for_terminal(SPANS, has_colour=True)
    assert re.findall(r"\x1b\[(\d+)m", shown) == ["32", "0", "36", "0"]
    assert click.unstyle(shown) == "def<script>alert('1')</script>&\"[31m\nx"
    assert "\u202e" not in shown


def test_without_colour_marks_tell_levels_apart() -> None:
    shown = for_terminal(SPANS, has_colour=False)
    assert shown == "<0>def<1><script>alert('1')</script>&\"[31m\n<2>x"


@pytest.mark.parametrize("has_colour", [False, True])
def test_the_legend_counts_every_level(has_colour: bool) -> None:
    line = legend(SPANS, CHAIN, has_colour=has_colour)
    assert "bf16 itself: 1 tokens, 25%" in line
    assert "fp4</b>: 2 tokens, 50%" in line
    assert "ngram: 1 tokens, 25%" in line
    assert ("\x1b" in line) == has_colour
    assert "\n" not in line


# --- The page ---------------------------------------------------------------------------------


class Page(HTMLParser):
    """The elements of a page, and the text and titles of those in <pre>."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.spans: list[tuple[str | None, str | None]] = []
        self.text = ""
        self._is_pre = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._is_pre |= tag == "pre"
        if self._is_pre and tag == "span":
            self.spans.append((dict(attrs).get("class"), dict(attrs).get("title")))

    def handle_endtag(self, tag: str) -> None:
        self._is_pre &= tag != "pre"

    def handle_data(self, data: str) -> None:
        self.text += data if self._is_pre else ""


def test_model_text_stays_text_in_html() -> None:
    html = as_html(f"prompt {HOSTILE}", SPANS, CHAIN, f"heading {HOSTILE}")
    page = Page(html)
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert not {"\x1b", "\u202e"} & set(html)
    clean = "<script>alert('1')</script>&\"[31m"
    assert page.text == f"prompt {clean}def{clean}\nx"


def test_the_page_makes_no_network_requests() -> None:
    html = as_html("", SPANS, CHAIN, "heading")
    page = Page(html)
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "srcset", "style", "action"}
    assert not {"link", "img", "script", "iframe"} & set(page.tags)
    assert "url(" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_hovering_shows_level_and_probability() -> None:
    assert Page(as_html("", SPANS, CHAIN, "heading")).spans[1:] == [
        ("d0", "bf16 itself, probability 0.500"),
        ("d1", "<b>fp4</b>, probability 0.250"),
        ("d1", "<b>fp4</b>, probability 0.750"),
        ("d2", "ngram, probability 1.000"),
    ]


def test_levels_differ_without_colour_too() -> None:
    html = as_html("", SPANS, ["a", "b", "c", "d", "e"], "heading")
    assert len(set(re.findall(r"underline (\w+)", html))) == 4
    assert "prefers-color-scheme: dark" in html


# --- The command ------------------------------------------------------------------------------


def test_the_command_explains(llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    command = ["generate", str(llm.directory), "-p", "ab", "-n", "20", "--threads", "1"]
    command += ["--draft", "fp4:k=3"]
    assert main([*command, "--explain", "--stats", "--explain-html", str(page)]) == 0
    out, err = capsys.readouterr()
    text = llm.generate("ab", SamplingParams(max_tokens=20, temperature=0))[0].text
    assert re.sub("<[01]>", "", out).strip("\n") == harmless(text).strip("\n")
    legend_line, summary, prompt, header, forwards, *rows = err.splitlines()
    assert legend_line.startswith("<0> bf16 itself: ")
    assert summary.startswith("specqd: 20 tokens")
    assert prompt.startswith("prompt: ")
    assert header.split() == ["level", "bf16", "fp4"]
    assert forwards.startswith("forwards ")
    assert rows[-1].startswith("bf16: accepted by position ")
    assert Page(page.read_text(encoding="utf-8")).text.startswith("ab")
    assert main([*command, "--explain", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["origins"]) == len(printed["tokens"])
    assert {each["level"] for each in printed["origins"]} <= {"bf16", "fp4"}
    assert main([*command, "--json"]) == 0
    assert "origins" not in json.loads(capsys.readouterr().out)
