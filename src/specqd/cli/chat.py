"""`specqd chat`: a conversation on a terminal or through a pipe. Standard output gets the model's
text and nothing else."""

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specqd.cli.chat_input import ChatInput, PipedInput, TerminalInput, history_file
from specqd.cli.chat_settings import Settings
from specqd.cli.command import Command
from specqd.cli.draft_options import Drafting, draft_options
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
from specqd.cli.talk import COMMANDS, LEAVE, Talk
from specqd.cli.terminal import inform, no_echo

if TYPE_CHECKING:
    from specqd.llm import LLM
    from specqd.sampling import SamplingParams

_EPILOG = """\b
Examples:
  specqd chat qwen3:0.6b
  specqd chat qwen3:0.6b "Why is the sky blue?"
  cat notes.txt | specqd chat qwen3:0.6b "Summarise this text."
  specqd chat qwen3:0.6b --system "Answer in one sentence." --seed 7
  specqd chat ./my-model --temperature 0.8 --draft fp4 --draft ./smaller
  printf 'Who was Ada Lovelace?\\nAnd her mother?\\n' | specqd chat ./my-model
"""


@click.command(cls=Command, epilog=_EPILOG)
@model_argument
@text_argument
@option("-p", "--prompt", excludes=("words",), metavar="TEXT", help="Answer TEXT and exit.")
@chat_options("The system message.")
@template_option()
@partial(sampling_options, max_tokens=None)
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
    system: str | None,
    thinks: bool | None,
    chat_template: Path | None,
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
    from specqd.sampling import CHAT_TEMPERATURE, SamplingParams, chat_sampling

    text = prompt_of(words, prompt)
    text = None if text is None else read_prompt(text, None)
    given = SamplingParams(**sampling_of(sampling))
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    with _keyboard(is_terminal, is_read=text is None) as keyboard:
        llm = open_llm(
            model,
            draft,
            machine,
            precision=precision,
            context=context,
            prompt_cache=prompt_cache,
            chat_template=chat_template,
        )
        params = _params(llm, chat_sampling(given, llm.defaults))
        settings = Settings(click.get_current_context(), params)
        talk = Talk(llm, params, settings, system, is_terminal=is_terminal, thinks=thinks)
        talk.introduce(is_brief=text is not None)
        if text is not None:
            talk.answer(text)
            return
        if is_terminal and params.temperature != given.temperature:
            ours = f"temperature {CHAT_TEMPERATURE}, repetition penalty {params.repetition_penalty}"
            inform(f"sampling: {ours}; /set changes it")
        piped = PipedInput(sys.stdin.buffer)
        _converse(talk, piped if keyboard is None else _terminal(keyboard, settings))


def _keyboard(is_terminal: bool, is_read: bool) -> AbstractContextManager[Keyboard | None]:
    """The keyboard of a conversation. What is typed during one answer is left to the shell."""
    if not is_terminal:
        return nullcontext()
    return held_keyboard() if is_read else no_echo()


def _params(llm: "LLM", params: "SamplingParams") -> "SamplingParams":
    """The parameters with what this model's text needs."""
    if not llm.tokenizer.has_chat_template and params.max_tokens is None:
        params = replace(params, max_tokens=128)
    return params


def _terminal(keyboard: Keyboard, settings: Settings) -> TerminalInput:
    names = dict.fromkeys((*COMMANDS, *LEAVE), ()) | {"/set": [*settings.names, "think", "nothink"]}
    return TerminalInput(keyboard, names, history_file())


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
