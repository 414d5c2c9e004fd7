"""One answer of a conversation: streamed to the terminal, and stopped by Ctrl-C."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from specqd.cli.answers import PlainAnswer, ReasonedAnswer, reading_bar, write_answer
from specqd.cli.screens import Dimmed, Folded, Screen, Streamed
from specqd.cli.terminal import can_redraw

if TYPE_CHECKING:
    from specqd.llm import LLM, Result, Stream
    from specqd.sampling import SamplingParams
    from specqd.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Display:
    """The form of a conversation on the screen. is_long: messages and commands may follow."""

    is_terminal: bool
    is_long: bool = True
    has_markdown: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, how many tokens of its prompt were in the cache, its text and its reasoning."""

    result: "Result"
    cached: int
    text: str
    thought: str


class Interrupt:
    """Handles Ctrl-C: stops the stream, even one that starts after the signal."""

    def __init__(self) -> None:
        self._has_come = False
        self._stream: Stream | None = None

    def stops(self, stream: "Stream") -> None:
        self._stream = stream
        if self._has_come:
            stream.stop()

    def __call__(self, signal_number: int, frame: object) -> None:
        if self._has_come:
            raise KeyboardInterrupt
        self._has_come = True
        if self._stream is not None:
            self._stream.stop()


def answered(
    llm: "LLM",
    prompt: list[int],
    params: "SamplingParams",
    display: Display,
    interrupt: Interrupt,
) -> Answer:
    """Answers a prompt and shows the answer."""
    shown, params = _begun(llm.tokenizer, prompt, params, display)
    scheduler = llm.engine.scheduler
    cached = scheduler.cached_prompt_tokens
    with reading_bar() as bar:
        is_answer = llm.tokenizer.has_chat_template  # other models continue a text
        stream = llm.stream(prompt, params, on_prompt=bar, is_answer=is_answer)
        interrupt.stops(stream)
        result = write_answer(stream, shown, bar)
    return Answer(result, scheduler.cached_prompt_tokens - cached, shown.text, shown.thought)


def _begun(
    tokenizer: "Tokenizer", prompt: list[int], params: "SamplingParams", display: Display
) -> "tuple[PlainAnswer, SamplingParams]":
    """An answer without text, and the parameters that it needs."""
    from specqd.text.reasoning import reasoning_of

    screen = _screen(tokenizer, display)
    reasoning = reasoning_of(tokenizer, prompt) if tokenizer.has_chat_template else None
    if reasoning is None:
        return PlainAnswer(screen), params
    if reasoning.has_special_marks:
        params = replace(params, skip_special_tokens=False)
    return ReasonedAnswer(reasoning, screen, _thought_screen(display)), params


def _screen(tokenizer: "Tokenizer", display: Display) -> Screen:
    is_chat = tokenizer.has_chat_template  # other models continue a text of any kind
    if not (display.has_markdown and is_chat and can_redraw(sys.stdout)):
        return Streamed(is_wrapped=True)
    from specqd.cli.markdown import Rendered  # imported here: it takes a tenth of a second

    return Rendered()


def _thought_screen(display: Display) -> Callable[[], Screen] | None:
    """Where the reasoning is shown, if anywhere."""
    if not display.is_terminal:
        return None
    if display.is_long and can_redraw(sys.stderr):
        return partial(Folded, "/reasoning shows it")
    return partial(Dimmed, is_wrapped=True)


@contextmanager
def interruptible(display: Display) -> "Iterator[Interrupt]":
    """On a terminal, the first Ctrl-C stops the answer after the current round, and the second
    stops the program."""
    interrupt = Interrupt()
    if not display.is_terminal:
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
