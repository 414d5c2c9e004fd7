"""The interpreter ends while a daemon thread runs a model."""

import subprocess
import sys

# The thread is in native code nearly always, and comes back from it while `last` takes its time.
PROGRAM = """
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


def test_a_daemon_thread_within_a_round_does_not_abort_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
