"""An engine in its own process, stopped between its turns: the parent's and the child's side.

    python worker.py ENGINE MODEL WORK THREADS < requests > answers

The first input line lists the arms; the first output line is the engine's version and notes.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import processes
from arms import Arm
from protocol import REPORTED, Peer, Run

MODULES = {
    "specqd": "ours",
    "llama.cpp": "llama_cpp",
    "openvino": "openvino_genai_peer",
    "transformers": "transformers_peer",
}
_TURN_SECONDS = 600.0


class Worker(processes.Worker):
    """Raises RuntimeError if the engine does not answer."""

    def __init__(self, arms: Sequence[Arm], model: Path, work: Path, threads: int) -> None:
        self.arms = tuple(arms)
        log = work / "logs" / f"{model.name} {arms[0].process}.log".replace(" ", "_")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            super().__init__(
                [sys.executable, __file__, arms[0].engine, model, work, threads],
                [asdict(arm) for arm in arms],
                errors=errors,
                environment={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
            )

    def run(self, arm: Arm, prompt: Sequence[int], new_tokens: int) -> Run:
        request = {"arm": arm.name, "prompt": list(prompt), "new_tokens": new_tokens}
        return Run(**self.ask(request, _TURN_SECONDS))

    def memory(self) -> processes.Memory | None:
        """The memory of the process that holds the weights; None if it has ended."""
        try:
            return processes.Memory.of(self.report["process"])
        except OSError:
            return None


def opened(arms: list[dict[str, Any]]) -> processes.Opened:
    engine, model, work, threads = sys.argv[1:]
    open_peer = importlib.import_module(MODULES[engine]).open_peer
    peer: Peer = open_peer([Arm(**each) for each in arms], Path(model), Path(work), int(threads))
    report = {field: getattr(peer, field) for field in REPORTED}
    return report, lambda request: asdict(peer.generate(**request))


if __name__ == "__main__":
    processes.answer(opened)
