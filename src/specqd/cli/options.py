"""Arguments and options that several commands share."""

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from specqd.cli.command import MODEL_OPTION, Model, ModelName, Option, keep_model
from specqd.cli.completion import complete_model
from specqd.cli.terminal import QUIET

if TYPE_CHECKING:
    from specqd.model.model import Machine

Command = TypeVar("Command", bound=Callable[..., Any])

IN_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
MODEL_IS = "A directory, a .gguf file, owner/name[@revision] or a short name: `specqd models`."
_NUMA = ("auto", "one", "spread", "replicate")
_ISAS = ("amx", "avx512bf16", "avx512", "avx2vnni", "avx2", "neondot", "neon", "portable")


class OutPath(click.Path):
    """A file to write, in a directory that exists and can be written, so that an error comes before
    the work. `-` is standard output if `allow_dash`."""

    def __init__(self, *, allow_dash: bool = False) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path, allow_dash=allow_dash)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        parent = path.absolute().parent
        if not parent.is_dir():
            self.fail(f"'{path}': there is no directory {parent}; make it first.", param, ctx)
        if not path.exists() and not os.access(parent, os.W_OK):
            self.fail(f"'{path}': the directory {parent} cannot be written.", param, ctx)
        return path


OUT_FILE = OutPath()


class Positions(click.IntRange):
    """A number of positions; 4k or 4K is 4096."""

    name = "positions"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and (written := re.fullmatch(r"(\d{1,9})k", value.strip(), re.I)):
            value = int(written[1]) * 1024
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{value!r} is not a number from {self.min}, such as 4096 or 4k.", param, ctx)


class Seconds(click.ParamType[float]):
    """A duration in seconds; 5m is 300, and 1h is 3600."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        written = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh]?)", str(value).strip(), re.I)
        if written is None:
            self.fail(f"{value!r} is not a time, such as 90, 5m or 1h.", param, ctx)
        return float(written[1]) * {"m": 60, "h": 3600}.get(written[2].lower(), 1)


class Bytes(click.ParamType[int]):
    """A number of bytes; 10g or 10G is 10 GiB."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        written = re.fullmatch(r"(\d{1,15})([kmgt]?)", str(value).strip(), re.I)
        if written is None:
            self.fail(f"{value!r} is not a number of bytes, such as 10g or 500m.", param, ctx)
        return int(written[1]) << 10 * " kmgt".index(written[2].lower() or " ")


def option(*names: str, also: Sequence[str] = (), **settings: Any) -> Callable[[Command], Command]:
    """An option with further names, which the help does not show. `settings` are those of Option
    and of click's options."""
    return click.option(*names, cls=Option, also=also, **settings)


# --- Options of measurements ----------------------------------------------------------------------

prompts_option = click.option(
    "--prompts",
    "prompts_file",
    required=True,
    type=IN_FILE,
    help='File with one JSON object per line: {"prompt": "..."}.',
)
json_option = click.option(
    "--json",
    "json_file",
    type=OutPath(allow_dash=True),
    envvar="",  # neither variables nor the file set it, which set the flag --json of other commands
    help="Also write the results to this file, as JSON; -: to standard output.",
)


def temperatures_option(*default: float) -> Callable[[Command], Command]:
    """--temperature, which may repeat, as `temperatures`."""
    return click.option(
        "--temperature",
        "temperatures",
        multiple=True,
        default=default,
        show_default=True,
        help="Sampling temperature; 0: greedy. May repeat.",
    )


def limits(prompts: int, new_tokens: int, help_text: str) -> Callable[[Command], Command]:
    """--limit and --max-tokens with these defaults."""
    positive, from_two = click.IntRange(1), click.IntRange(2)
    names = ("-n", "--max-tokens")
    limit = click.option(
        "--limit", default=prompts, show_default=True, type=positive, help="Prompts to use."
    )
    most = click.option(
        *names, default=new_tokens, show_default=True, type=from_two, help=help_text
    )
    return lambda command: limit(most(command))


# --- Options of all commands ----------------------------------------------------------------------


_SHIPPED_IS = "Default: the shipped 28 M model for Python source."


def model_argument(command: Command) -> Command:
    """MODEL, by default the shipped one; also given as -m, as in llama.cpp."""
    return _model_argument(f"{MODEL_IS} {_SHIPPED_IS}")(command)


def models_argument(command: Command) -> Command:
    """Any number of MODEL, as the tuple `model`."""
    several = "Several are loaded when requests name them."
    return _model_argument(f"{MODEL_IS} {several} {_SHIPPED_IS}", nargs=-1, type=ModelName())(
        command
    )


def _model_argument(help_text: str, **settings: Any) -> Callable[[Command], Command]:
    by_option = click.option(
        *(*MODEL_OPTION, "model_by_option"),
        hidden=True,
        expose_value=False,
        is_eager=True,
        callback=keep_model,
    )
    argument = click.argument(
        "model",
        cls=Model,
        required=False,
        envvar="SPECQD_MODEL",
        shell_complete=complete_model,
        help=help_text,
        **settings,
    )
    return lambda command: argument(by_option(command))


def text_argument(command: Command) -> Command:
    """TEXT after MODEL, the words of which are joined."""
    return click.argument(
        "words", nargs=-1, metavar="[TEXT]...", help="The same as -p; words are joined by spaces."
    )(command)


def prompt_of(words: Sequence[str], prompt: str | None) -> str | None:
    """The text of -p, or the one after MODEL. The command refuses both."""
    return " ".join(words) if words else prompt


@dataclass(frozen=True, slots=True)
class MachineChoice:
    """The threads, instruction set and NUMA use that the options request."""

    threads: int | None
    isa: str | None
    numa: str

    def machine(self) -> "Machine":
        """Raises MachineError for what this machine does not have."""
        from specqd.model.model import Machine

        return Machine.choose(self.threads, self.isa, self.numa)


def machine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--threads, --isa and --numa, as the one argument `machine`."""

    @wraps(command)
    def with_machine(*, threads: int | None, isa: str | None, numa: str, **others: Any) -> Any:
        return command(machine=MachineChoice(threads, isa, numa), **others)

    threads = option(
        "--threads",
        also=("-t",),
        type=int,
        metavar="N",
        help="Threads. Default, and at most: all usable cores.",
    )
    isa = option("--isa", type=click.Choice(_ISAS), help="Instruction set. Default: the fastest.")
    numa = option(
        "--numa",
        type=click.Choice(_NUMA),
        default="auto",
        help="NUMA nodes. auto (default): use all. one: use one. spread: divide the weights among "
        "all, also those of packed models. replicate: copy them to each.",
    )
    return threads(isa(numa(with_machine)))


@contextmanager
def _without_notes() -> Iterator[None]:
    """Silences warnings of the package and the bars of downloads."""
    bars, log = "HF_HUB_DISABLE_PROGRESS_BARS", logging.getLogger("specqd")
    level, before = log.level, os.environ.get(bars)
    log.setLevel(logging.ERROR)
    os.environ[bars] = "1"
    try:
        yield
    finally:
        log.setLevel(level)
        os.environ.pop(bars)
        if before is not None:
            os.environ[bars] = before


def quiet_option(*excludes: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--quiet, which no argument of the command shows. excludes: parameters that print more."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_quiet(*, quiet: bool, **others: Any) -> Any:
            if quiet:
                context = click.get_current_context()
                context.meta[QUIET] = True
                context.with_resource(_without_notes())
            return command(**others)

        return option(
            *("-q", "--quiet"),
            excludes=excludes,
            is_flag=True,
            help="Print nothing but errors on standard error.",
        )(with_quiet)

    return add


def context_option(command: Command) -> Command:
    return option(
        "--context",
        also=("-c", "--ctx-size", "--num-ctx", "--max-model-len"),
        type=Positions(1),
        metavar="N",
        help="Context length in tokens, prompt included; 4k is 4096. A shorter one needs less "
        "memory and lets longrope models use their short factors. Default: the model's.",
    )(command)


@dataclass(frozen=True, slots=True)
class PromptCacheChoice:
    """The directory in which prompts are kept, and its size in bytes, that the options request."""

    directory: Path | None = None
    most_bytes: int | None = None


NO_PROMPT_CACHE = PromptCacheChoice()


def prompt_cache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--prompt-cache and --prompt-cache-size, as the one argument `prompt_cache`."""

    @wraps(command)
    def with_cache(*, prompt_cache: Path | None, prompt_cache_size: int, **others: Any) -> Any:
        return command(prompt_cache=PromptCacheChoice(prompt_cache, prompt_cache_size), **others)

    directory = option(
        "--prompt-cache",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Keep the KV cache of prompts in this directory, so that later runs need not read "
        "them again. Changes no bit of the output. Default: off.",
    )
    size = option(
        "--prompt-cache-size",
        type=Bytes(),
        default="10g",
        show_default=True,
        metavar="SIZE",
        help="Most bytes of --prompt-cache, such as 500m; the least recently used files are "
        "removed.",
    )
    return directory(size(with_cache))


def precision_option(command: Command) -> Command:
    return option(
        "--precision",
        type=click.Choice(["exact", "fp4"]),
        default="exact",
        help="fp4: generate from the 4-bit weights only (not lossless).",
    )(command)


def prompt_options(command: Command) -> Command:
    prompt = option(
        *("-p", "--prompt"),
        metavar="TEXT",
        excludes=("words", "file"),
        help="Text to continue. Piped standard input comes before it, on lines of its own.",
    )
    file = option(
        *("-f", "--file"),
        excludes=("words",),
        type=click.Path(exists=True, dir_okay=False, allow_dash=True),
        help="File with the text to continue; -: standard input.",
    )
    return prompt(file(command))


def chat_options(system_help: str, needs: str | None = None) -> Callable[[Command], Command]:
    """--system, and --think or --no-think; `needs`: the parameter without which they have no
    effect."""
    names = ("-sys", "--system-prompt")
    system = option("--system", also=names, needs=needs, metavar="TEXT", help=system_help)
    think = option(
        "--think/--no-think",
        "thinks",
        needs=needs,
        default=None,
        help="Let the model reason before it answers, or not. Its chat template must have a "
        "switch.",
    )
    return lambda command: system(think(command))


def template_option(needs: str | None = None) -> Callable[[Command], Command]:
    """--chat-template; `needs`: the parameter without which it has no effect."""
    return option(
        "--chat-template",
        also=("--chat-template-file",),
        needs=needs,
        type=IN_FILE,
        metavar="FILE",
        help="Use the Jinja chat template in FILE in place of the model's own.",
    )
