"""Commands with a small draft model: `--small`, and the known one, fetched from a fake hub."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Refuse, Run
from support.fake_hub import FakeHub
from support.hub_program import Program
from support.random_models import Shape, change_model, make_model

SHORT, LARGE, SMALL = "qwen3:1.7b", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-0.6B"
WORDS = ("-p", "abcab", "-n", "9", "--temperature", "0", "--stats")


@pytest.fixture
def small(tmp_path: Path, seed: int) -> Path:
    shape = Shape("qwen3", hidden=48, ffn=90, layers=1, is_peaked=True)
    return make_model(tmp_path / "small", shape, seed + 1)


@pytest.fixture
def hub(tmp_path: Path, small: Path, seed: int) -> Iterator[FakeHub]:
    large = make_model(tmp_path / "large", Shape("qwen3", is_peaked=True), seed)
    with FakeHub({LARGE: large, SMALL: small}) as hub:
        yield hub


@pytest.fixture
def program(hub: FakeHub, tmp_path: Path) -> Program:
    return Program(hub, tmp_path)


def notes(ran: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert ran.returncode == 0, ran.stderr
    lines = ran.stderr.decode().splitlines()
    return [line for line in lines if line.startswith("specqd: note: ")]


def fetched(hub: FakeHub) -> list[str]:
    """The repositories of which weights were requested since the last call."""
    paths = [each.path for each in hub.requests if each.method == "GET"]
    hub.requests.clear()
    found = (path.split("/resolve/")[0].strip("/") for path in paths if "safetensors" in path)
    return list(dict.fromkeys(found))


def drafts_small(ran: subprocess.CompletedProcess[bytes]) -> bool:
    return f"{SMALL}:fp4" in ran.stderr.decode()


def test_the_first_use_of_a_short_name_fetches_its_small_model(
    program: Program, hub: FakeHub, small: Path
) -> None:
    ran = program("generate", SHORT, *WORDS)
    size = (small / "model.safetensors").stat().st_size
    [note] = notes(ran)
    assert note == (
        f"specqd: note: also fetching {SMALL} ({size / 1e6:.0f} MB), a small draft model; "
        "--no-small leaves it out"
    )
    assert fetched(hub) == [LARGE, SMALL]
    assert drafts_small(ran)
    again = program("generate", SHORT, *WORDS)
    assert (notes(again), fetched(hub)) == ([], [])
    assert drafts_small(again)
    plain = program("generate", SHORT, *WORDS, "--draft", "none")
    assert ran.stdout == again.stdout == plain.stdout


@pytest.mark.parametrize("options", [["--no-small"], ["--draft", "fp4"]])
def test_nothing_else_is_fetched_for_drafts_without_it(
    program: Program, hub: FakeHub, options: list[str]
) -> None:
    ran = program("generate", SHORT, *WORDS, *options)
    assert (notes(ran), fetched(hub), drafts_small(ran)) == ([], [LARGE], False)
    ran = program("generate", SHORT, *WORDS, *options)
    assert (notes(ran), fetched(hub)) == ([], [])


def test_a_model_that_was_fetched_alone_says_how_to_get_its_small_one(
    program: Program, hub: FakeHub
) -> None:
    pulled = program("pull", SHORT, "--no-small")
    assert (notes(pulled), fetched(hub)) == ([], [LARGE])
    ran = program("generate", SHORT, *WORDS)
    [note] = notes(ran)
    assert f"without the small model {SMALL}, which is not in the cache" in note
    assert f"`specqd pull {SHORT}` fetches it, --no-small turns this note off" in note
    assert (fetched(hub), drafts_small(ran)) == ([], False)
    [note] = notes(program("pull", SHORT))
    assert f"also fetching {SMALL}" in note
    assert fetched(hub) == [SMALL]
    assert drafts_small(program("generate", SHORT, *WORDS))


@pytest.mark.parametrize("problem", ["gated", "missing", "unsupported"])
def test_a_small_model_that_cannot_be_fetched_is_a_note(
    program: Program, hub: FakeHub, small: Path, problem: str
) -> None:
    if problem == "gated":
        hub.gated.add(SMALL)
    elif problem == "missing":
        del hub.repositories[SMALL]
    else:
        change_model(small, model_type="mamba")
    ran = program("generate", SHORT, *WORDS)
    [note] = notes(ran)
    assert "the small draft model was not fetched: " in note
    expected = {"gated": "is gated", "missing": "repository", "unsupported": "'mamba'"}
    assert expected[problem] in note
    assert not drafts_small(ran)


def test_a_named_small_model_is_fetched_in_place_of_the_known_one(
    program: Program, hub: FakeHub, small: Path
) -> None:
    hub.repositories["org/other"] = small
    ran = program("generate", SHORT, *WORDS, "--small", "org/other")
    assert (notes(ran), fetched(hub)) == ([], [LARGE, "org/other"])
    assert "org/other:fp4" in ran.stderr.decode()


def test_small_models_are_listed_and_inspected(program: Program) -> None:
    lines = program("models").stdout.decode().splitlines()
    [line] = [each for each in lines if each.startswith(f"  {SHORT} ")]
    assert line.split() == [SHORT, LARGE, "2.8", "GB", "drafts:", "4", "bits,", "qwen3:0.6b"]
    listed = json.loads(program("models", "--json").stdout)
    assert listed["small"][SHORT] == SMALL
    assert listed["small"]["qwen3:0.6b"] is None
    program("pull", SHORT, "--no-small")
    shown = program("inspect", SHORT).stdout.decode()
    assert f"  small draft {SMALL}, not in the cache; `specqd pull` fetches both\n" in shown
    program("pull", SHORT)
    shown = json.loads(program("inspect", SHORT, "--json").stdout)
    assert shown["small"] == {"name": SMALL, "is_cached": True}
    assert json.loads(program("inspect", "--json").stdout)["small"] is None


def test_the_command_line_takes_a_small_model_in_auto_only(
    run: Run, refuse: Refuse, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, small = (str(hub.repositories[each]) for each in (LARGE, SMALL))
    words = ["generate", target, "-p", "abcab", "-n", "9", "--temperature", "0"]
    plain = run(*words, "--draft", "none")
    for options in ([], ["--draft", "auto"]):
        status, out, err = run(*words, *options, "--small", small, "--stats")
        assert (status, out) == (0, plain[1])
        assert "small:fp4" in err
    status, _, err = run(*words, "--draft", "fp4", "--small", small)
    assert (status, "--small and --draft cannot be combined" in err) == (2, True)
    status, _, err = run(*words, "--no-small", "--small", small)
    assert (status, "--no-small and --small cannot be combined" in err) == (2, True)
    assert "--small" in refuse(*words, "--small", f"{small}-2")
    monkeypatch.setenv("SPECQD_SMALL", small)
    assert "small:fp4" in run(*words, "--stats")[2]
    assert "small:fp4" not in run(*words, "--stats", "--no-small")[2]
    assert "small:fp4" not in run(*words, "--stats", "--draft", "fp4")[2]
