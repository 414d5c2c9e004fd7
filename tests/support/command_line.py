"""Runs the program in its own process or in this one, or only parses its words."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specqd.cli.app import app
from specqd.cli.settings import read_settings

PROGRAM = [sys.executable, "-m", "specqd"]

Run = Callable[..., tuple[int, str, str]]  # arguments -> status, stdout, stderr
Refuse = Callable[..., str]  # arguments of a command that must fail -> its one line of error


def run_program(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [*PROGRAM, *map(str, arguments)]
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(command, capture_output=True, check=False, **options)


def parsed(command: str, *arguments: str) -> dict[str, Any]:
    """The values that a command would get."""
    with app.make_context(
        "specqd", [], default_map=read_settings(app), resilient_parsing=True
    ) as c:
        _, found, _ = app.resolve_command(c, [command])
        assert found is not None
        with found.make_context(found.name, list(arguments), parent=c) as inner:
            return inner.params
