"""Streams an answer to the terminal, and keeps its text."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from specqd.cli.screens import Screen
from specqd.cli.terminal import ProgressBar

if TYPE_CHECKING:
    from specqd.llm import Result, Stream
    from specqd.text.reasoning import Reasoning


class PlainAnswer:
    """Shows all that the model generates."""

    def __init__(self, screen: Screen) -> None:
        self.text = ""
        self.thought = ""
        self._screen = screen

    def show(self, piece: str) -> None:
        self._screen.feed(piece)
        self.text += piece

    def finish(self) -> None:
        """Ends the last line."""
        self._screen.finish()


class ReasonedAnswer(PlainAnswer):
    """Shows the answer on one screen, and each part of the reasoning on another, if there is one
    for it."""

    def __init__(
        self,
        reasoning: "Reasoning",
        screen: Screen,
        thought_screen: Callable[[], Screen] | None = None,
    ) -> None:
        super().__init__(screen)
        self._splitter = reasoning.splitter()
        self._thought_screen = thought_screen
        self._shown_thought: Screen | None = None

    def show(self, piece: str) -> None:
        self._show(*self._splitter.split(piece, is_last=False))

    def finish(self) -> None:
        self._show(*self._splitter.split("", is_last=True))
        self._end_thought()
        super().finish()

    def _show(self, answer: str, thought: str) -> None:
        """Shows new text of the reasoning, which comes first, and of the answer."""
        self.thought += thought
        if thought and self._thought_screen is not None:
            self._shown_thought = self._shown_thought or self._thought_screen()
            self._shown_thought.feed(thought)
        if answer:
            self._end_thought()
            super().show(answer)

    def _end_thought(self) -> None:
        if self._shown_thought is not None:
            self._shown_thought.finish()
        self._shown_thought = None


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
