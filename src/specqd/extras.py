"""The command that installs the packages of an extra. Knows only what SpecQD's metadata lists.

SpecQD is on no package index, and installing it again would compile its core again.
"""

import re
import shlex
import sys
from collections.abc import Iterator


def install_command(extra: str) -> str:
    """Returns a command that adds the packages of an extra to this environment."""
    return shlex.join((sys.executable or "python3", "-m", "pip", "install", *_packages(extra)))


def _packages(extra: str) -> Iterator[str]:
    """Yields the requirements of an extra, with those of extras that it contains."""
    from importlib.metadata import requires  # at the top it would delay `specqd --help`

    for line in requires("specqd") or ():
        package, _, marker = line.partition(";")
        if not re.fullmatch(rf"""\s*extra == ['"]{extra}['"]""", marker):
            continue
        if inner := re.fullmatch(r"specqd\[(\w+)\]", package.strip()):
            yield from _packages(inner[1])
        else:
            yield package.strip()
