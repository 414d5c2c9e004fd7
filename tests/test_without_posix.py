"""The package runs where Python lacks POSIX's modules and calls, as on Windows, and says in a line
what it cannot do there."""

import subprocess
import sys
from pathlib import Path

import pytest

from support import windows_like
from support.batches import answers_by_id, request
from support.command_line import PROGRAM
from support.served import serving
from support.writers import write_lines

WINDOWS_LIKE = [sys.executable, windows_like.__file__]
IMPORTED = ("specqd.cli.app", "specqd.cli.chat_input", "specqd.server.listening", "specqd.openai")


def run(program: list[str], *arguments: object, text: str = "") -> tuple[int, str, str]:
    ended = subprocess.run(
        [*program, *map(str, arguments)], input=text, capture_output=True, text=True, check=False
    )
    return ended.returncode, ended.stdout, (ended.stderr.splitlines() or [""])[-1]


def imported(*names: str) -> "subprocess.CompletedProcess[str]":
    code = "from support import windows_like; windows_like.take_away(); import " + ", ".join(names)
    command = [sys.executable, "-c", code]
    tests = Path(__file__).parent
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tests)


def test_the_modules_are_missing_and_the_package_is_imported() -> None:
    pytest.importorskip("uvicorn", reason="needs specqd[serve]")
    for name in windows_like.MODULES:
        assert f"import of {name} halted" in imported(name).stderr
    ended = imported("specqd.cli", "specqd.server", *IMPORTED)
    assert (ended.stderr, ended.returncode) == ("", 0)


def test_generate_writes_the_same_text(small_model: Path) -> None:
    arguments = ("generate", small_model, "-p", "ab", "-n", "20", "--seed", "7")
    status, text, _ = run(WINDOWS_LIKE, *arguments)
    assert (status, text) == run(PROGRAM, *arguments)[:2]
    assert status == 0


def test_chat_renders_its_template_and_answers_the_same(chat_model: Path) -> None:
    arguments = ("chat", chat_model, "-n", "8", "--seed", "7")
    said = "ab\n/regenerate\n"
    status, text, _ = run(WINDOWS_LIKE, *arguments, text=said)
    assert (status, text) == run(PROGRAM, *arguments, text=said)[:2]
    assert (status, bool(text)) == (0, True)


def test_the_server_answers_the_same(chat_model: Path) -> None:
    body = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 8, "seed": 7}
    answers = []
    for program in (WINDOWS_LIKE, PROGRAM):
        with serving(str(chat_model), program=program) as served:
            reply = served.ask("POST", "/v1/chat/completions", body)
            assert reply.status == 200
            answers.append(reply.content["choices"])
    assert answers[0] == answers[1]


def test_a_batch_is_answered_and_continued(tmp_path: Path, small_model: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [request("a"), request("b")])
    out = tmp_path / "out.jsonl"
    arguments = ("batch", source, "-o", out, small_model)
    assert run(WINDOWS_LIKE, *arguments)[0] == 0
    assert {*answers_by_id(out)} == {"a", "b"}
    assert run(WINDOWS_LIKE, *arguments)[2].endswith("all 2 requests are answered already")


def test_a_prompt_cache_is_refused_in_a_line(tmp_path: Path, small_model: Path) -> None:
    arguments = ("generate", small_model, "-p", "ab", "-n", "1", "--prompt-cache", tmp_path)
    status, _, error = run(WINDOWS_LIKE, *arguments)
    problem = f"--prompt-cache {tmp_path}: needs Linux or macOS; leave it out"
    assert (status, error) == (1, f"specqd: error: {problem}")


def test_ray_says_that_it_needs_linux() -> None:
    *_, last = imported("specqd.ray").stderr.splitlines()
    assert last.endswith("Ray's replicas and workers need Linux; use one machine, without Ray")
