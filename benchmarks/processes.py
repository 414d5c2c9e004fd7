"""Worker processes that answer JSON lines, one at a time. Linux.

Between its turns a worker is stopped, so that it takes no time from the others. Needs only the
standard library: the child may run in another interpreter than its parent.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

Opened = tuple[Any, Callable[[Any], Any]]  # a report, and what answers requests

_PR_SET_PDEATHSIG = 1
_LOAD_SECONDS = 600.0
_TURN_SECONDS = 120.0


def end_with_parent() -> None:
    """For `preexec_fn`: the kernel kills the child, running or stopped, when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a process: the most that were resident at a time, pages of mapped files included,
    and those that are resident now, where a page that n processes map counts 1/n."""

    peak: int
    now: int

    @classmethod
    def of(cls, process: int) -> "Memory":
        """Raises OSError if the process has ended."""
        kernel = Path(f"/proc/{process}")
        return cls(
            kilobytes((kernel / "status").read_text(), "VmHWM") * 1024,
            kilobytes((kernel / "smaps_rollup").read_text(), "Pss") * 1024,
        )


def kilobytes(report: str, field: str) -> int:
    """The value of `field: N kB` in a file of /proc."""
    [value] = [line.split()[1] for line in report.splitlines() if line.startswith(f"{field}:")]
    return int(value)


class Worker:
    """A process in a group of its own. Raises RuntimeError if it does not answer in time."""

    def __init__(
        self,
        command: Sequence[object],
        settings: Any,
        *,
        errors: IO[bytes] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Starts the command and waits for its report on `settings`."""
        self._hint = f"; see {errors.name}" if errors else ""
        self._process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        try:
            self.report = self._exchange(settings, _LOAD_SECONDS)
        except RuntimeError:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Lets the process and its children run."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def ask(self, request: Any, seconds: float = _TURN_SECONDS) -> Any:
        """Returns the answer. A worker that fails is ended: its late answer would be mistaken for
        the next one."""
        with self.awake():
            try:
                return self._exchange(request, seconds)
            except RuntimeError:
                self.close()
                raise

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _exchange(self, message: Any, seconds: float) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise RuntimeError(f"the worker has ended{self._hint}") from error
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise RuntimeError(f"no answer in {seconds:.0f} s{self._hint}")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker has ended{self._hint}")
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def answer(opened: Callable[[Any], Opened]) -> None:
    """The child's side. `opened` gets the settings.

    All other output goes to stderr, because libraries print too.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    report, handle = opened(json.loads(sys.stdin.readline()))
    print(json.dumps(report), file=answers)
    for line in sys.stdin:
        print(json.dumps(handle(json.loads(line))), file=answers)
