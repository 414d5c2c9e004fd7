"""The commands as users run them: output streams and exit statuses."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

import pytest

from specqd import LLM, SamplingParams
from specqd.cli.terminal import aligned, harmless, has_colour
from support.command_line import PROGRAM, Run, run_program
from support.fixtures import a_repeating_model
from support.random_models import Shape, make_model

HEAVY = (
    "huggingface_hub",
    "importlib.metadata",
    "jinja2",
    "numpy",
    "rich",
    "specqd._native",
    "tokenizers",
)
escaping = a_repeating_model(0x1B)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["generate", "--help"], ["bench", "--help"]]
)
def test_help_loads_nothing_heavy(arguments: Sequence[str]) -> None:
    code = (
        f"import sys; from specqd.cli import main; status = main({list(arguments)!r}); "
        f"print([name for name in {HEAVY} if name in sys.modules], status, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[] 0"
    assert ran.stdout


@pytest.mark.parametrize(
    "command", ["generate", "demo", "serve", "inspect", "bench bandwidth", "bench kernels"]
)
def test_help_shows_real_commands(run: Run, command: str) -> None:
    status, out, _ = run(*command.split(), "--help")
    assert status == 0
    assert f"specqd {command}" in out


def test_generate_prints_the_text_and_one_summary_line(small_model: Path, run: Run) -> None:
    status, out, err = run("generate", small_model, "-p", "ab", "-n", "20")
    expected = LLM(small_model).generate("ab", SamplingParams(max_tokens=20, temperature=0))[0]
    assert status == 0
    assert out == expected.text
    assert err.startswith("specqd: 20 tokens, ")
    assert err.endswith(" tokens/s, stopped: length\n")
    assert err.count("\n") == 1


def test_where_both_outputs_go_to_one_file_the_summary_has_its_own_line(small_model: Path) -> None:
    apart = run_program("generate", small_model, "-p", "ab", "-n", "20")
    command = [*PROGRAM, "generate", str(small_model), "-p", "ab", "-n", "20"]
    both = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    assert not apart.stdout.endswith(b"\n")
    assert apart.stderr.startswith(b"specqd: ")
    assert both.stdout.startswith(apart.stdout + b"\nspecqd: ")


@pytest.mark.parametrize("draft", [["none"], ["auto"], ["fp4"], ["fp4:k=3"]])
def test_drafts_change_no_text(small_model: Path, run: Run, draft: list[str]) -> None:
    sampling = ["-n", "30", "--temperature", "0.8", "--seed", "11"]
    plain = run("generate", small_model, "-p", "ab", *sampling)
    assert run("generate", small_model, "-p", "ab", *sampling, "--draft", *draft)[1] == plain[1]


def test_without_a_model_the_shipped_one_is_used(run: Run) -> None:
    status, out, _ = run("generate", "-p", "def fibonacci(n):", "-n", "24")
    assert status == 0
    assert out == LLM().generate("def fibonacci(n):", SamplingParams(24, temperature=0))[0].text


def test_with_statistics_the_summary_names_the_seed_that_repeats_a_sampled_text(
    small_model: Path, run: Run
) -> None:
    command = ["generate", small_model, "-p", "ab", "-n", "20", "--temperature", "0.9"]
    _, first, told = run(*command, "--stats")
    seed = told.splitlines()[0].rpartition("seed ")[2]
    assert run(*command, "--seed", seed)[1] == first


def test_json_is_one_object_as_documented(small_model: Path, run: Run) -> None:
    options = ("-n", "20", "--json", "--draft", "fp4", "--logprobs", "2", "--seed", "5")
    status, out, err = run("generate", small_model, "-p", "ab", *options)
    assert (status, err) == (0, "")
    printed = json.loads(out)
    keys = ["text", "tokens", "logprobs", "finish_reason", "seed", "stats"]
    assert list(printed) == keys
    params = SamplingParams(max_tokens=20, temperature=0, seed=5, logprobs=2)
    [expected] = LLM(small_model).generate("ab", params)[0].completions
    assert printed["text"] == expected.text
    assert printed["tokens"] == expected.tokens
    assert (printed["finish_reason"], printed["seed"]) == ("length", 5)
    assert expected.logprobs is not None
    for shown, each in zip(printed["logprobs"], expected.logprobs, strict=True):
        assert (shown["token"], shown["logprob"]) == (each.token, each.logprob)
        assert [(top["token"], top["logprob"]) for top in shown["top"]] == list(each.top)
    stats = printed["stats"]
    assert stats["prompt_tokens"] == len(LLM(small_model).encode("ab"))
    assert stats["new_tokens"] == 20
    assert all(stats[key] > 0 for key in ("prefill_s", "decode_s", "tokens_per_s"))
    assert [level["name"] for level in stats["levels"]] == ["bf16", "fp4"]
    names = (
        "name forwards rows seconds pick_seconds drafted accepted acceptance acceptance_at "
        "drafted_at mean_accepted_length gain_s gb_per_s cache_share"
    )
    assert {*names.split()} == set(stats["levels"][0])
    assert stats["levels"][1]["acceptance"] is None


def test_json_without_logprobs_has_none(small_model: Path, run: Run) -> None:
    assert "logprobs" not in json.loads(
        run("generate", small_model, "-p", "a", "-n", "2", "--json")[1]
    )


def test_stop_strings_end_the_text(small_model: Path, run: Run) -> None:
    whole = run("generate", small_model, "-p", "ab", "-n", "30")[1]
    stop = whole[10:12]
    stopped = run(
        "generate", small_model, "-p", "ab", "-n", "30", "--stop", "never", "--stop", stop
    )
    assert stopped[1] == whole[: whole.index(stop)]


def test_the_fp4_precision_generates(small_model: Path, run: Run) -> None:
    words = ("-p", "ab", "-n", "8", "--stats", "--precision", "fp4")
    status, _, err = run("generate", small_model, *words)
    assert status == 0
    assert re.search(r"\nlevel +fp4\n", err)
    assert "bf16" not in err


def test_the_table_of_levels_fits_80_columns(small_model: Path, run: Run) -> None:
    words = ("-n", "120", "--ignore-eos", "--stats", "--draft", "fp4:k=60", "--draft", "ngram:k=3")
    err = run("generate", small_model, "-p", "ab", *words)[2]
    assert re.search(r"\nlevel +bf16 +fp4\nforwards +\d+ +\d+\n", err)
    assert "bf16: accepted by position " in err
    assert max(map(len, err.splitlines())) <= 80


def test_prompts_are_read_from_options_files_and_standard_input(
    small_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("héllo\n", encoding="utf-8")
    text = "héllo"
    rest = ["-n", "12"]
    by_option = run_program("generate", small_model, "-p", text, *rest)
    by_file = run_program("generate", small_model, "-f", file, *rest)
    by_pipe = run_program("generate", small_model, *rest, input=f"{text}\n".encode())
    by_dash = run_program("generate", small_model, "-p", "-", *rest, input=text.encode())
    by_named = run_program("generate", small_model, "-f", "-", *rest, input=text.encode())
    assert by_option.returncode == 0
    assert by_option.stdout == by_file.stdout == by_pipe.stdout == by_dash.stdout
    assert by_named.stdout == by_option.stdout


def test_chat_goes_through_the_template(tmp_path: Path, seed: int, run: Run) -> None:
    directory = make_model(tmp_path / "chat", Shape(), seed)
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    (directory / "chat_template.jinja").write_text(template)
    chatted = run("generate", directory, "--chat", "-p", "Hi", "-n", "9")
    assert chatted[0] == 0
    assert chatted[1] == run("generate", directory, "-p", "<user>Hi", "-n", "9")[1]


def test_piped_text_is_raw_and_terminal_text_is_harmless(escaping: Path) -> None:
    arguments = ["generate", str(escaping), "-p", "ab", "-n", "4"]
    assert run_program(*arguments).stdout == b"\x1b" * 4
    leader, terminal = pty.openpty()
    try:
        ran = subprocess.run(
            [*PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=subprocess.PIPE,
            check=True,
        )
        os.write(terminal, b"end")
        shown = b""
        while not shown.endswith(b"end"):
            shown += os.read(leader, 4096)
        assert shown == b"\r\nend"
    finally:
        os.close(leader)
        os.close(terminal)
    assert ran.stderr.startswith(b"specqd: 4 tokens")


def test_characters_outside_the_encoding_are_escaped(small_model: Path, tmp_path: Path) -> None:
    (tmp_path / "模型").symlink_to(small_model)
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    ran = run_program("inspect", tmp_path / "模型", env=latin)
    assert ran.returncode == 0, ran.stderr
    assert rb"\u6a21\u578b" in ran.stdout


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    assert not has_colour(stream)
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert has_colour(stream)
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colour(stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colour(stream)


def test_terminal_controls_are_removed() -> None:
    hostile = "a\x1b[31m\x07\r\x00\x7f\x9b\u202e\u2066\u200f\u061cb\n\tü🙂"
    assert harmless(hostile) == "a[31mb\n\tü🙂"


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["generate", "--bogus"],
        ["generate", "-p", "a", "-n", "many"],
        ["generate", "-p", "a", "--isa", "sse2"],
        ["generate", "-p", "a", "-f", __file__],
        ["generate", "-f", "/nowhere/at/all"],
        ["generate", "-p", "a", "--logprobs", "2"],
        ["generate", "model", "another", "-p", "a"],
    ],
)
def test_wrong_usage_is_status_2(run: Run, arguments: list[str]) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "Usage:" in err
    assert "Traceback" not in err


def test_no_prompt_on_a_terminal_is_wrong_usage() -> None:
    leader, terminal = pty.openpty()
    try:
        ran = run_program("generate", stdin=terminal)
    finally:
        os.close(leader)
        os.close(terminal)
    assert ran.returncode == 2
    assert b"no prompt" in ran.stderr


@pytest.fixture
def writing(escaping: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program while it writes a text larger than the pipe, so that it cannot end unread."""
    arguments = ["generate", str(escaping), "-p", "ab", "-n", "100000"]
    with subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        yield process


def test_ctrl_c_is_status_130_without_a_traceback(writing: subprocess.Popen[bytes]) -> None:
    writing.send_signal(signal.SIGINT)
    _, err = writing.communicate()
    assert writing.returncode == 130
    assert not err.strip()


def test_a_ctrl_c_that_python_drops_comes_again() -> None:
    """Python ignores what is raised while the garbage collector calls back. A wait ends, too."""
    program = """
import signal, sys, time
import specqd.cli

class Freed:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def run(arguments):
    Freed()
    time.sleep(60)

specqd.cli._run = run
sys.exit(specqd.cli.main([]))
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, check=False, timeout=40)
    assert (ran.returncode, ran.stderr) == (130, b"")


def test_a_closed_pipe_ends_quietly(writing: subprocess.Popen[bytes]) -> None:
    assert writing.stdout is not None
    assert writing.stderr is not None
    writing.stdout.close()
    assert writing.stderr.read() == b""
    assert writing.wait() == 1


def test_tables_are_aligned() -> None:
    assert aligned([["a", "bc"], ["def", "g"]]) == ["a    bc", "def   g"]
