"""Worker processes of the compared engines."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import processes
from arms import Arm
from protocol import Run

WORKER = Path(__file__).with_name("worker.py")
_TURN_SECONDS = 60.0


class Worker:
    """An engine in its own process, stopped between its turns. Raises RuntimeError if it does not
    answer."""

    def __init__(self, arms: Sequence[Arm], model: Path, work: Path, threads: int) -> None:
        self.arms = tuple(arms)
        log = work / "logs" / f"{model.name} {arms[0].process}.log".replace(" ", "_")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            self._process = processes.Worker(
                [sys.executable, WORKER, arms[0].engine, model, work, threads],
                [asdict(arm) for arm in arms],
                errors=errors,
                environment={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
            )
        report = self._process.report
        self.version: str = report["version"]
        self.notes: str = report["notes"]
        self.bytes_read: dict[str, int] = report["bytes_read"]

    def run(self, arm: Arm, prompt: Sequence[int], new_tokens: int) -> Run:
        request = {"arm": arm.name, "prompt": list(prompt), "new_tokens": new_tokens}
        return Run(**self._process.ask(request, _TURN_SECONDS))

    def end(self) -> None:
        self._process.end()
