"""Runs the program in its own process; the fixture `run` runs it in this one."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "specqd"]

Run = Callable[..., tuple[int, str, str]]  # arguments -> status, stdout, stderr


def run_program(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, **options)
