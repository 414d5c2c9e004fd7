"""The process that renders chat templates works from any kind of program, and after it ended."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from specqd.errors import MachineError
from specqd.text import template_process as module
from specqd.text import template_worker as worker
from specqd.text.template_process import TemplateLimitError, TemplateProcess, used_by
from support import windows_like

NOW = datetime(2026, 1, 2)
SLOW = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"


@pytest.fixture
def process() -> TemplateProcess:
    return TemplateProcess()


def render(process: TemplateProcess, text: str) -> str:
    return process.render("{{ text }}{{ strftime_now('%Y') }}", {"text": text}, NOW)


def child(process: TemplateProcess) -> "subprocess.Popen[bytes]":
    assert process._process is not None
    return process._process


def test_one_process_renders_all_templates(process: TemplateProcess) -> None:
    assert render(process, "a") == "a2026"
    first = child(process)
    assert process.render("{{ [text] }}", {"text": "b"}, NOW) == "['b']"
    assert child(process) is first


def kill(process: TemplateProcess) -> None:
    child(process).kill()
    child(process).wait()


def time_out(process: TemplateProcess) -> None:
    with pytest.raises(TemplateLimitError, match="takes too long"):
        process.render(SLOW, {}, NOW, cpu_seconds=0.05)


def run_out_of_memory(process: TemplateProcess) -> None:
    with pytest.raises(TemplateLimitError, match="too much memory"):
        process.render("{{ 'x' * 10**10 }}", {}, NOW)


def be_interrupted(process: TemplateProcess) -> None:
    """Ctrl-C after the request was sent: its reply must not answer the next request."""

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Watch, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            render(process, "of another request")


@pytest.mark.parametrize("end", [kill, time_out, run_out_of_memory, be_interrupted])
def test_a_process_that_ended_is_replaced(
    end: Callable[[TemplateProcess], None], process: TemplateProcess
) -> None:
    assert render(process, "a") == "a2026"
    first = child(process)
    end(process)
    assert first.poll() is not None
    assert render(process, "b") == "b2026"


def test_a_process_that_ends_while_it_renders_is_reported(
    process: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    render(process, "a")
    os.kill(child(process).pid, signal.SIGSTOP)  # so that it cannot answer first
    result = module._Watch.result

    def result_after_end(*arguments: Any) -> tuple[bytes, bytes]:
        child(process).kill()
        return result(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module._Watch, "result", result_after_end)
        with pytest.raises(TemplateLimitError, match="its process ended with status -9"):
            render(process, "b")
    assert render(process, "c") == "c2026"


def test_the_process_ends_with_its_owner() -> None:
    process = TemplateProcess()
    render(process, "a")
    running = child(process)
    del process
    gc.collect()
    assert running.returncode == -signal.SIGKILL


def test_memory_is_watched_where_the_kernel_sets_no_limit(
    process: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert used_by(os.getpid())[1] > 1 << 20
    monkeypatch.setattr(worker, "BOUNDS_MEMORY", False)
    monkeypatch.setattr(worker, "MOST_BYTES", 1)  # in this process only
    with pytest.raises(TemplateLimitError, match="too much memory"):
        process.render(SLOW, {}, NOW, cpu_seconds=60.0)


def test_time_is_watched_where_the_kernel_sets_no_limit(
    process: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "BOUNDS_TIME", False)
    monkeypatch.setattr(worker, "__file__", windows_like.__file__)
    assert render(process, "a") == "a2026"
    with pytest.raises(TemplateLimitError, match="takes too long"):
        process.render(SLOW, {}, NOW, cpu_seconds=0.1)
    assert child(process).returncode == -signal.SIGKILL  # it did not end by itself
    assert render(process, "b") == "b2026"


def test_the_error_for_a_python_that_cannot_be_started_names_it(
    process: TemplateProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.sys, "executable", "/nowhere/python")
    with pytest.raises(MachineError, match="/nowhere/python: cannot be started"):
        render(process, "a")


# Renders in this process, in threads, under asyncio, in a fork while threads render, and after it.
PROGRAM = """
import asyncio, os, sys
from concurrent.futures import ThreadPoolExecutor
from specqd.text.chat_template import ChatTemplate

template = ChatTemplate("{{ messages[0].content }}", "m")
def check(text):
    assert template.render([{"role": "user", "content": text}]) == text

async def together():
    await asyncio.gather(*(asyncio.to_thread(check, str(i)) for i in range(50)))

check("first")
asyncio.run(together())
with ThreadPoolExecutor(8) as pool:
    done = pool.map(check, map(str, range(400)))
    forked = os.fork()
    if forked == 0:
        check("in the fork")
        os._exit(7)
    list(done)
assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 7
check("after the fork")
print("done")
"""


@pytest.mark.parametrize("is_piped", [False, True])
def test_it_works_from_threads_asyncio_forks_and_programs_without_a_file(is_piped: bool) -> None:
    command = [sys.executable, *([] if is_piped else ["-c", PROGRAM])]
    ended = subprocess.run(
        command, input=PROGRAM if is_piped else "", capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert (ended.stdout, ended.returncode) == ("done\n", 0), ended.stderr
