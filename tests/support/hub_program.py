"""Runs the program with a fake hub and a cache of its own."""

import json
import os
import subprocess
from pathlib import Path

from support.command_line import run_program
from support.fake_hub import FakeHub


class Program:
    """The program with a fake hub and a cache of its own."""

    def __init__(self, hub: FakeHub, home: Path) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        self._environment = kept | {"HF_HOME": str(home / "home"), "HF_ENDPOINT": hub.endpoint}
        self._home = home

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return run_program(*arguments, env=self._environment, cwd=self._home)

    def models(self) -> dict[str, dict[str, object]]:
        listed = json.loads(self("models", "--json").stdout)
        return {each["name"]: each for each in listed["models"]}
