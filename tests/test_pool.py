"""The thread pool uses the threads that it may use, and its runs neither hang nor mix."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specqd import _native
from specqd._native import testing
from specqd.errors import MachineError
from specqd.model.model import Machine, Model
from support.random_models import Shape, bf16_bits, make_model

ISA = _native.available_isas()[0]
WEIGHTS = bf16_bits(np.random.default_rng(1).standard_normal((200, 96), np.float32))


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 16])
def test_a_pool_has_the_threads_it_was_given(threads: int) -> None:
    pool = _native.Pool(threads)
    assert pool.threads == threads
    np.testing.assert_array_equal(
        testing.unpack(_native.pack(pool, ISA, [WEIGHTS], False, "fp4"), ISA), WEIGHTS
    )


@pytest.mark.parametrize("threads", [0, -1])
def test_a_pool_without_threads_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="thread"):
        _native.Pool(threads)


@given(count=st.integers(0, 5000), half_of_least=st.integers(1, 8), threads=st.integers(1, 130))
def test_panels_are_claimed_once_in_runs_that_grow_short(
    count: int, half_of_least: int, threads: int
) -> None:
    least = 2 * half_of_least
    ranges = testing.shrinking_ranges(count, least, threads)
    assert [panel for first, last in ranges for panel in range(first, last)] == list(range(count))
    assert all(first % 2 == 0 for first, _ in ranges)  # gate and up panels come in pairs
    sizes = [last - first for first, last in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size >= least for size in sizes[:-1])
    # A thread of half the speed ends its first claim when the others have done their share.
    assert all(size <= max(least, count / (2 * threads)) for size in sizes)


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_a_machine_refuses_numbers_of_threads_out_of_range(threads: int) -> None:
    with pytest.raises(MachineError, match=f"^threads {threads}: "):
        Machine.choose(threads)


def test_many_pools_and_runs_end() -> None:
    for _ in range(30):
        for threads in (1, 2, 4):
            pool = _native.Pool(threads)
            for _ in range(20):
                _native.pack(pool, ISA, [WEIGHTS], False, "fp4")
            del pool
    idle = [_native.Pool(3) for _ in range(20)]  # never run
    del idle


def run_python(code: str, *, cpus: Iterable[int] | None = None) -> list[str]:
    """The words that `code` prints in a process of its own, which runs only on `cpus`."""
    first = "" if cpus is None else f"import os; os.sched_setaffinity(0, {set(cpus)}); "
    completed = subprocess.run(
        [sys.executable, "-c", first + code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.split()


affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity"
)


@affinity
def test_usable_threads_are_within_the_affinity_mask() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    for cpus in ([allowed[0]], [allowed[-1]], allowed):
        [usable] = run_python(
            "from specqd import _native; print(_native.usable_threads())", cpus=cpus
        )
        assert 1 <= int(usable) <= len(cpus)
    assert _native.usable_threads() == int(usable)


@affinity
def test_more_threads_than_cores_make_progress() -> None:
    code = (
        "import numpy as np; from specqd import _native; pool = _native.Pool(6); "
        "w = np.ones((300, 64), np.uint16); isa = _native.available_isas()[0]; "
        "packed = lambda: _native.pack(pool, isa, [w], False, 'fp4'); "
        "ok = all((_native.testing.unpack(packed(), isa) == w).all()"
        " for _ in range(20)); print(ok)"
    )
    assert run_python(code, cpus=[min(os.sched_getaffinity(0))]) == ["True"]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_two_models_may_run_on_one_pool_from_two_threads(threads: int, tmp_path: Path) -> None:
    """Runs from several Python threads wait for each other; each thread has its own model."""
    machine = Machine.choose(threads)
    shapes = [Shape(hidden=96, ffn=200), Shape("qwen3", hidden=64, layers=3)]
    models = [
        Model.open(make_model(tmp_path / str(i), shape, seed=i), machine=machine)
        for i, shape in enumerate(shapes)
    ]
    tokens = [[int(t) for t in np.random.default_rng(i).integers(0, 320, 40)] for i in range(2)]
    expected = [model.logits(each) for model, each in zip(models, tokens, strict=True)]
    found: list[list[NDArray[np.float32]]] = [[], []]

    def work(i: int) -> None:
        for _ in range(30):
            found[i].append(models[i].logits(tokens[i]))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
        assert not worker.is_alive()
    for i in range(2):
        assert len(found[i]) == 30
        for logits in found[i]:
            np.testing.assert_array_equal(logits, expected[i])


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's limit of address space")
def test_threads_that_cannot_be_started_are_an_error_and_those_started_end() -> None:
    """Without address space for their stacks, the system starts only some of the threads."""
    code = """
import os, resource
from specqd import _native
from specqd.errors import MachineError
from specqd.model.model import Machine
_native.usable_threads = lambda: 200
status = open("/proc/self/status").read()
[used] = [int(line.split()[1]) << 10 for line in status.splitlines() if line[:7] == "VmSize:"]
stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
limits = resource.getrlimit(resource.RLIMIT_AS)
assert stack > 0, "stacks of unlimited size have a default that is not known"
resource.setrlimit(resource.RLIMIT_AS, (used + 20 * stack, limits[1]))
before = os.listdir("/proc/self/task")
for _ in range(3):
    try:
        Machine.choose(200)
    except MachineError as error:
        assert os.listdir("/proc/self/task") == before
        print(str(error).replace(" ", "_"))
resource.setrlimit(resource.RLIMIT_AS, limits)
print(Machine.choose(200).pool.threads)
"""
    *errors, threads = run_python(code)
    assert len(errors) == 3
    for error in errors:
        assert re.fullmatch(
            r"200_threads:_the_system_allows_\d+_\(.+\);_use_fewer_threads,_or_raise_its_limits",
            error,
        )
    assert threads == "200"


FORKING = """
import os, signal, sys
from specqd import LLM, SamplingParams, _native
_native.usable_threads = lambda: 3
llm = LLM(sys.argv[1], threads=3)
params = SamplingParams(max_tokens=12, temperature=0)
expected = llm.generate([[65, 66]], params)[0].tokens
child = os.fork()
if child == 0:
    signal.alarm(60)
    tokens = llm.generate([[65, 66]], params)[0].tokens
    grandchild = os.fork()
    if grandchild == 0:
        signal.alarm(60)
        {last}
        os._exit(0 if llm.generate([[65, 66]], params)[0].tokens == expected else 1)
    status = os.waitpid(grandchild, 0)[1]
    os._exit(0 if tokens == expected and not status else 1)
status = os.waitpid(child, 0)[1]
assert llm.generate([[65, 66]], params)[0].tokens == expected
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("last", ["pass", "del llm; os._exit(0)"], ids=["generate", "drop"])
def test_a_forked_process_generates_with_threads_of_its_own(small_model: Path, last: str) -> None:
    """So does a process forked from it, and one that never uses the model ends normally."""
    code = FORKING.format(last=last).replace("sys.argv[1]", repr(str(small_model)))
    assert run_python(code) == ["0"]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_body_that_throws_ends_the_run_on_all_threads(threads: int) -> None:
    pool = _native.Pool(threads)
    for thread in range(threads):
        for barriers in range(4):
            with pytest.raises(MemoryError):
                testing.run_and_throw(pool, thread, barriers)
            packed = _native.pack(pool, ISA, [WEIGHTS], False, "fp4")
            np.testing.assert_array_equal(testing.unpack(packed, ISA), WEIGHTS)
