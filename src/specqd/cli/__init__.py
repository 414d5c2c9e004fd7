"""The command line: arguments in, text and an exit status out. Computes nothing itself.

Exit status: 0 done, 1 an error that the user can fix (one line), 2 wrong usage, 130 Ctrl-C.
"""

import _thread
import errno
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Literal, TextIO

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a quota, the longest file
_DESCRIBING = ("chat", "inspect", "pack", "serve")  # commands that say what a model's weights are


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (by default the process's own); returns its exit status."""
    before, sys.unraisablehook = sys.unraisablehook, _repeat_lost_interrupt
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    finally:
        sys.unraisablehook = before


def _repeat_lost_interrupt(lost: "sys.UnraisableHookArgs") -> None:
    """Repeats a Ctrl-C that came within a callback of the garbage collector, where Python drops
    exceptions."""
    if lost.exc_type is KeyboardInterrupt:
        _thread.start_new_thread(_interrupt_soon, (_thread.get_ident(),))
    else:
        sys.__unraisablehook__(lost)


def _interrupt_soon(main: int) -> None:
    time.sleep(0.01)  # until the callback has ended
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:  # this also ends a wait of the main thread
        signal.pthread_kill(main, signal.SIGINT)


def _nothing(mode: Literal["r", "w"]) -> TextIO:
    return open(os.devnull, mode, encoding="utf-8")


def _run(arguments: Sequence[str] | None) -> int:
    import click

    from specqd.cli.app import app
    from specqd.cli.settings import read_settings
    from specqd.cli.terminal import one_line
    from specqd.errors import SpecqdError, SpecqdWarning

    # Streams that the caller has closed: nothing is read, and nobody sees what is written.
    sys.stdin = sys.stdin or _nothing("r")
    sys.stdout = sys.stdout or _nothing("w")
    sys.stderr = sys.stderr or _nothing("w")
    if isinstance(sys.stdout, TextIOWrapper):
        if sys.platform == "win32":  # as elsewhere, instead of a code page and other ends of lines
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        sys.stdout.reconfigure(errors="backslashreplace")  # characters outside the encoding
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # our own errors say it in one line
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            warnings.simplefilter("always", SpecqdWarning)
            status = app(
                args=arguments,
                prog_name="specqd",
                standalone_mode=False,
                default_map=read_settings(app),
            )
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit
        return 1
    except SpecqdError as error:
        problem = str(error)
    except MemoryError:
        problem = "out of memory; close other programs, use a smaller model or --context"
    except OSError as error:
        name = error.filename2 or error.filename  # of a copy: what was written
        named = f"{name}: " if name else ""
        remedy = "; free space there, then try again" if error.errno in _FULL else ""
        problem = f"{named}{error.strerror or error}{remedy}"
    print(f"specqd: error: {one_line(problem)}", file=sys.stderr)
    return 1


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Prints our own warnings, one line each; drops those of Python and its libraries."""
    from specqd.cli.command import name_option
    from specqd.cli.terminal import inform
    from specqd.errors import SpecqdWarning

    if isinstance(message, SpecqdWarning) and not _is_silent(message):
        name_option(message)
        inform(f"note: {message}")


def _is_silent(warning: Warning) -> bool:
    """Whether the running command leaves the warning to those that describe a model."""
    import click

    from specqd.errors import RoundingWarning

    context = click.get_current_context(silent=True)
    describes = context is not None and context.info_name in _DESCRIBING
    return isinstance(warning, RoundingWarning) and not describes
