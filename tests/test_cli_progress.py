"""Progress on a terminal: of a prompt that is read, and of work that says nothing for a while."""

import os
import sys
from pathlib import Path

from specqd import LLM, SamplingParams
from specqd.cli.answers import PlainAnswer, write_answer
from specqd.cli.screens import Streamed
from specqd.cli.terminal import ProgressBar
from support.command_line import Run
from support.terminal_session import ENTER, TerminalSession

SILENT_WORK = """
from specqd.cli.terminal import ProgressBar
with ProgressBar("Reading") as bar:
    input()
    bar(3, 4)
    input()
    bar.finish()
    bar(4, 4)
    print("the first token")
    input()
"""


def test_a_stream_reports_each_part_of_its_prompt(small_model: Path) -> None:
    llm = LLM(small_model, "none", threads=1)
    parts: list[tuple[int, int]] = []
    prompt = llm.encode("ab" * 50)
    stream = llm.stream(
        prompt,
        SamplingParams(max_tokens=3, temperature=0, ignore_eos=True),
        on_prompt=lambda read, total: parts.append((read, total)),
    )
    text = "".join(stream)
    assert {total for _, total in parts} == {len(prompt)}
    assert [read for read, _ in parts] == sorted({read for read, _ in parts})
    assert parts[-1] == (len(prompt), len(prompt))
    assert text == llm.generate([prompt], SamplingParams(3, temperature=0, ignore_eos=True))[0].text


def test_a_bar_appears_without_a_call_and_is_gone_after_it_has_finished() -> None:
    with TerminalSession([sys.executable, "-c", SILENT_WORK], os.environ) as session:
        session.expect("Reading")
        session.send(ENTER)
        session.expect("75%")
        session.send(ENTER)
        session.expect("the first token")
        session.send(ENTER)
        assert session.wait() == 0
    assert b"Reading" not in session.raw.partition(b"the first token")[2]


def test_the_bar_of_a_prompt_ends_with_the_first_piece(small_model: Path) -> None:
    class Bar(ProgressBar):
        calls = 0
        ends = 0

        def __call__(self, done: int, total: int) -> None:
            assert not self.ends
            self.calls += 1

        def finish(self) -> None:
            self.ends += 1

    bar = Bar("Reading the prompt")
    stream = LLM(small_model, "none").stream("ab", on_prompt=bar)
    write_answer(stream, PlainAnswer(Streamed()), bar)
    assert bar.calls
    assert bar.ends


def test_statistics_have_the_speed_of_the_prompt(small_model: Path, run: Run) -> None:
    lines = run("generate", small_model, "-p", "ab" * 20, "-n", "3", "--stats")[2].splitlines()
    assert lines[1].startswith("prompt: ")
    assert lines[1].endswith(" tokens/s")


def test_output_of_a_long_prompt_has_no_bar_without_a_terminal(small_model: Path, run: Run) -> None:
    assert "Reading" not in run("generate", small_model, "-p", "ab" * 90, "-n", "3")[2]
