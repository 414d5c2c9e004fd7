"""A child that does not outlive its parent, however that ends. Linux."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """For `preexec_fn`: the kernel kills the child, stopped or not, when its parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
