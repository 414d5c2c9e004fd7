"""`specqd chat`: a conversation on a terminal or through a pipe. Standard output gets the model's
text and nothing else."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from specqd.cli import explain
from specqd.cli.answers import ChanneledAnswer, PlainAnswer, write_answer
from specqd.cli.chat_input import ChatInput, PipedInput, TerminalInput, history_file
from specqd.cli.command import Command
from specqd.cli.conversation import converse
from specqd.cli.opening import open_llm
from specqd.cli.options import (
    context_option,
    draft_option,
    machine_options,
    model_argument,
    precision_option,
    sampling_of,
    sampling_options,
    system_option,
)
from specqd.cli.summary import level_table
from specqd.cli.terminal import harmless, has_colour, one_line
from specqd.errors import RequestError, SpecqdError
from specqd.text.channels import has_channels

if TYPE_CHECKING:
    from specqd.llm import LLM, Result, Stream
    from specqd.sampling import SamplingParams

_EPILOG = """\b
Examples:
  specqd chat
  specqd chat Qwen/Qwen3-0.6B --system "Answer in one sentence."
  specqd chat ./my-model --temperature 0.8 --draft fp4 --draft ./smaller
  printf 'Who was Ada Lovelace?\\nAnd her mother?\\n' | specqd chat ./my-model
"""

_HELP = """\
/system TEXT  set the system message; /system shows it, /system - removes it
/clear        start again; the system message stays
/stats        show time, tokens and each level's work of the last answer
/explain      show the last answer, coloured by the level that drafted each token
/help         show this
/quit, /exit  leave; also Ctrl-D
Enter sends; Alt-Enter, Ctrl-J or \\ before Enter start a new line; // sends a leading slash.
Ctrl-C stops an answer; its text so far stays in the conversation."""
_COMMANDS = ("/system", "/clear", "/stats", "/explain", "/help", "/quit", "/exit")


@click.command(cls=Command, epilog=_EPILOG)
@model_argument
@system_option("The system message.")
@partial(sampling_options, max_tokens=None)
@draft_option
@precision_option
@context_option
@machine_options
def chat(
    model: str | None,
    system: str | None,
    draft: tuple[str, ...],
    precision: str,
    context: int | None,
    threads: int | None,
    isa: str | None,
    **sampling: Any,
) -> None:
    """Chat with a model.

    In the conversation, /help lists the commands.

    A model without a chat template continues your text, 128 tokens at a time unless -n is given. In
    a pipe, each line is one message or command, and a line that ends in a backslash continues in
    the next; answers go to standard output one after the other.
    """
    from specqd.sampling import SamplingParams

    params = SamplingParams(**sampling_of(sampling))
    llm = open_llm(model, draft, threads, isa, precision=precision, context=context)
    if not llm.tokenizer.has_chat_template and params.max_tokens is None:
        params = replace(params, max_tokens=128)
    if llm.tokenizer.has_chat_template and has_channels(llm.tokenizer):
        params = replace(params, skip_special_tokens=False)  # they say which channel it is
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    talk = Talk(llm, params, system, is_terminal=is_terminal)
    lines: ChatInput = PipedInput(sys.stdin.buffer)
    if is_terminal:
        lines = TerminalInput(_COMMANDS, history_file())
    talk.introduce()
    while (line := _read(lines)) is not None:
        if not talk.take(line):
            break


def _read(lines: ChatInput) -> str | None:
    """The next line. Ctrl-C on a terminal discards a line and reads another."""
    while True:
        try:
            return lines.read()
        except KeyboardInterrupt:
            if isinstance(lines, PipedInput):
                raise


@dataclass(frozen=True, slots=True)
class Answer:
    """The last answer, and how many tokens of its prompt were in the cache."""

    result: "Result"
    cached: int


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


class Talk:
    """One conversation with one model, a line at a time."""

    def __init__(
        self, llm: "LLM", params: "SamplingParams", system: str | None, *, is_terminal: bool
    ) -> None:
        self._llm = llm
        self._params = params
        self._is_terminal = is_terminal
        self._conversation = converse(llm.tokenizer, system)
        self._last: Answer | None = None

    def introduce(self) -> None:
        name = self._llm.directory.name
        if not self._llm.tokenizer.has_chat_template:
            _tell(
                f"{name} has no chat template: it continues what you write; "
                "an empty line lets it go on"
            )
        if self._is_terminal:
            _tell(f"{name}: /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves")

    def take(self, line: str) -> bool:
        """Answers a message or runs a command. Returns False to end the conversation."""
        command, _, rest = line.strip().partition(" ")
        if command in ("/quit", "/exit"):
            return False
        try:
            if line.startswith("//") or not line.startswith("/"):
                self._answer(line.removeprefix("/") if line.startswith("//") else line)
            else:
                self._obey(command, rest.strip())
        except SpecqdError as error:
            if not self._is_terminal:
                raise
            _tell(f"error: {error}")
        return True

    def _obey(self, command: str, rest: str) -> None:
        match command:
            case "/system" if rest:
                self._conversation.system = None if rest == "-" else rest
            case "/system":
                _tell(f"system message: {self._conversation.system or 'none'}")
            case "/clear":
                self._conversation.clear()
                self._last = None
            case "/stats":
                self._show_stats()
            case "/explain":
                self._show_explained()
            case "/help":
                print(_HELP, file=sys.stderr)
            case _:
                _tell(f"{command} is not a command; /help lists them, // sends a leading /")

    def _answer(self, message: str) -> None:
        if self._llm.tokenizer.has_chat_template and not message.strip():
            return
        prompt = self._conversation.prompt(message)
        self._check_room(prompt)
        shown = self._new_answer()
        scheduler = self._llm.engine.scheduler
        cached = scheduler.cached_prompt_tokens
        with self._interruptible() as interrupt:
            stream = self._llm.stream(prompt, self._params)
            interrupt.stops(stream)
            result = write_answer(stream, shown)
        self._last = Answer(result, scheduler.cached_prompt_tokens - cached)
        self._conversation.record(message, shown.text)
        self._tell_end(result)

    def _new_answer(self) -> PlainAnswer:
        if self._params.skip_special_tokens:
            return PlainAnswer()
        return ChanneledAnswer(shows_thoughts=self._is_terminal)

    def _check_room(self, prompt: list[int]) -> None:
        longest = self._llm.engine.max_context
        if len(prompt) >= longest:
            raise RequestError(
                f"the conversation has {len(prompt)} tokens with this, and {longest} positions; "
                "shorten the message, or start again with /clear"
            )

    @contextmanager
    def _interruptible(self) -> "Iterator[Interrupt]":
        """On a terminal the first Ctrl-C stops the answer after a round, the second the program."""
        interrupt = Interrupt()
        if not self._is_terminal:
            yield interrupt
            return
        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield interrupt
        finally:
            signal.signal(signal.SIGINT, before)

    def _tell_end(self, result: "Result") -> None:
        if not self._is_terminal:
            return
        reason, count = result.completions[0].finish_reason, len(result.tokens)
        longest = self._llm.engine.max_context
        if reason == "cancelled":
            _tell(f"stopped after {count} tokens")
        elif reason == "length" and len(result.prompt_tokens) + count >= longest:
            _tell(f"all {longest} positions are full; /clear starts again")
        elif reason == "length" and self._llm.tokenizer.has_chat_template:
            _tell(f"cut after {count} tokens")

    def _show_stats(self) -> None:
        if self._last is None:
            _tell("no answer yet")
            return
        stats = self._last.result.stats
        used = stats.prompt_tokens + stats.new_tokens
        lines = [
            f"prompt     {stats.prompt_tokens} tokens, {self._last.cached} of them cached; "
            f"prefilled in {stats.prefill_s:.2f} s",
            f"answer     {stats.new_tokens} tokens, {stats.tokens_per_s:.1f} tokens/s",
            f"context    {used} of {self._llm.engine.max_context} positions",
            *level_table(stats),
        ]
        print(harmless("\n".join(lines)), file=sys.stderr)

    def _show_explained(self) -> None:
        if self._last is None:
            _tell("no answer yet")
            return
        result, colour = self._last.result, has_colour(sys.stderr)
        spans = explain.explained(result.completions[0], self._llm.tokenizer)
        text = explain.for_terminal(spans, has_colour=colour)
        print(text, end="" if text.endswith("\n") else "\n", file=sys.stderr)
        print(explain.legend(spans, result.stats.chain, has_colour=colour), file=sys.stderr)


def _tell(text: str) -> None:
    """Prints a line that is not the model's."""
    print(f"specqd: {one_line(text)}", file=sys.stderr)
