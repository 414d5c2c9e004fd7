"""Variables and the configuration file set options. test_cli_sources.py tries each option."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from specqd.cli.app import app
from specqd.cli.settings import read_settings
from support.command_line import Refuse, Run, parsed, run_program

Settings = Callable[[str], Path]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Writes the configuration file."""

    def write(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text)
        monkeypatch.setenv("SPECQD_CONFIG", str(path))
        return path

    return write


def test_variables_set_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECQD_TEMPERATURE", "0.25")
    monkeypatch.setenv("SPECQD_DRAFT", "fp4 ngram")
    monkeypatch.setenv("SPECQD_MODEL", "./mine")
    monkeypatch.setenv("SPECQD_STATS", "1")
    values = parsed("generate", "-p", "ab")
    assert (values["temperature"], values["draft"]) == (0.25, ("fp4", "ngram"))
    assert (values["model"], values["has_stats"]) == ("./mine", True)
    assert parsed("generate", "other", "--temp", "1")["temperature"] == 1
    assert parsed("generate", "-m", "other")["model"] == "other"


def test_a_wrong_variable_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECQD_SEED", "many")
    status, _, err = run("generate", "-p", "ab")
    assert status == 2
    assert "It is set in SPECQD_SEED." in err


def test_the_file_sets_options_for_all_commands_and_for_one(settings: Settings) -> None:
    settings(
        'model = "./mine"\nthreads = 2\nctx-size = 64\n[generate]\nmax_tokens = 9\n'
        'stop = ["a", "b"]\n[chat]\ntemp = 0.5\n[bench.levels]\nlimit = 3\n'
    )
    generate, chat = parsed("generate"), parsed("chat")
    assert (generate["model"], generate["threads"], generate["context"]) == ("./mine", 2, 64)
    assert (generate["max_tokens"], generate["stop"]) == (9, ("a", "b"))
    assert generate["temperature"] is None
    assert (chat["temperature"], chat["max_tokens"], chat["threads"]) == (0.5, None, 2)
    assert read_settings(app)["bench"]["levels"]["limit"] == 3
    assert parsed("generate", "-n", "3")["max_tokens"] == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("temprature = 1\n", "'temprature' is no option or command; did you mean temperature?"),
        ("[chatt]\nseed = 1\n", "'chatt' is no option or command"),
        ("[chat]\nsede = 1\n", "[chat]: 'sede' is no option of chat; did you mean seed?"),
        ("chat = 1\n", "chat is a command; write a table, [chat]"),
        ("seed = \n", "is not TOML"),
    ],
)
def test_a_wrong_file_is_named(settings: Settings, refuse: Refuse, text: str, problem: str) -> None:
    path = settings(text)
    said = refuse("generate", "-p", "ab")
    assert said.startswith(f"{path}: ")
    assert problem in said


def test_a_wrong_value_of_the_file_is_named(settings: Settings, run: Run) -> None:
    path = settings('seed = "many"\n')
    status, _, err = run("generate", "-p", "ab")
    assert status == 2
    assert str(path) in "".join(err.split("\n"))


def test_the_file_is_found_in_the_users_directory(tmp_path: Path, small_model: Path) -> None:
    (tmp_path / "specqd").mkdir()
    (tmp_path / "specqd" / "config.toml").write_text(f"model = {json.dumps(str(small_model))}\n")
    places = {k: v for k, v in os.environ.items() if k != "SPECQD_CONFIG"}
    places |= {"XDG_CONFIG_HOME": str(tmp_path)}
    ran = run_program("generate", "-p", "ab", "-n", "5", env=places)
    assert ran.stdout == run_program("generate", small_model, "-p", "ab", "-n", "5").stdout


def test_a_file_that_is_named_must_exist(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECQD_CONFIG", str(tmp_path / "no.toml"))
    status, _, err = run("models")
    assert status == 1
    assert "no.toml: is missing; correct SPECQD_CONFIG" in " ".join(err.split())


def test_several_models_may_be_served_from_each_source(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed("serve")["model"] == ()
    assert parsed("serve", "a", "b c/d")["model"] == ("a", "b c/d")
    assert parsed("serve", "-m", "a")["model"] == ("a",)
    settings('[serve]\nmodel = ["a", "b c"]\n')
    assert parsed("serve")["model"] == ("a", "b c")
    settings('[serve]\nmodel = "a b"\n')
    assert parsed("serve")["model"] == ("a b",)
    monkeypatch.setenv("SPECQD_MODEL", "c d")
    assert parsed("serve")["model"] == ("c d",)
    with pytest.raises(click.UsageError, match="MODEL is given twice: a b and -m c"):
        parsed("serve", "a", "b", "-m", "c")


@pytest.mark.parametrize(
    "line",
    [
        "threads = {a = 1}",
        "temperature = [0.7]",
        "temperature = 1979-05-27",
        "seed = true",
        'model = ["a", "b"]',
    ],
)
def test_a_value_of_another_type_is_refused(settings: Settings, refuse: Refuse, line: str) -> None:
    path = settings(line)
    assert f"{path}: {line.partition(' ')[0]}: " in refuse("generate", "-p", "ab")


def test_a_value_for_all_commands_is_refused_by_those_that_do_not_take_it(
    settings: Settings, run: Run
) -> None:
    path = settings('draft = ["fp4", "ngram"]\n')
    assert parsed("generate")["draft"] == ("fp4", "ngram")
    status, _, err = run("bench", "head", "a", "b", "--prompts", path)
    assert (status, "draft: ['fp4', 'ngram'] is no value" in err) == (1, True)


def test_a_flag_of_some_commands_names_no_file_of_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings("json = true\n")
    monkeypatch.setenv("SPECQD_JSON", "1")
    assert parsed("inspect")["is_json"]
    bench = app.commands["bench"]
    assert isinstance(bench, click.Group)
    given = read_settings(app)["bench"]["bandwidth"]
    command = bench.commands["bandwidth"]
    with command.make_context("bandwidth", [], default_map=given) as context:
        assert context.params["json_file"] is None


def test_a_whole_number_is_not_cut_from_another_one(settings: Settings) -> None:
    settings("seed = 1.5")
    with pytest.raises(click.BadParameter, match=r"1\.5"):
        parsed("generate")


def test_the_file_may_begin_with_a_byte_order_mark(settings: Settings) -> None:
    settings("\ufeffseed = 3")
    assert parsed("generate")["seed"] == 3
