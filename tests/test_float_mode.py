"""The core computes in its own floating-point mode and restores the caller's."""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from specqd import _native
from specqd._native import testing
from specqd.model.model import Machine, Model
from support.fixtures import a_model
from support.random_models import Shape

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux",
    reason="reads MXCSR out of the fenv_t of glibc on x86-64",
)

FLUSH = 0x8040  # subnormal results and inputs are zero
ROUND_UP = 0x4000
MODES = {"as it is": 0, "flushing": FLUSH, "rounding up": ROUND_UP}
_MXCSR_OFFSET = 28  # after the x87 environment


def read_mode() -> int:
    environment = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).fegetenv(environment)
    return int.from_bytes(environment.raw[_MXCSR_OFFSET : _MXCSR_OFFSET + 4], "little")


def write_mode(mode: int) -> None:
    environment = ctypes.create_string_buffer(64)
    library = ctypes.CDLL(None)
    library.fegetenv(environment)
    environment[_MXCSR_OFFSET : _MXCSR_OFFSET + 4] = mode.to_bytes(4, "little")
    library.fesetenv(environment)


@contextmanager
def floating_point(mode: int) -> Iterator[None]:
    """Sets the bits of `mode` in the thread's mode."""
    before = read_mode()
    write_mode(before | mode)
    try:
        yield
    finally:
        write_mode(before)


directory = a_model(Shape())


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("threads", [1, 2])
def test_bits_do_not_depend_on_the_callers_mode(directory: Path, threads: int, mode: int) -> None:
    tokens = list(range(40))

    def everything() -> list[bytes]:
        """Bits of a model opened here: logits and log-probabilities, and a sampled token."""
        model = Model.open(directory, machine=Machine.choose(threads), cache_positions=256)
        precisions = (model.logits(tokens), model.as_draft().logits(tokens))
        logprobs = [_native.log_softmax(rows[-1]) for rows in precisions]
        sampled = testing.sample_token(
            _native.Sampler(temperature=0.8, seed=3), precisions[0][-1], 40
        )
        return [rows.tobytes() for rows in (*precisions, *logprobs)] + [repr(sampled).encode()]

    expected = everything()
    with floating_point(mode):
        found = everything()
    assert found == expected


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_native_calls_leave_the_callers_mode_alone(directory: Path, mode: int) -> None:
    model = Model.open(directory, machine=Machine.choose(1), cache_positions=256)
    row = np.array([1e-40, 1.0, 2.0], np.float32)
    calls = {
        "forward": lambda: model.logits([1, 2, 3]),
        "open": lambda: Model.open(directory, machine=Machine.choose(1), cache_positions=256),
        "log_softmax": lambda: _native.log_softmax(row),
        "logprob_of": lambda: _native.logprob_of(row, 1),
        "top_logprobs": lambda: _native.top_logprobs(row, 2),
        "sampling": lambda: testing.sample_token(_native.Sampler(temperature=0.8), row, 3),
    }
    for name, call in calls.items():
        with floating_point(mode):
            before = read_mode()
            call()
            assert read_mode() & ~0x3F == before & ~0x3F, name  # the low six bits are sticky


def test_subnormals_are_numbers_to_the_caller_and_zeros_to_the_core() -> None:
    tiny = np.array([1e-40], np.float32)
    row = np.array([1e-40, 0.0], np.float32)
    assert (
        testing.sample_token(_native.Sampler(), row, 0)[0] == 0
    )  # both are zero: the lowest id wins
    assert testing.sample_token(_native.Sampler(), row[::-1].copy(), 0)[0] == 0
    assert (tiny * np.float32(1.0))[0] > 0
