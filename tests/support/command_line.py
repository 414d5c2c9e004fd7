"""Runs the program in its own process, or in this one with the fixtures `run` and `refuse`."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "specqd"]

Run = Callable[..., tuple[int, str, str]]  # arguments -> status, stdout, stderr
Refuse = Callable[..., str]  # arguments of a command that must fail -> its one line of error


def run_program(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [*PROGRAM, *map(str, arguments)]
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(command, capture_output=True, check=False, **options)
