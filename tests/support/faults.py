"""Deliberate faults: tokenizers that panic, and a program whose engine fails.

    python tests/support/faults.py raise|hang serve ARGUMENTS

runs the command line with an engine that raises or never returns once it has made eight tokens.
"""

import json
import sys
from pathlib import Path
from threading import Event

SLOW_PATTERN = "(x+x+)+y"  # the library's search gives up, and panics
PANIC_TEXT = "x" * 40


class FaultError(BaseException):
    """Not an Exception, like the panics of Rust libraries."""


def add_panics(directory: Path) -> Path:
    """Makes a model's tokenizer panic when it encodes PANIC_TEXT or decodes the token "x"."""
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    split = {"type": "Split", "pattern": {"Regex": SLOW_PATTERN}, "behavior": "Isolated"}
    steps = [split | {"invert": False}, tokenizer["pre_tokenizer"]]
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    nothing = {"type": "Replace", "pattern": {"String": "x"}, "content": ""}
    strip = {"type": "Strip", "content": " ", "start": 0, "stop": 1}  # panics on an empty token
    tokenizer["decoder"] = {"type": "Sequence", "decoders": [nothing, strip]}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return directory


def main(fault: str, arguments: list[str]) -> int:
    from specqd.cli import main as run
    from specqd.engine.engine import Engine
    from specqd.engine.generation import Generation
    from specqd.server import listening, opening

    step = Engine.step

    def faulty(engine: Engine) -> list[Generation]:
        if engine.stats.new_tokens >= 8:
            if fault == "hang":
                Event().wait()
            raise FaultError("a fault on purpose")
        return step(engine)

    Engine.step = faulty  # type: ignore[method-assign]
    opening.DRAIN_SECONDS = listening._SLOW_READERS_SECONDS = listening._LAST_SECONDS = 1
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
