"""Runs one engine in its own process, which its parent may stop and continue between requests.

    python worker.py ENGINE MODEL WORK THREADS < requests > answers

The first input line lists the arms; the first output line is the engine's version and notes.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arms import Arm
from protocol import Peer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from processes import answer

MODULES = {
    "specqd": "ours",
    "llama.cpp": "llama_cpp",
    "openvino": "openvino_genai_peer",
    "transformers": "transformers_peer",
}


def opened(arms: list[dict[str, Any]]) -> tuple[dict[str, Any], Callable[[Any], dict[str, Any]]]:
    engine, model, work, threads = sys.argv[1:]
    module = importlib.import_module(MODULES[engine])
    peer: Peer = module.open_peer(
        [Arm(**fields) for fields in arms], Path(model), Path(work), int(threads)
    )
    report = {"version": peer.version, "notes": peer.notes, "bytes_read": peer.bytes_read}
    return report, lambda request: asdict(peer.generate(**request))


if __name__ == "__main__":
    answer(opened)
