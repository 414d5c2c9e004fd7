"""Runs the command line, but a model named `held` loads only once a file is there:
`python held_loads.py FILE COMMAND...`

When its load has begun, FILE.begun is there.
"""

import sys
import time
from pathlib import Path
from typing import Any


def main(gate: Path, arguments: list[str]) -> int:
    from specqd.cli import main as run
    from specqd.cli import serving

    load = serving.load_llm

    def held_back(path: Path, *others: Any, **options: Any) -> Any:
        if path.name == "held":
            gate.with_suffix(".begun").touch()
            while not gate.exists():
                time.sleep(0.01)
        return load(path, *others, **options)

    serving.load_llm = held_back
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
