"""The program as tests run it: in a process of its own, or in this one by the fixture `run`."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "specqd"]

Run = Callable[..., tuple[int, str, str]]  # the words of a command -> status, stdout, stderr


def run_program(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, **options)
