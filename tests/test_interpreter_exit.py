"""The interpreter ends while a daemon thread runs or loads a model."""

import subprocess
import sys

import pytest

# The thread is in native code nearly always, and comes back from it while `last` takes its time.
GENERATING = """
import threading
from specqd import LLM, SamplingParams

class Last:
    def __del__(self):
        sum(range(10_000_000))

last = Last()
llm = LLM(threads=2)
has_begun = threading.Event()

def generate():
    while True:
        for _ in llm.stream("import os", SamplingParams(1000, ignore_eos=True)):
            has_begun.set()

threading.Thread(target=generate, daemon=True).start()
has_begun.wait()
"""

LOADING = """
import threading
from specqd import LLM

class Last:
    def __del__(self):
        sum(range(10_000_000))

last = Last()
has_begun = threading.Event()

def load():
    while True:
        LLM(threads=2, progress=lambda *_: has_begun.set())

threading.Thread(target=load, daemon=True).start()
has_begun.wait()
"""


@pytest.mark.parametrize("program", [GENERATING, LOADING], ids=["generating", "loading"])
def test_a_daemon_thread_in_native_code_does_not_abort_the_process(program: str) -> None:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
