"""Options under other programs' names, refused ones, and what commands make of their words."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from specqd import LLM, SamplingParams, _native
from specqd.cli.app import app
from specqd.cli.command import Option
from specqd.cli.peers import COMMANDS, refused_commands, refused_names
from specqd.text.tokenizer import Tokenizer
from support.command_line import PROGRAM, Run, parsed, run_program

FLAGS = {"--verbose": "--stats", "-v": "--stats"}
VALUES = {
    "-t": ("--threads", "1"),
    "-c": ("--context", "9"),
    "--ctx-size": ("--context", "9"),
    "--num-ctx": ("--context", "9"),
    "--max-model-len": ("--context", "9"),
    "-md": ("--draft", "fp4"),
    "--model-draft": ("--draft", "fp4"),
    "-sys": ("--system", "x"),
    "--system-prompt": ("--system", "x"),
    "--predict": ("--max-tokens", "7"),
    "--n-predict": ("--max-tokens", "7"),
    "--num-predict": ("--max-tokens", "7"),
    "--max-new-tokens": ("--max-tokens", "7"),
    "--temp": ("--temperature", "0.3"),
    "--repeat-penalty": ("--repetition-penalty", "1.2"),
    "-s": ("--seed", "7"),
    "-r": ("--stop", "x"),
    "--reverse-prompt": ("--stop", "x"),
    "--n-probs": ("--logprobs", "2"),
    "--chat-template-file": ("--chat-template", __file__),
    "--reasoning-budget": ("--thinking-token-budget", "7"),
    "--think-budget": ("--thinking-token-budget", "7"),
    "-j": ("--schema", "{}"),
    "--json-schema": ("--schema", "{}"),
    "-jf": ("--schema", "{}"),
    "--json-schema-file": ("--schema", "{}"),
    "--guided-json": ("--schema", "{}"),
    "--guided-regex": ("--pattern", "a"),
}
SERVED = {
    "-np": ("--max-batch", "3"),
    "--parallel": ("--max-batch", "3"),
    "--max-num-seqs": ("--max-batch", "3"),
    "-a": ("--served-model-name", "x"),
    "--alias": ("--served-model-name", "x"),
    "--keepalive": ("--keep-alive", "5m"),
    "--sleep-idle-seconds": ("--keep-alive", "300"),
}


def names_of(parameter: click.Parameter) -> set[str]:
    return {*parameter.opts, *getattr(parameter, "also", ())}


@pytest.mark.parametrize("name", VALUES)
def test_a_name_of_another_program_is_ours(name: str) -> None:
    ours, value = VALUES[name]
    command = ("generate", "--chat", "--json")
    assert parsed(*command, name, value) == parsed(*command, ours, value)
    assert parsed(*command, name, value) != parsed(*command)


@pytest.mark.parametrize("name", SERVED)
def test_a_name_of_another_server_is_ours(name: str) -> None:
    ours, value = SERVED[name]
    assert parsed("serve", name, value) == parsed("serve", ours, value)
    assert parsed("serve", name, value) != parsed("serve")


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_of_another_program_is_ours(name: str) -> None:
    assert parsed("generate", name) == parsed("generate", FLAGS[name])
    assert parsed("generate", name) != parsed("generate")


def test_every_further_name_is_tested_here_and_hidden(run: Run) -> None:
    known = {*VALUES, *FLAGS, *SERVED}
    for command in ("generate", "serve", "chat"):
        names = {
            name
            for parameter in app.commands[command].params
            if isinstance(parameter, Option)
            for name in parameter.also
        }
        assert names <= known
        words = run(command, "--help")[1].replace(",", " ").split()
        assert not names & set(words)


@pytest.mark.parametrize("name", ["-m", "--model", "-hf", "--hf-repo"])
def test_the_model_may_be_an_option(small_model: Path, run: Run, name: str) -> None:
    given = run("generate", small_model, "-p", "ab", "-n", "5")
    assert run("generate", name, small_model, "-p", "ab", "-n", "5")[:2] == given[:2]


def test_two_models_are_wrong_usage(small_model: Path, run: Run) -> None:
    status, _, err = run("generate", small_model, "-m", "other", "-p", "ab")
    assert status == 2
    assert "MODEL is given twice" in err


@pytest.mark.parametrize(("name", "hint"), refused_names())
@pytest.mark.parametrize("value", [(), ("1",)])
def test_an_option_that_is_lacking_is_answered_with_ours(
    run: Run, name: str, hint: str, value: tuple[str, ...]
) -> None:
    command = next(
        command
        for command in ("generate", "serve", "batch", "inspect")
        if not any(name in names_of(each) for each in app.commands[command].params)
    )
    status, out, err = run(command, name, *value)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == f"Error: No such option: {name}. {hint}"


@pytest.mark.parametrize(("name", "hint"), refused_commands().items())
def test_a_command_that_is_lacking_is_answered_with_ours(run: Run, name: str, hint: str) -> None:
    status, out, err = run(name, "qwen3:0.6b", "--verbose")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == f"Error: No such command: {name}. {hint}"


def test_a_name_may_have_underscores() -> None:
    words = ("--max_tokens", "7", "--top_p=0.5", "--n_predict", "3")
    assert parsed("generate", *words) == parsed("generate", *(w.replace("_", "-") for w in words))
    assert parsed("generate", "--stop", "a_b")["stop"] == ("a_b",)


@pytest.mark.parametrize(
    ("typed", "meant"), [("4k", 4096), ("32K", 32768), ("4096", 4096), ("1k", 1024)]
)
@pytest.mark.parametrize("name", ["--context", "--ctx-size", "--cache-positions"])
def test_numbers_of_positions_may_be_in_k(name: str, typed: str, meant: int) -> None:
    serve = app.commands["serve"]
    found = serve.make_context("serve", [name, typed]).params
    assert found["cache_positions" if name == "--cache-positions" else "context"] == meant


@pytest.mark.parametrize("typed", ["0", "0k", "-1", "4kk", "k", "4 k", "4.5k", "four", "1m"])
def test_wrong_numbers_of_positions_are_refused_with_an_example(typed: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a number from 1, such as 4096 or 4k"):
        app.commands["generate"].make_context("generate", ["--context", typed])


@pytest.mark.parametrize(
    ("typed", "meant"), [("90", 90), ("0.5", 0.5), ("5m", 300), ("1h", 3600), ("30S", 30), ("0", 0)]
)
def test_times_may_be_in_minutes_and_hours(typed: str, meant: float) -> None:
    assert parsed("serve", "--keep-alive", typed)["keep_alive"] == meant


@pytest.mark.parametrize("typed", ["-1", "m", "5 m", "5mm", "1d", "forever", "1h30m"])
def test_wrong_times_are_refused_with_an_example(typed: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a time, such as 90, 5m or 1h"):
        app.commands["serve"].make_context("serve", ["--keep-alive", typed])


@pytest.mark.parametrize(
    ("typed", "meant"), [("--tmperature", "--temperature"), ("--ctx-sise", "--ctx-size")]
)
def test_a_misspelt_option_is_told_a_name_that_works(run: Run, typed: str, meant: str) -> None:
    err = run("generate", typed, "1", "-p", "ab")[2]
    assert err.splitlines()[-1] == f"Error: No such option '{typed}'. Did you mean '{meant}'?"


@pytest.mark.parametrize(("name", "ours"), COMMANDS.items())
def test_a_command_of_another_program_is_ours(run: Run, name: str, ours: str) -> None:
    assert run(name, "--help") == run(ours, "--help")


@pytest.mark.parametrize(
    "command", ["generate", "chat", "serve", "batch", "demo", "inspect", "pack", "bench levels"]
)
def test_every_command_says_what_a_model_is(run: Run, command: str) -> None:
    said = "A directory, a .gguf file, owner/name[@revision] or a short name"
    assert said in " ".join(run(*command.split(), "--help")[1].split())


def test_minus_one_token_is_as_many_as_fit(small_model: Path, run: Run) -> None:
    command = ("generate", small_model, "-p", "ab", "--context", "40", "--ignore-eos")
    status, _, err = run(*command, "-n", "-1")
    assert status == 0
    assert "stopped: length (all 40 positions of the context are full)" in err
    assert err.startswith(f"specqd: {40 - len(Tokenizer.open(small_model).encode('ab'))} tokens, ")


def test_penalties_reach_the_sampler(small_model: Path, run: Run) -> None:
    command = ("generate", small_model, "-p", "ab", "-n", "200", "--temperature", "0")
    llm, plain = LLM(small_model), run(*command, "--ignore-eos")[1]
    for name, value in (("repetition", 90.0), ("presence", 2.0), ("frequency", 2.0)):
        penalty: dict[str, Any] = {f"{name}_penalty": value}
        params = SamplingParams(max_tokens=200, temperature=0, ignore_eos=True, **penalty)
        text = run(*command, "--ignore-eos", f"--{name}-penalty", str(value))[1]
        assert text == llm.generate("ab", params)[0].text
        assert name != "repetition" or text != plain


def test_the_command_line_caps_threads_at_the_usable_cores(
    small_model: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "usable_threads", lambda: 2)
    command = ("generate", small_model, "-p", "ab", "-n", "2", "--threads")
    note = "note: --threads 999: there are only 2 usable cores, so 2 threads run\n"
    assert run(*command, "999")[2].count(note) == 1
    assert "note" not in run(*command, "2")[2]


def test_what_is_piped_stands_before_the_prompt(small_model: Path) -> None:
    rest = ["-n", "9"]
    joined = run_program("generate", small_model, "-p", "one\ntwo", *rest)
    piped = run_program("generate", small_model, "-p", "two", *rest, input=b"one\n")
    assert joined.stdout == piped.stdout
    alone = run_program("generate", small_model, "-p", "two", *rest, input=b"")
    assert alone.stdout == run_program("generate", small_model, "-p", "two", *rest).stdout
    assert alone.stderr.count(b"\n") == 1


def test_a_silent_pipe_is_told(small_model: Path) -> None:
    command = [*PROGRAM, "generate", str(small_model), "-p", "two", "-n", "9"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert b"waiting for standard input" in process.stderr.readline()
        out, _ = process.communicate(b"one\n")
    expected = run_program("generate", small_model, "-p", "one\ntwo", "-n", "9")
    assert out == expected.stdout


def test_a_system_message_needs_a_chat(run: Run, chat_model: Path) -> None:
    status, _, err = run("generate", chat_model, "-p", "ab", "--system", "be brief")
    assert status == 2
    assert "--system needs --chat; add it" in err
    command = ("generate", chat_model, "-n", "9", "--temperature", "0")
    said = run(*command, "--chat", "--system", "be brief", "-p", "ab")[1]
    assert said == run(*command, "-p", "[system]be brief\n[user]ab\n[assistant]")[1]


def test_the_summary_tells_the_end(small_model: Path, run: Run) -> None:
    command = ("generate", small_model, "-p", "ab", "--temperature", "0", "--ignore-eos")
    status, text, err = run(*command, "-n", "20")
    assert status == 0
    words = err.strip().split(", ")
    assert (words[0], words[2:]) == ("specqd: 20 tokens", ["stopped: length"])
    assert words[1].endswith(" tokens/s")
    stopped = run(*command, "-n", "20", "--stop", text[3:5])[2]
    assert stopped.endswith(", stopped: stop text\n")


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """What Bash offers at the end of a line, in place of what follows the last break of its words;
    `file` or `dir` if it looks for files itself."""
    if shutil.which("bash") is None:
        pytest.skip("needs Bash")
    folder = tmp_path_factory.mktemp("bin")
    program, script = folder / "specqd", folder / "script"
    code = "import sys; from specqd.cli import main; sys.argv[0] = 'specqd'; sys.exit(main())"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{code}" "$@"\n')
    program.chmod(0o755)
    places = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    given = {"_SPECQD_COMPLETE": "bash_source"}
    script.write_bytes(subprocess.check_output([program], env=places | given))
    asked = (
        'compopt() { echo "$2"; }; . "$0"; COMP_LINE=$1; COMP_POINT=${#1}; '
        '_specqd_completion specqd; printf "%s\\n" "${COMPREPLY[@]}"'
    )

    def run(line: str, breaks: str = " =:") -> list[str]:
        prefix = f"COMP_WORDBREAKS='{breaks}'; "
        command = ["bash", "--norc", "-c", prefix + asked, str(script), line]
        return subprocess.check_output(command, env=places, text=True).split()

    return run


def test_bash_completes_commands_and_options(complete: Callable[[str], list[str]]) -> None:
    assert "generate" in complete("specqd g")
    assert {"chat", "serve"} <= {*complete("specqd ")}
    assert complete("specqd generate --tempe") == ["--temperature"]
    assert complete("specqd generate ./m") == ["default"]


def test_bash_completes_models_after_their_colon(complete: Callable[[str], list[str]]) -> None:
    assert "qwen3:0.6b" in complete("specqd generate qwen3")
    assert complete("specqd generate qwen3:0") == ["0.6b"]
    assert complete("specqd generate qwen3:0", breaks=" =") == ["qwen3:0.6b"]
    assert complete("specqd generate --isa=neond") == ["neondot"]


def test_no_name_is_there_twice() -> None:
    for command in app.commands.values():
        with command.make_context(command.name, [], resilient_parsing=True) as context:
            names = [
                name
                for parameter in command.get_params(context)
                if isinstance(parameter, click.Option)
                for name in (*parameter.opts, *getattr(parameter, "also", ()))
            ]
        assert len(names) == len(set(names))


def test_the_prompt_may_stand_behind_the_model(small_model: Path, run: Run) -> None:
    given = run("generate", small_model, "-p", "ab cd", "-n", "5")
    assert run("generate", small_model, "ab cd", "-n", "5")[:2] == given[:2]
    assert run("generate", "-n", "5", small_model, "ab", "cd")[:2] == given[:2]
    status, _, err = run("generate", small_model, "ab", "-p", "cd")
    assert status == 2
    assert "give one of them" in err


@pytest.mark.parametrize("command", ["generate", "chat", "run"])
def test_a_text_in_place_of_a_model_is_told(run: Run, command: str) -> None:
    status, _, err = run(command, "Why is the sky blue?")
    assert status == 2
    assert "is not a model; name one first, such as qwen3:0.6b, then the text" in err


def test_the_list_of_commands_is_not_cut_at_80_columns(run: Run) -> None:
    commands = run("--help")[1].partition("Commands:")[2].partition("Try:")[0]
    assert "..." not in commands


def test_one_token_has_no_speed(small_model: Path, run: Run) -> None:
    err = run("generate", small_model, "-p", "ab", "-n", "1", "--ignore-eos")[2]
    assert err == "specqd: 1 token, stopped: length\n"
