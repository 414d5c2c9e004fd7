"""`specqd batch`: what it prints, and that kills do not change the answers."""

import os
import pty
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from specqd import LLM
from specqd.cli import main
from specqd.cli.batch import name_in_answers
from specqd.openai.batch import Answers, Batch
from support.batches import TEMPLATE, answer_file, answers_by_id, random_requests, request
from support.command_line import PROGRAM, Refuse
from support.fixtures import a_model, an_llm
from support.gguf_files import convert
from support.random_models import Shape, make_model
from support.writers import write_lines as write

model = a_model(Shape(is_peaked=True, context=256), TEMPLATE)
llm = an_llm("model")


@pytest.mark.slow
def test_twenty_kills_leave_an_undisturbed_file(
    tmp_path: Path, model: Path, llm: LLM, seed: int
) -> None:
    rng = random.Random(seed)
    source = write(tmp_path / "in.jsonl", random_requests(rng, 300))
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    answer_file(llm, source, whole)
    command = [*PROGRAM, "batch", str(source), str(model), "-o", str(out), "--threads", "1"]
    sizes = []
    while len(sizes) < 20:
        before = out.stat().st_size if out.exists() else 0
        most = (whole.stat().st_size - before) // (21 - len(sizes))
        goal = before + rng.randrange(max(most, 1))  # bytes at which to kill: some work remains
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            while (out.stat().st_size if out.exists() else -1) < goal or rng.random() < 0.5:
                assert process.poll() is None, process.stderr and process.stderr.read()
                time.sleep(0.0005)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        sizes.append(out.stat().st_size)
    ended = subprocess.run(command, capture_output=True, check=True)
    assert b"answered before" in ended.stderr
    assert answers_by_id(out) == answers_by_id(whole)
    again = subprocess.run(command, capture_output=True, check=True)
    assert b"answered already" in again.stderr
    assert len(set(sizes)) > 5  # kills at different places


def test_the_command_answers_and_prints_a_summary(
    tmp_path: Path, model: Path, llm: LLM, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.jsonl", [request("a", seed=seed), request("b", prompt="a" * 300)])
    os.utime(source, (1, 1))
    out, expected = tmp_path / "out.jsonl", tmp_path / "expected.jsonl"
    status = main(["batch", str(source), str(model), "-o", str(out), "--draft", "none"])
    printed = capsys.readouterr()
    assert (status, printed.out) == (0, "")
    assert printed.err.startswith("specqd: 2 answers, 4 tokens")
    assert "1 refused with status 400" in printed.err
    answer_file(llm, source, expected)
    assert answers_by_id(out) == answers_by_id(expected)


@pytest.mark.filterwarnings("ignore::specqd.errors.RoundingWarning")
def test_answers_name_a_gguf_file_without_its_path(tmp_path: Path, seed: int) -> None:
    made = make_model(tmp_path / "made", Shape(), seed)
    file = convert(made, tmp_path / "model-f16.gguf", "F16")
    source = write(tmp_path / "in.jsonl", [request("a", seed=seed)])
    out = tmp_path / "out.jsonl"
    assert main(["batch", str(source), str(file), "-o", str(out)]) == 0
    [answer] = answers_by_id(out).values()
    assert answer["response"]["body"]["model"] == "model-f16.gguf"
    assert str(tmp_path) not in out.read_text()


@pytest.mark.parametrize(
    ("given", "name"), [("qwen3:0.6b", "Qwen/Qwen3-0.6B"), ("owner/name", "owner/name")]
)
def test_a_model_to_fetch_has_the_name_of_its_repository(given: str, name: str) -> None:
    assert name_in_answers(given) == name


def test_a_refusal_of_the_file_is_status_1_and_one_line(tmp_path: Path, refuse: Refuse) -> None:
    source = write(tmp_path / "in.jsonl", [request("a"), request("a")])
    refuse("batch", source, "-o", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_progress_shows_on_a_terminal(tmp_path: Path, model: Path, seed: int) -> None:
    source = write(tmp_path / "in.jsonl", [request(str(i), max_tokens=250) for i in range(300)])
    leader, terminal = pty.openpty()
    command = [*PROGRAM, "batch", str(source), str(model), "-o", str(tmp_path / "out.jsonl")]
    shown = b""
    with subprocess.Popen(command, stderr=terminal) as process:
        os.close(terminal)
        while b"Answering" not in shown:
            shown += os.read(leader, 4096)
        process.kill()
    os.close(leader)


def test_ctrl_c_tells_how_to_continue(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, out = (
        write(tmp_path / "in.jsonl", [request("a"), request("b"), request("c")]),
        tmp_path / "out",
    )

    def interrupted(llm: LLM, batch: Batch, answers: Answers, progress: object) -> int:
        answers.append({"b": {"custom_id": "b"}})
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("specqd.openai.batch.answer_batch", interrupted)
        assert main(["batch", str(source), str(model), "-o", str(out)]) == 130
    told = capsys.readouterr().err
    assert told.strip() == "specqd: 1 of 3 requests are answered; the same command continues"


def test_a_dash_is_no_file_for_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "in.jsonl", [request("a")])
    assert main(["batch", str(source), "-o", "-"]) == 2
    assert "name a file" in capsys.readouterr().err
    assert not (tmp_path / "-").exists()
