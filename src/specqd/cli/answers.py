"""Streams an answer to the terminal, and keeps its text."""

import shutil
import sys
from typing import TYPE_CHECKING

from specqd.cli.terminal import (
    ProgressBar,
    harmless,
    has_colour,
    is_quiet,
    outputs_meet,
    write_text,
)
from specqd.cli.wrapping import WordWrap

if TYPE_CHECKING:
    from specqd.llm import Result, Stream
    from specqd.text.reasoning import Reasoning

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class PlainAnswer:
    """Shows all that the model generates on standard output. is_wrapped: breaks lines on a
    terminal between words."""

    def __init__(self, *, is_wrapped: bool = False) -> None:
        self.text = ""
        self._wrap = WordWrap(_columns) if is_wrapped and sys.stdout.isatty() else None

    def show(self, piece: str) -> None:
        write_text(self._wrap.feed(harmless(piece)) if self._wrap else piece)
        self.text += piece

    def finish(self) -> None:
        """Ends the last line."""
        if self._wrap:
            write_text(self._wrap.finish())
        if not self.text.endswith("\n"):
            write_text("\n")


class RawAnswer(PlainAnswer):
    """Shows the text unchanged. A newline follows on a terminal; if both outputs are one file, the
    newline goes to standard error."""

    def finish(self) -> None:
        if self.text.endswith("\n"):
            return
        if sys.stdout.isatty():
            write_text("\n")
        elif outputs_meet() and not is_quiet():
            print(file=sys.stderr)  # not to stdout: the text stays as it is


class ReasonedAnswer(PlainAnswer):
    """Shows only the answer. The reasoning is shown dimmed on standard error, if that is a
    terminal, and is not kept."""

    def __init__(
        self, reasoning: "Reasoning", *, shows_thoughts: bool, is_wrapped: bool = False
    ) -> None:
        super().__init__(is_wrapped=is_wrapped)
        self._thought_wrap = WordWrap(_columns) if is_wrapped and sys.stderr.isatty() else None
        self._splitter = reasoning.splitter()
        self._shows_thoughts = shows_thoughts
        self._is_thinking = False

    def show(self, piece: str) -> None:
        self._show(*self._splitter.split(piece, is_last=False))

    def finish(self) -> None:
        self._show(*self._splitter.split("", is_last=True))
        self._end_thought()
        super().finish()

    def _show(self, answer: str, thought: str) -> None:
        """Shows new text of the reasoning, which comes first, and of the answer."""
        if thought and self._shows_thoughts:
            self._is_thinking = True
            wrap = self._thought_wrap
            _think(wrap.feed(harmless(thought)) if wrap else harmless(thought))
        if answer:
            self._end_thought()
            super().show(answer)

    def _end_thought(self) -> None:
        if self._is_thinking:
            _think((self._thought_wrap.finish() if self._thought_wrap else "") + "\n")
            self._thought_wrap = WordWrap(_columns) if self._thought_wrap else None
        self._is_thinking = False


def _think(text: str) -> None:
    dim, plain = (_DIM, _PLAIN) if has_colour(sys.stderr) else ("", "")
    print(f"{dim}{text}{plain}", end="", file=sys.stderr, flush=True)


def _columns() -> int:
    return shutil.get_terminal_size().columns


def reading_bar() -> ProgressBar:
    """The progress of a prompt, for `on_prompt` of a stream."""
    return ProgressBar("Reading the prompt")


def write_answer(stream: "Stream", answer: PlainAnswer, bar: ProgressBar | None = None) -> "Result":
    """Shows all pieces of a stream; returns its result. The bar ends with the first piece."""
    for piece in stream:
        if bar is not None:
            bar.finish()
        answer.show(piece)
    if bar is not None:
        bar.finish()
    answer.finish()
    assert stream.result is not None
    return stream.result
