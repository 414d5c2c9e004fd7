"""With --quiet, a command prints nothing but errors on standard error."""

import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest

from support.batches import line
from support.command_line import PROGRAM, Run
from support.served import Reply, Served

TEXT = ("-p", "Hello", "-n", "8", "--seed", "7")


def test_generate_prints_only_its_text(small_model: Path, run: Run) -> None:
    loud = run("generate", small_model, *TEXT)
    status, out, err = run("generate", small_model, *TEXT, "--quiet")
    assert (status, out, err) == (0, loud[1], "")
    assert loud[2] != ""


def test_notes_and_the_ends_of_answers_are_left_out(small_model: Path, run: Run) -> None:
    for words in (("chat", small_model, "Hello"), ("chat", small_model, "-q", "Hello")):
        status, out, err = run(*words, "-n", "4", "--seed", "7")
        assert status == 0
        assert out != ""
        assert (err == "") == ("-q" in words)


def test_pack_and_batch_say_nothing(small_model: Path, tmp_path: Path, run: Run) -> None:
    packed, requests = tmp_path / "packed", tmp_path / "requests.jsonl"
    status, _, err = run("pack", small_model, packed, "--calibrate", "none", "-q")
    assert (status, err) == (0, "")
    request = line("a", "/v1/completions", {"prompt": "x", "max_tokens": 2})
    requests.write_text(json.dumps(request) + "\n")
    status, _, err = run("batch", requests, "-o", tmp_path / "answers.jsonl", packed, "-q")
    assert (status, err) == (0, "")
    again = run("batch", requests, "-o", tmp_path / "answers.jsonl", packed, "-q")
    assert again == (0, "", "")


def test_errors_are_still_printed(tmp_path: Path, run: Run) -> None:
    status, out, err = run("generate", tmp_path, *TEXT, "-q")
    assert (status, out) == (1, "")
    assert err.startswith("specqd: error: ")


def test_a_variable_makes_commands_quiet(
    small_model: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECQD_QUIET", "1")
    assert run("generate", small_model, *TEXT)[2] == ""
    assert "prompt:" in run("generate", small_model, *TEXT, "--stats")[2]  # what was asked for


def test_a_quiet_command_leaves_the_environment_as_it_was(small_model: Path, run: Run) -> None:
    before = dict(os.environ)
    run("generate", small_model, *TEXT, "-q")
    assert dict(os.environ) == before


def test_quiet_and_more_output_cannot_be_combined(small_model: Path, run: Run) -> None:
    for option in ("--stats", "--explain"):
        status, _, err = run("generate", small_model, *TEXT, "-q", option)
        assert status == 2
        assert "cannot be combined" in err


def test_a_quiet_server_says_nothing(small_model: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs specqd[serve]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", str(small_model), "-q", "--port", str(port), "--threads", "1"]
    process = subprocess.Popen([*PROGRAM, *words], stderr=subprocess.PIPE, text=True)
    try:
        reply = _first_answer(Served(process, port))
        assert (reply.status, reply.content["usage"]["completion_tokens"]) == (200, 2)
    finally:
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert err == ""


def test_a_quiet_server_on_a_free_port_tells_only_its_address(small_model: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs specqd[serve]")
    words = ["serve", str(small_model), "-q", "--port", "0", "--threads", "1"]
    process = subprocess.Popen([*PROGRAM, *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = re.fullmatch(
            r"specqd: serving .* at http://127.0.0.1:(\d+)\n", process.stderr.readline()
        )
        assert address is not None
        assert _first_answer(Served(process, int(address[1]))).status == 200
    finally:
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert err == ""


def _first_answer(served: Served) -> Reply:
    for _ in range(600):
        try:
            return served.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise AssertionError("the server does not start")
