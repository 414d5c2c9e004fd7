"""Files of JSON lines."""

import json
from collections.abc import Sequence
from pathlib import Path


def write_lines(path: Path, entries: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in entries))
    return path
