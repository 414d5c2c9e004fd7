"""Takes from Python what it lacks on Windows, as far as this system's own libraries bear it.

As a script it then runs the command with the arguments given, or without any the process of chat
templates.
"""

import os
import runpy
import select
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "tty")
_NAMES: dict[ModuleType, tuple[str, ...]] = {
    os: (
        *("fork", "forkpty", "register_at_fork", "sched_getaffinity", "sched_setaffinity"),
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"),
    ),
    select: ("epoll", "poll"),
    signal: ("ITIMER_PROF", "SIGPROF", "setitimer"),
}


def take_away() -> None:
    """Comes before the import of what uses these names, but for libraries that know Windows."""
    import filelock  # noqa: F401
    import psutil  # noqa: F401

    sys.modules |= dict.fromkeys(MODULES)  # type: ignore[arg-type]  # importing them fails
    for module, names in _NAMES.items():
        for name in names:
            delattr(module, name)
    os.supports_dir_fd.clear()


def main() -> int:
    take_away()
    if len(sys.argv) == 1:
        package = find_spec("specqd")
        assert package is not None
        assert package.origin is not None
        worker = Path(package.origin).with_name("text") / "template_worker.py"
        runpy.run_path(str(worker), run_name="__main__")
        return 0
    from specqd.cli import main
    from specqd.text import template_worker

    template_worker.__file__ = __file__
    return main()


if __name__ == "__main__":
    sys.exit(main())
