"""What a newcomer meets: mistakes are found before any work, and no command says what nobody asked
for."""

import json
import subprocess
from pathlib import Path

import click
import pytest

from specqd.cli.app import app
from specqd.cli.chat_files import last_chat
from specqd.cli.options import OutPath
from specqd.cli.settings import settings_file
from specqd.errors import RoundingWarning
from support.command_line import PROGRAM, Refuse, Run, run_program


@pytest.mark.parametrize("name", ["--explain-html", "--json"])
def test_an_unwritable_place_is_found_before_any_work(
    run: Run, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    place = tmp_path / "missing" / "out"
    command = ("bench", "bandwidth") if name == "--json" else ("generate", "./absent", "-p", "ab")
    status, out, err = run(*command, name, place)
    assert (status, out) == (2, "")
    assert f"'{place}': there is no directory {tmp_path / 'missing'}" in err


def test_every_option_that_writes_a_file_checks_its_place() -> None:
    groups = [app, *(each for each in app.commands.values() if isinstance(each, click.Group))]
    commands = [command for group in groups for command in group.commands.values()]
    kinds = [each.type for command in commands for each in command.params]
    assert all(isinstance(each, OutPath) for each in kinds if getattr(each, "writable", False))


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_no_tokens_are_refused_by_the_name_that_was_typed(run: Run, command: str) -> None:
    status, _, err = run(command, "./absent", "ab", "-n", "0")
    assert status == 2
    assert err.splitlines()[-1] == (
        "Error: Invalid value for '-n' / '--max-tokens': 0 is not a number from 1, or -1 for as "
        "many as fit."
    )


def test_an_empty_standard_input_is_no_prompt() -> None:
    for arguments in ([], ["-f", "-"], ["-p", "-"]):
        ran = run_program("generate", "./absent", *arguments, input=b"")
        assert (ran.returncode, ran.stdout) == (1, b"")
        assert ran.stderr == (
            b"specqd: error: no prompt: standard input is empty; give TEXT after MODEL, -p TEXT or "
            b"-f FILE\n"
        )


def test_results_are_json_only_where_asked(run: Run) -> None:
    command = ("bench", "bandwidth", "--threads", "1")
    assert "{" not in run(*command)[1]
    assert "sizes" in json.loads(run(*command, "--json", "-")[1].splitlines()[-1])


def test_the_seed_is_told_where_asked(small_model: Path, run: Run) -> None:
    command = ("generate", small_model, "-p", "ab", "-n", "5", "--temperature", "0.7")
    assert "seed" not in run(*command)[2]
    assert ", seed 7\n" in run(*command, "--seed", "7", "--stats")[2]


@pytest.mark.parametrize(("command", "says"), [("generate", False), ("inspect", True)])
def test_rounded_weights_are_told_where_a_model_is_described(
    small_model: Path, run: Run, command: str, says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import warnings

    from specqd.model import weights

    monkeypatch.setattr(
        weights,
        "_warn_of_rounding",
        lambda tensors: warnings.warn(RoundingWarning("they are rounded"), stacklevel=1),
    )
    words = ("-p", "ab", "-n", "2") if command == "generate" else ()
    assert ("they are rounded" in run(command, small_model, *words)[2]) == says


def test_closed_streams_are_empty_ones(small_model: Path) -> None:
    words = f"{' '.join(PROGRAM)} generate {small_model} -n 2 -q"
    for redirected, status in (("<&-", 1), ("-p ab >&-", 0), ("-p ab 2>&-", 0)):
        ran = subprocess.run(
            ["sh", "-c", f"{words} {redirected}"], capture_output=True, check=False
        )
        assert ran.returncode == status
        assert b"Traceback" not in ran.stderr


def test_a_byte_order_mark_is_no_part_of_a_prompt(small_model: Path, tmp_path: Path) -> None:
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfab")
    found = [
        run_program("generate", small_model, "-n", "8", "-q", *words).stdout
        for words in (("-f", tmp_path / "marked"), ("-p", "ab"))
    ]
    assert found[0] == found[1]


def test_without_a_home_directory_commands_still_run() -> None:
    """A container may run it under a user id that has no name."""

    def fails() -> Path:
        raise RuntimeError("Could not determine home directory.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathlib.Path.home", fails)
        patch.delenv("SPECQD_CONFIG", raising=False)
        patch.delenv("XDG_CONFIG_HOME", raising=False)
        patch.delenv("XDG_STATE_HOME", raising=False)
        assert not settings_file().exists()
        assert not last_chat().exists()


def test_a_link_to_nothing_is_refused_before_anything_is_packed(
    small_model: Path, tmp_path: Path, refuse: Refuse
) -> None:
    (tmp_path / "packed").symlink_to(tmp_path / "missing")
    assert "exists already" in refuse("pack", small_model, tmp_path / "packed")
