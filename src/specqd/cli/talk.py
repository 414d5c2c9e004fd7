"""One conversation with one model: messages and commands, a line at a time."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specqd.cli import explain
from specqd.cli.answers import PlainAnswer, ReasonedAnswer, reading_bar, write_answer
from specqd.cli.chat_settings import Settings
from specqd.cli.conversation import converse
from specqd.cli.summary import is_full, level_table, prompt_speed, summary
from specqd.cli.terminal import harmless, has_colour, inform, is_quiet, say
from specqd.errors import RequestError, SpecqdError

if TYPE_CHECKING:
    from specqd.llm import LLM, Result, Stream
    from specqd.sampling import SamplingParams
    from specqd.text.reasoning import Reasoning

HELP = """\
/system TEXT     set the system message; /system shows it, /system - removes it
/set NAME VALUE  set a sampling option, as /set temperature 0.5; /set shows all,
                 /set NAME - sets the first value again
/set nothink     answer without reasoning first; /set think: with reasoning
/regenerate      answer the last message again, with another seed
/save FILE       write the conversation: as JSON if FILE ends in .json
/clear           start again; the system message stays
/stats           show time, tokens and each level's work of the last answer
/explain         show the last answer, coloured by the level that drafted
                 each token
/help            show this
/bye, /quit      leave; also /exit and Ctrl-D
Enter sends; Alt-Enter, Ctrl-J or \\ before Enter start a new line.
// sends a leading slash. Ctrl-C stops an answer; its text so far stays in the
conversation."""
LEAVE = ("/bye", "/quit", "/exit")
COMMANDS = ("/system", "/set", "/regenerate", "/save", "/clear", "/stats", "/explain", "/help")
_SEEDS = 1 << 64


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
        self,
        llm: "LLM",
        params: "SamplingParams",
        settings: Settings,
        system: str | None,
        *,
        is_terminal: bool,
        thinks: bool | None = None,
    ) -> None:
        self._llm = llm
        self._params = params
        self._settings = settings
        self._is_terminal = is_terminal
        self._conversation = converse(llm.tokenizer, system)
        if thinks is not None:
            self._conversation.think(thinks)
        self._last: Answer | None = None
        self._repeats = 0  # times that the last message was answered again

    def introduce(self, *, is_brief: bool = False) -> None:
        """Says how the model answers and, unless `is_brief`, names the commands."""
        from specqd.hub import model_name

        name = model_name(self._llm.directory)
        if not self._llm.tokenizer.has_chat_template:
            inform(
                f"{name} has no chat template: it continues what you write"
                + ("" if is_brief else "; an empty line continues the text as it is")
            )
        if self._is_terminal and not is_brief:
            inform(f"{name}: /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves")

    def take(self, line: str) -> bool:
        """Answers a message or runs a command. Returns False to end the conversation."""
        command, _, rest = line.strip().partition(" ")
        if command in LEAVE:
            return False
        try:
            if line.startswith("//") or not line.startswith("/"):
                self._repeats = 0
                self.answer(line.removeprefix("/") if line.startswith("//") else line)
            else:
                self._obey(command, rest.strip())
        except SpecqdError as error:
            if not self._is_terminal:
                raise
            say(f"error: {error}")
        return True

    def _obey(self, command: str, rest: str) -> None:
        match command:
            case "/system":
                self._set_system(rest)
            case "/set":
                self._set(rest)
            case "/regenerate":
                self._regenerate()
            case "/save":
                self._save(rest)
            case "/clear":
                self._conversation.clear()
                self._last = None
            case "/stats":
                self._show_stats()
            case "/explain":
                self._show_explained()
            case "/help":
                print(HELP, file=sys.stderr)
            case _:
                say(f"{command} is not a command; /help lists them, // sends a leading /")

    def _set_system(self, text: str) -> None:
        if text:
            self._conversation.system = None if text == "-" else text
        else:
            say(f"system message: {self._conversation.system or 'none'}")

    def _set(self, words: str) -> None:
        words = words.removeprefix("parameter ").strip()  # as in Ollama
        name, _, value = words.partition(" ")
        if name == "system":
            self._set_system(value.strip())
        elif words in ("think", "nothink"):  # as in Ollama
            self._conversation.think(words == "think")
        elif value:
            self._params = self._settings.changed(self._params, name, value.strip())
        elif name:
            raise RequestError(f"/set {name} has no value; write /set NAME VALUE")
        else:
            say(self._settings.described(self._params.resolved(self._llm.defaults)))

    def _regenerate(self) -> None:
        if not self._params.resolved(self._llm.defaults).temperature:
            raise RequestError(
                "at temperature 0 the answer would be the same; /set temperature 0.7 first"
            )
        taken = self._conversation.take_back()
        if taken is None:
            say("no answer yet")
            return
        message, answer = taken
        self._repeats += 1
        try:
            self.answer(message)
        except BaseException:
            self._conversation.record(message, answer)
            raise

    def _save(self, name: str) -> None:
        if not name:
            raise RequestError("/save needs the name of a new file")
        path = Path(name).expanduser()
        text = self._conversation.shown()
        if path.suffix == ".json":
            text = json.dumps(self._conversation.saved(), ensure_ascii=False, indent=1) + "\n"
        try:
            with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror}; name a new file") from error
        say(f"saved to {path}")

    def answer(self, message: str) -> None:
        """Answers a message, and keeps both."""
        if self._llm.tokenizer.has_chat_template and not message.strip():
            return
        prompt = self._conversation.prompt(message)
        self._check_room(prompt)
        reasoning = self._reasoning_of(prompt)
        shown = self._new_answer(reasoning)
        scheduler = self._llm.engine.scheduler
        cached = scheduler.cached_prompt_tokens
        params = self._params
        if reasoning is not None and reasoning.has_special_marks:
            params = replace(params, skip_special_tokens=False)
        if params.seed is not None:
            params = replace(params, seed=(params.seed + self._repeats) % _SEEDS)
        with self._interruptible() as interrupt, reading_bar() as bar:
            stream = self._llm.stream(prompt, params, on_prompt=bar)
            interrupt.stops(stream)
            result = write_answer(stream, shown, bar)
        self._last = Answer(result, scheduler.cached_prompt_tokens - cached)
        self._conversation.record(message, shown.text)
        if self._is_terminal:
            self._show_end(result)

    def _reasoning_of(self, prompt: list[int]) -> "Reasoning | None":
        from specqd.text.reasoning import reasoning_of

        tokenizer = self._llm.tokenizer
        return reasoning_of(tokenizer, prompt) if tokenizer.has_chat_template else None

    def _new_answer(self, reasoning: "Reasoning | None") -> PlainAnswer:
        if reasoning is None:
            return PlainAnswer(is_wrapped=True)
        return ReasonedAnswer(reasoning, shows_thoughts=self._is_terminal, is_wrapped=True)

    def _check_room(self, prompt: list[int]) -> None:
        longest = self._llm.engine.max_context
        if len(prompt) >= longest:
            raise RequestError(
                f"the conversation has {len(prompt)} tokens with this message, too many for the "
                f"context of {longest}; shorten the message, or start again with /clear"
            )

    @contextmanager
    def _interruptible(self) -> "Iterator[Interrupt]":
        """On a terminal, the first Ctrl-C stops the answer after the current round, and the second
        stops the program."""
        interrupt = Interrupt()
        if not self._is_terminal:
            yield interrupt
            return
        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield interrupt
        finally:
            signal.signal(signal.SIGINT, before)

    def _show_end(self, result: "Result") -> None:
        if is_quiet():
            return
        line = f"specqd: {summary(self._llm, result, self._params)}"
        if is_full(self._llm, result):
            line += "; /clear starts again"
        print(click.style(line, dim=True) if has_colour(sys.stderr) else line, file=sys.stderr)

    def _show_stats(self) -> None:
        if self._last is None:
            say("no answer yet")
            return
        stats = self._last.result.stats
        used = stats.prompt_tokens + stats.new_tokens
        lines = [
            f"prompt     {prompt_speed(stats, self._last.cached)}",
            f"answer     {stats.new_tokens} tokens, {stats.tokens_per_s:.1f} tokens/s",
            f"context    {used} of {self._llm.engine.max_context} positions",
            f"seed       {self._last.result.completions[0].seed}",
            *level_table(stats),
        ]
        print(harmless("\n".join(lines)), file=sys.stderr)

    def _show_explained(self) -> None:
        if self._last is None:
            say("no answer yet")
            return
        explain.show(self._last.result, self._llm.tokenizer, sys.stderr)
