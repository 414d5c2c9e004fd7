"""One conversation with one model: messages and commands, a line at a time."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specqd.cli import explain
from specqd.cli.chat_answers import Answer, Display, answered, interruptible
from specqd.cli.chat_files import SavedChat, as_json, last_chat, replace_file, write_new
from specqd.cli.chat_model import ChatModel
from specqd.cli.chat_settings import Settings
from specqd.cli.conversation import Conversation, Turn, prompt_with_room
from specqd.cli.screens import Dimmed
from specqd.cli.summary import is_full, level_table, prompt_speed, summary
from specqd.cli.terminal import harmless, has_colour, inform, is_quiet, say
from specqd.errors import RequestError, SpecqdError

if TYPE_CHECKING:
    from specqd.llm import LLM, Result
    from specqd.sampling import SamplingParams

HELP = """\
/system TEXT     set the system message; /system shows it, /system - removes it
/set NAME VALUE  set a sampling option, as /set temperature 0.5; /set shows all,
                 /set NAME - sets the first value again
/set nothink     answer without reasoning first; /set think: with reasoning
/set on-full shift
                 drop the oldest turns once the context is full; stop: end the
                 answer
/load MODEL      go on with another model
/regenerate      answer the last message again, with another seed
/save FILE       write the conversation: as JSON if FILE ends in .json, which
                 chat --resume FILE continues; /save writes to the same file
/clear           start again; the system message stays
/reasoning       show the reasoning before the last answer
/stats           show time, tokens and each level's work of the last answer
/explain         show the last answer, coloured by the level that drafted
                 each token
/help            show this
/bye, /quit      leave; also /exit and Ctrl-D
Enter sends; Alt-Enter, Ctrl-J or \\ before Enter start a new line.
// sends a leading slash. Ctrl-C stops an answer; its text so far stays in the
conversation."""
LEAVE = ("/bye", "/quit", "/exit")
COMMANDS = (
    *("/system", "/set", "/load", "/regenerate", "/save", "/clear", "/reasoning", "/stats"),
    *("/explain", "/help"),
)
ON_FULL = ("stop", "shift")
_SEEDS = 1 << 64
_QUOTED = 40  # characters of a message


class Talk:
    """One conversation with one model, a line at a time."""

    def __init__(
        self,
        model: ChatModel,
        settings: Settings,
        display: Display,
        saved: SavedChat,
        *,
        thinks: bool | None = None,
        on_full: str = "stop",
    ) -> None:
        self._model = model
        self._settings = settings
        self._display = display
        self._on_full = on_full
        self._conversation = Conversation(model.llm.tokenizer, list(saved.turns))
        self._conversation.system = saved.system
        if thinks is not None:
            self._conversation.think(thinks)
        self._last: Answer | None = None
        self._repeats = 0  # times that the last message was answered again
        self._file: Path | None = None  # that /save has written
        # For --resume: not a single question, unless it goes on with what was said before.
        self._is_kept = display.is_terminal and (display.is_long or bool(saved.turns))

    @property
    def _llm(self) -> "LLM":
        return self._model.llm

    @property
    def _params(self) -> "SamplingParams":
        return self._settings.params(self._llm)

    def introduce(self) -> None:
        """Says how the model answers and, if messages may follow, names the commands."""
        is_long, turns = self._display.is_long, self._conversation.turns
        if not self._llm.tokenizer.has_chat_template:
            inform(
                f"{self._model.shown} has no chat template: it continues what you write"
                + ("; an empty line continues the text as it is" if is_long else "")
            )
        if not (self._display.is_terminal and is_long):
            return
        name = self._model.shown
        inform(f"{name}: /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves")
        if (ours := self._settings.ours(self._llm)) is not None:
            penalty = f"repetition penalty {ours.repetition_penalty}"
            inform(f"sampling: temperature {ours.temperature}, {penalty}; /set changes it")
        if turns:
            inform(f"continuing after {_counted(turns)}, the last one {_quoted(turns[-1])}")

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
            if not self._display.is_terminal:
                raise
            say(f"error: {error}")
        return True

    def _obey(self, command: str, rest: str) -> None:
        match command:
            case "/system":
                self._set_system(rest)
            case "/set":
                self._set(rest)
            case "/load":
                self._load(rest)
            case "/regenerate":
                self._regenerate()
            case "/save":
                self._save(rest)
            case "/clear":
                self._conversation.clear()
                self._last = None
            case "/reasoning":
                self._show_reasoning()
            case "/stats":
                self._show_stats()
            case "/explain":
                self._show_explained()
            case "/help":
                print(HELP, file=sys.stderr)
            case _:
                raise RequestError(
                    f"{command} is not a command; /help lists them, // sends a leading /"
                )

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
        elif name == "on-full":
            self._set_on_full(value.strip())
        elif value:
            self._settings.change(name, value.strip())
        elif name:
            raise RequestError(f"/set {name} has no value; write /set NAME VALUE")
        else:
            say(f"{self._settings.described(self._llm)}, on-full {self._on_full}")

    def _set_on_full(self, value: str) -> None:
        if value not in ON_FULL:
            raise RequestError(f"on-full: {value!r} is not {' or '.join(ON_FULL)}; choose one")
        self._on_full = value

    def _load(self, name: str) -> None:
        if not name:
            raise RequestError("/load needs a model; `specqd models` lists some")
        before = self._llm
        try:
            self._model.replace(name)
        finally:
            if self._llm is not before:  # perhaps the same model, loaded again
                self._conversation.read_by(self._llm.tokenizer)
                self._last = None
        self.introduce()
        for each in self._conversation.without_effect():
            say(f"note: with this model {each} has no effect")

    def _regenerate(self) -> None:
        if not self._params.resolved(self._llm.defaults).temperature:
            raise RequestError(
                "at temperature 0 the answer would be the same; /set temperature 0.7 first"
            )
        taken = self._conversation.take_back()
        if taken is None:
            raise RequestError("/regenerate: there is no answer yet; send a message first")
        message, answer = taken
        if self._is_empty(message):
            self._conversation.record(message, answer)
            say("the last message is empty, so it has no answer to make again")
            return
        self._repeats += 1
        try:
            self.answer(message)
        except BaseException:
            self._conversation.record(message, answer)
            raise

    def _save(self, name: str) -> None:
        if not name and self._file is None:
            raise RequestError("/save needs the name of a new file")
        from specqd.hub import expanded

        path = expanded(name) if name else self._file
        assert path is not None
        text = self._conversation.shown()
        if path.suffix == ".json":
            text = as_json(self._model.name, self._conversation.saved())
        (write_new if name else replace_file)(path, text)
        self._file = path
        say(f"saved to {path}")

    def _is_empty(self, message: str) -> bool:
        """Whether nothing was asked. Without a template, an empty line continues the text."""
        return self._llm.tokenizer.has_chat_template and not message.strip()

    def answer(self, message: str) -> None:
        """Answers a message, and keeps both."""
        if self._is_empty(message):
            return
        params = self._params
        if params.seed is not None:
            params = replace(params, seed=(params.seed + self._repeats) % _SEEDS)
        with interruptible(self._display) as interrupt:
            prompt = self._prompt(message)
            self._last = answered(self._llm, prompt, params, self._display, interrupt)
        self._conversation.record(message, self._last.text)
        if self._display.is_terminal:
            self._show_end(self._last.result)
        self._keep()

    def _keep(self) -> None:
        """Keeps the conversation for `chat --resume`."""
        if not self._is_kept:
            return
        try:
            replace_file(last_chat(), as_json(self._model.name, self._conversation.saved()))
        except RequestError as error:
            say(f"note: chat --resume cannot continue this conversation: {error}")
            self._is_kept = False

    def _prompt(self, message: str) -> list[int]:
        """The prompt, which fits into the context. Raises RequestError if it cannot."""
        longest = self._llm.engine.max_context
        prompt = self._conversation.prompt(message)
        if self._on_full == "shift":
            most = self._params.max_tokens
            prompt, dropped = prompt_with_room(self._conversation, message, longest, most)
            if dropped:
                names = f"{_counted(dropped)}: {_range(dropped)}"
                say(f"the context of {longest} tokens is full; dropped the oldest {names}")
        if len(prompt) >= longest:
            remedy = "shorten the message"
            if self._conversation.turns:
                remedy += ", or start again with /clear"
                if self._on_full != "shift":
                    remedy += ", or drop old turns: /set on-full shift"
            raise RequestError(
                f"the conversation has {len(prompt)} tokens with this message, too many for the "
                f"context of {longest}; {remedy}"
            )
        return prompt

    def _show_end(self, result: "Result") -> None:
        if is_quiet():
            return
        line = f"specqd: {summary(self._llm, result, self._params)}"
        if is_full(self._llm, result):
            line += "; /clear starts again"
            line += "" if self._on_full == "shift" else ", /set on-full shift drops old turns"
        print(click.style(line, dim=True) if has_colour(sys.stderr) else line, file=sys.stderr)

    def _show_reasoning(self) -> None:
        if self._last is None or not self._last.thought:
            say("no answer yet" if self._last is None else "the last answer has no reasoning")
            return
        screen = Dimmed(is_wrapped=True)
        screen.feed(self._last.thought)
        screen.finish()

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


def _counted(turns: Sequence[Turn]) -> str:
    return "1 turn" if len(turns) == 1 else f"{len(turns)} turns"


def _range(turns: Sequence[Turn]) -> str:
    """The first and the last message."""
    ends = turns[:1] if len(turns) == 1 else (turns[0], turns[-1])
    return " to ".join(map(_quoted, ends))


def _quoted(turn: Turn) -> str:
    """The beginning of a message."""
    text = " ".join(turn.asked.split())
    return f'"{text}"' if len(text) <= _QUOTED else f'"{text[: _QUOTED - 3]}..."'
