"""Worker processes, stopped between their turns so that they do not disturb each other."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arms import Arm
from lifetime import end_with_parent
from protocol import Run

MOST_LOAD_SECONDS = 180.0
MOST_TURN_SECONDS = 60.0
WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """An engine in its own process group. Raises RuntimeError where it does not answer."""

    def __init__(self, arms: Sequence[Arm], model: Path, work: Path, threads: int) -> None:
        self.arms = tuple(arms)
        log = work / "logs" / f"{model.name} {arms[0].process}.log".replace(" ", "_")
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        words = [sys.executable, WORKER, arms[0].engine, model, work, threads]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        try:
            report = self._exchange([asdict(arm) for arm in arms], MOST_LOAD_SECONDS)
        except RuntimeError:
            self.end()
            raise
        self.version: str = report["version"]
        self.notes: str = report["notes"]
        self.bytes_read: dict[str, int] = report["bytes_read"]
        self._signal(signal.SIGSTOP)

    def run(self, arm: Arm, prompt: Sequence[int], new_tokens: int) -> Run:
        request = {"arm": arm.name, "prompt": list(prompt), "new_tokens": new_tokens}
        self._signal(signal.SIGCONT)
        try:
            answer = self._exchange(request, MOST_TURN_SECONDS)
        except RuntimeError:
            self.end()  # a late answer would be read in the next turn
            raise
        self._signal(signal.SIGSTOP)
        return Run(**answer)

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _exchange(self, message: Any, seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RuntimeError(f"has ended; see {self._log.name}") from error
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise RuntimeError(f"no answer in {seconds:.0f} s; see {self._log.name}")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"has ended; see {self._log.name}")
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
