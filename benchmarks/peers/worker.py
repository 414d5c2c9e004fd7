"""Runs one engine in its own process, which its master may stop and continue between requests.

    python worker.py ENGINE MODEL WORK THREADS < requests > answers

The first input line lists the arms; the first output line is the engine's version and notes.
"""

import importlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arms import Arm
from protocol import Peer

MODULES = {
    "specqd": "ours",
    "llama.cpp": "llama_cpp",
    "openvino": "openvino_genai_peer",
    "transformers": "transformers_peer",
}


def main() -> None:
    engine, model, work, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print too
    arms = [Arm(**fields) for fields in json.loads(sys.stdin.readline())]
    open_peer = importlib.import_module(MODULES[engine]).open_peer
    peer: Peer = open_peer(arms, Path(model), Path(work), int(threads))
    _say(answers, {"version": peer.version, "notes": peer.notes, "bytes_read": peer.bytes_read})
    for line in sys.stdin:
        _say(answers, asdict(peer.generate(**json.loads(line))))


def _say(answers: Any, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=answers)


if __name__ == "__main__":
    main()
