"""`specqd chat`: a conversation on a terminal or through a pipe. Standard output gets the model's
text and nothing else."""

import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from specqd.cli.chat_answers import Display
from specqd.cli.chat_files import SavedChat, last_chat, read_chat
from specqd.cli.chat_input import ChatInput, PipedInput, TerminalInput, history_file
from specqd.cli.chat_model import ChatModel
from specqd.cli.chat_settings import Settings
from specqd.cli.command import Command
from specqd.cli.draft_options import Drafting, draft_options
from specqd.cli.fetching import fetch
from specqd.cli.generate import read_prompt
from specqd.cli.keyboard import Keyboard, held_keyboard
from specqd.cli.opening import open_llm
from specqd.cli.options import (
    MachineChoice,
    PromptCacheChoice,
    chat_options,
    context_option,
    machine_options,
    model_argument,
    option,
    precision_option,
    prompt_cache_options,
    prompt_of,
    quiet_option,
    template_option,
    text_argument,
)
from specqd.cli.sampling_options import sampling_of, sampling_options
from specqd.cli.talk import COMMANDS, LEAVE, ON_FULL, Talk
from specqd.cli.terminal import no_echo

if TYPE_CHECKING:
    from specqd.llm import LLM

_EPILOG = """\b
Examples:
  specqd chat qwen3:0.6b
  specqd chat qwen3:0.6b "Why is the sky blue?"
  cat notes.txt | specqd chat qwen3:0.6b "Summarise this text."
  specqd chat qwen3:0.6b --system "Answer in one sentence." --seed 7
  specqd chat ./my-model --temperature 0.8 --draft fp4 --draft ./smaller
  specqd chat --resume
  printf 'Who was Ada Lovelace?\\nAnd her mother?\\n' | specqd chat ./my-model
"""

_LAST = "-"  # the value of --resume without a file


@click.command(cls=Command, epilog=_EPILOG)
@model_argument
@text_argument
@option("-p", "--prompt", excludes=("words",), metavar="TEXT", help="Answer TEXT and exit.")
@option(
    "--resume",
    is_flag=False,
    flag_value=_LAST,
    metavar="[FILE]",
    help="Continue the last conversation of a terminal, or the one that /save has written to FILE, "
    "with its model unless MODEL is given.",
)
@chat_options("The system message.")
@template_option()
@partial(sampling_options, max_tokens=None)
@option(
    "--on-full",
    type=click.Choice(ON_FULL),
    default="stop",
    show_default=True,
    help="What happens once the context is full. stop: the answer ends. shift: the oldest turns "
    "are dropped before the next answer, and a line names them.",
)
@option(
    "--markdown/--no-markdown",
    "has_markdown",
    default=True,
    help="Draw the Markdown of answers on a terminal, or show it as it is. Default: draw it.",
)
@draft_options
@precision_option
@context_option
@prompt_cache_options
@machine_options
@quiet_option()
def chat(
    model: str | None,
    words: tuple[str, ...],
    prompt: str | None,
    resume: str | None,
    system: str | None,
    thinks: bool | None,
    chat_template: Path | None,
    on_full: str,
    has_markdown: bool,
    draft: Drafting,
    precision: str,
    context: int | None,
    prompt_cache: PromptCacheChoice,
    machine: MachineChoice,
    **sampling: Any,
) -> None:
    """Chat with a model.

    In the conversation, /help lists the commands. With TEXT, the model answers it and the program
    ends; a pipe or file on standard input is then put before TEXT.

    Sampling follows the model's generation_config.json. If that states none, the temperature is 0.7
    and the repetition penalty is 1.05; --temperature 0 is greedy.

    A model without a chat template continues your text, 128 tokens at a time unless -n is given.
    From a pipe, each line is one message or command, and a line that ends in a backslash continues
    in the next one. Answers go to standard output, one after the other.
    """
    from specqd.sampling import SamplingParams

    def open_model(name: str | None) -> "LLM":
        return open_llm(
            name,
            draft,
            machine,
            precision=precision,
            context=context,
            prompt_cache=prompt_cache,
            chat_template=chat_template,
        )

    text = prompt_of(words, prompt)
    text = None if text is None else read_prompt(text, None)
    settings = Settings(click.get_current_context(), SamplingParams(**sampling_of(sampling)))
    saved = _saved(resume, model, system)
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    display = Display(is_terminal, text is None, has_markdown)
    if is_terminal:
        signal.signal(signal.SIGTERM, _leave)
    with _keyboard(is_terminal, is_read=text is None) as keyboard:
        loaded = ChatModel(saved.model, partial(_find, draft), open_model)
        talk = Talk(loaded, settings, display, saved, thinks=thinks, on_full=on_full)
        talk.introduce()
        if text is not None:
            talk.answer(text)
            return
        piped = PipedInput(sys.stdin.buffer)
        _converse(talk, piped if keyboard is None else _terminal(keyboard, settings))


def _leave(signal_number: int, frame: object) -> NoReturn:
    """Ends the program by an exception, so that the terminal gets back its modes."""
    raise SystemExit(128 + signal_number)


def _saved(resume: str | None, model: str | None, system: str | None) -> SavedChat:
    """The conversation to begin with: what the command line says goes before what is saved."""
    from specqd.hub import expanded

    saved = SavedChat()
    if resume is not None:
        saved = read_chat(last_chat() if resume == _LAST else expanded(resume))
    return replace(saved, model=model or saved.model, system=system or saved.system)


def _find(draft: Drafting, name: str) -> None:
    """Fetches what a model needs."""
    if draft.wants_sibling:
        fetch(name)
    else:
        from specqd.hub import resolve

        resolve(name)


def _keyboard(is_terminal: bool, is_read: bool) -> AbstractContextManager[Keyboard | None]:
    """The keyboard of a conversation. What is typed during one answer is left to the shell."""
    if not is_terminal:
        return nullcontext()
    return held_keyboard() if is_read else no_echo()


def _terminal(keyboard: Keyboard, settings: Settings) -> TerminalInput:
    from specqd.hub import model_names

    words: dict[str, list[str]] = {each: [] for each in (*COMMANDS, *LEAVE)}
    words["/set"] = [*settings.names, "think", "nothink", "on-full"]
    words["/load"] = model_names()
    return TerminalInput(keyboard, words, history_file())


def _converse(talk: Talk, lines: ChatInput) -> None:
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
