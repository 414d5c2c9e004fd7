"""Models by short names, and `specqd models`, `pull` and `rm` on the cache of a fake hub."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from specqd.errors import HubError
from specqd.hub import (
    SHIPPED,
    SHORT_NAMES,
    cached_models,
    expanded,
    model_name,
    model_names,
    remove_cached,
    resolve,
    shipped_model,
)
from specqd.model.weights import typical_bytes
from support.command_line import run_program
from support.fake_hub import FakeHub, commit_of
from support.gguf_files import convert, write_parts
from support.hub_program import Program
from support.random_models import Shape, make_model
from support.refusals import refused

SHORT, REPOSITORY = "qwen3:0.6b", "Qwen/Qwen3-0.6B"
NAMED = f"{REPOSITORY}:Small-BF16"  # a GGUF file of it


def refused_line(ran: subprocess.CompletedProcess[bytes]) -> str:
    """The one-line error of a command."""
    assert (ran.returncode, ran.stdout) == (1, b"")
    [line] = ran.stderr.decode().splitlines()
    return line


@pytest.fixture
def model(tmp_path: Path, seed: int) -> Path:
    return make_model(tmp_path / "repository", Shape(), seed)


@pytest.fixture
def hub(model: Path) -> Iterator[FakeHub]:
    with FakeHub({REPOSITORY: model}) as hub:
        yield hub


@pytest.fixture
def program(hub: FakeHub, tmp_path: Path) -> Program:
    return Program(hub, tmp_path)


def test_a_short_name_is_its_repository(program: Program, model: Path) -> None:
    options = ("-p", "ab", "-n", "7", "--draft", "none")
    ran = program("generate", SHORT, *options)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == program("generate", str(model), *options).stdout
    assert program("generate", REPOSITORY, *options).stdout == ran.stdout
    drafted = program("generate", REPOSITORY, "-p", "ab", "-n", "7", "--draft", f"{SHORT}:k=2")
    assert drafted.stdout == ran.stdout, drafted.stderr


def test_models_are_pulled_listed_and_removed(program: Program, hub: FakeHub, model: Path) -> None:
    assert set(program.models()) == {SHIPPED}
    pulled = program("pull", SHORT)
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout.startswith(f"{SHORT}: ".encode())
    hub.requests.clear()
    report = program.models()[REPOSITORY]
    assert hub.fetched() == set()
    assert report["needed_bytes"] == typical_bytes(model)
    assert report["fits"] is True
    weights = (model / "model.safetensors").stat().st_size
    size = report["size_bytes"]
    assert isinstance(size, int)
    assert weights <= size < weights + 1_000_000
    shown = program("models").stdout.decode()
    assert f"\n{REPOSITORY} " in shown
    assert f"  {SHORT} " in shown
    removed = program("rm", SHORT)
    assert removed.returncode == 0, removed.stderr
    assert set(program.models()) == {SHIPPED}


@pytest.fixture
def ggufs(hub: FakeHub, tmp_path: Path, model: Path) -> Path:
    """The repository with one GGUF file in place of safetensors."""
    directory = tmp_path / "ggufs"
    directory.mkdir()
    convert(model, directory / "Small-BF16.gguf", "BF16")
    (directory / "README.md").write_text("x")
    hub.repositories[REPOSITORY] = directory
    return directory


OPTIONS = ("-p", "ab", "-n", "7", "--temperature", "0", "--draft")


@pytest.mark.parametrize("has_config", [False, True])
def test_the_only_gguf_file_of_a_repository_is_its_model(
    program: Program, hub: FakeHub, ggufs: Path, model: Path, has_config: bool
) -> None:
    if has_config:
        shutil.copy(model / "config.json", ggufs)
    pulled = program("pull", SHORT)
    assert pulled.returncode == 0, pulled.stderr
    assert "Small-BF16.gguf" in hub.fetched()
    assert "README.md" not in hub.fetched()
    assert b": 0 MB in " in pulled.stdout
    assert pulled.stdout.endswith(b"/Small-BF16.gguf\n")
    expected = program("generate", str(ggufs / "Small-BF16.gguf"), *OPTIONS, "none")
    assert expected.returncode == 0, expected.stderr
    ran = program("generate", SHORT, *OPTIONS, "fp4")
    assert ran.stdout == expected.stdout, ran.stderr
    assert set(program.models()) == {SHIPPED, NAMED}
    assert program.models()[NAMED]["fits"] is True
    ran = program("generate", NAMED, *OPTIONS, "none")
    assert ran.stdout == expected.stdout, ran.stderr
    hub.repositories.clear()
    ran = program("generate", NAMED, *OPTIONS, "none")
    assert ran.stdout == expected.stdout, ran.stderr
    assert refused_line(program("rm", NAMED)).endswith(f"name {REPOSITORY}")
    assert program("rm", SHORT).returncode == 0
    assert set(program.models()) == {SHIPPED}


def test_one_of_several_gguf_files_is_named(program: Program, ggufs: Path, model: Path) -> None:
    convert(model, ggufs / "Small-XL-F16.gguf", "F16")
    beside = ("mmproj-F16.gguf", "Small-mmproj-F16.gguf", "imatrix.gguf")
    for name in (*beside, "Small-Q8_0-00001-of-00002.gguf"):
        (ggufs / name).write_bytes(b"x")
    line = refused_line(program("pull", SHORT))
    assert line.endswith(f"has several GGUF files; name {REPOSITORY}:FILE with one of BF16, XL-F16")
    assert "has no GGUF file 'Q8_0'" in refused_line(program("pull", f"{REPOSITORY}:Q8_0"))
    for name in ("xl-f16", "Small-XL-F16.gguf"):
        pulled = program("pull", f"{REPOSITORY}@main:{name}")
        assert pulled.stdout.endswith(b"/Small-XL-F16.gguf\n"), pulled.stderr


def test_a_file_named_by_its_end_is_found_without_a_network(
    program: Program, hub: FakeHub, ggufs: Path, model: Path
) -> None:
    (ggufs / "Small-BF16.gguf").unlink()
    for name in ("BF16", "UD-BF16"):
        convert(model, ggufs / f"Qwen3-0.6B-{name}.gguf", "BF16")
    pulled = program("pull", f"{REPOSITORY}:UD-BF16")
    assert pulled.stdout.endswith(b"/Qwen3-0.6B-UD-BF16.gguf\n"), pulled.stderr
    hub.repositories.clear()
    pulled = program("generate", f"{REPOSITORY}:UD-BF16", *OPTIONS, "none")
    assert pulled.returncode == 0, pulled.stderr
    line = refused_line(program("generate", f"{REPOSITORY}:BF16", *OPTIONS, "none"))
    assert "could not be fetched" in line


def test_an_interrupted_download_is_told(program: Program, hub: FakeHub, model: Path) -> None:
    weights = (model / "model.safetensors").rename(model / "elsewhere")
    refused_line(program("pull", SHORT))  # fetches the description only
    weights.rename(model / "model.safetensors")
    report = program.models()[REPOSITORY]
    assert (report["is_incomplete"], report["needed_bytes"]) == (True, None)
    assert "specqd pull" in str(report["problem"])
    assert b" incomplete" in program("models").stdout
    hub.repositories.clear()
    assert "could not be fetched" in refused_line(program("pull", SHORT))


def test_a_gguf_file_in_parts_is_fetched_and_listed_as_one(
    program: Program, hub: FakeHub, ggufs: Path, model: Path
) -> None:
    expected = program("generate", str(ggufs / "Small-BF16.gguf"), *OPTIONS, "none")
    (ggufs / "Small-BF16.gguf").unlink()
    parts = write_parts(model, ggufs / "Small-F32.gguf")
    pulled = program("pull", SHORT)
    assert pulled.stdout.endswith(f"/{parts[0].name}\n".encode()), pulled.stderr
    assert {each.name for each in parts} <= set(hub.fetched())
    hub.repositories.clear()
    for name in (SHORT, f"{REPOSITORY}:Small-F32"):
        ran = program("generate", name, *OPTIONS, "none")
        assert ran.stdout == expected.stdout, ran.stderr
    report = program.models()[f"{REPOSITORY}:Small-F32"]
    assert report["size_bytes"] == sum(each.stat().st_size for each in parts)
    assert set(program.models()) == {SHIPPED, f"{REPOSITORY}:Small-F32"}


def test_parts_of_gguf_files_are_refused(program: Program, ggufs: Path) -> None:
    (ggufs / "Small-BF16.gguf").rename(ggufs / "Small-BF16-00001-of-00002.gguf")
    assert "no GGUF file of a whole language model" in refused_line(program("pull", SHORT))


def test_a_linked_gguf_file_drafts_for_itself(tmp_path: Path, ggufs: Path) -> None:
    link = tmp_path / "linked.gguf"
    link.symlink_to((ggufs / "Small-BF16.gguf").rename(tmp_path / "content"))
    ran = run_program("generate", str(link), *OPTIONS, "fp4", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_one_revision_may_be_removed(program: Program) -> None:
    program("pull", REPOSITORY)
    assert b"is not in the cache" in program("rm", f"{REPOSITORY}@v9").stderr
    assert program("rm", f"{REPOSITORY}@{commit_of(REPOSITORY)}").returncode == 0
    assert set(program.models()) == {SHIPPED}


def test_a_cached_model_that_cannot_run_is_told(
    program: Program, tmp_path: Path, model: Path
) -> None:
    program("pull", REPOSITORY)
    snapshot = tmp_path / "home" / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots"
    (config,) = snapshot.glob("*/config.json")
    fields = json.loads(config.read_text()) | {"model_type": "mamba"}
    config.resolve().write_text(json.dumps(fields))
    report = program.models()[REPOSITORY]
    assert report["needed_bytes"] is None
    assert "mamba" in str(report["problem"])
    assert b"not supported" in program("models").stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("rm", "qwen3:0.6b"), "is not in the cache; `specqd models` lists what is"),
        (("rm", "no such"), "no such file or directory, and not a repository"),
        (("rm", "repository"), "is a local path, not in the cache"),
        (("pull", "repository"), "is a local path already"),
        (("pull", "org/nothing"), "nor a repository"),
    ],
)
def test_what_cannot_be_pulled_or_removed_is_named(
    program: Program, model: Path, words: tuple[str, str], problem: str
) -> None:
    assert problem in refused_line(program(*words))
    assert model.is_dir()


def test_a_name_that_is_nearly_a_short_one_is_answered_with_it() -> None:
    for name in ("qwen3", "qwen3:0.6", "qwen3:latest"):
        problem = refused(HubError, resolve, name)
        assert (
            "name one of qwen3:0.6b, qwen3:1.7b, qwen3:4b, qwen3:8b, qwen3:14b, qwen3:30b-a3b, or"
            in problem
        )
    assert "name one of smollm2:135m" in refused(HubError, resolve, "smolm2:135m")


def test_short_names_are_plain() -> None:
    assert len(SHORT_NAMES) >= 12
    assert all(name == name.lower() and name.count(":") == 1 for name in SHORT_NAMES)
    assert len(set(SHORT_NAMES.values())) == len(SHORT_NAMES)


def test_the_shipped_model_has_a_name() -> None:
    assert resolve(SHIPPED) == shipped_model()


def test_a_model_of_the_cache_is_shown_by_its_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "models--org--a--b" / "snapshots" / "123"
    snapshot.mkdir(parents=True)
    assert model_name(snapshot) == "org/a--b"
    assert model_name(tmp_path / "x.gguf") == "x.gguf"
    assert model_name(snapshot / "Q8_0" / "x-Q8_0.gguf") == "org/a--b:x-Q8_0"
    monkeypatch.chdir(snapshot)
    assert model_name(Path()) == "123"


def test_a_cache_that_cannot_be_read_or_emptied_is_named(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program("pull", REPOSITORY).returncode == 0

    def fails() -> None:
        raise ValueError("Scan cache expects a directory but found a file.\nSet another one.")

    monkeypatch.setattr("huggingface_hub.scan_cache_dir", fails)
    assert "the cache cannot be read" in refused(HubError, cached_models)
    assert SHORT in model_names()

    class Removal:
        snapshots = (tmp_path,)
        expected_freed_size = 0

        def execute(self) -> None:
            """Removes nothing, as for another user's files."""

    found = SimpleNamespace(repo_id="o/m", revisions=[SimpleNamespace(commit_hash="1", refs=())])
    monkeypatch.setattr("specqd.hub._cached_repositories", lambda: [found])
    cache = SimpleNamespace(delete_revisions=lambda *commits: Removal())
    monkeypatch.setattr("huggingface_hub.scan_cache_dir", lambda: cache)
    assert "could not be removed; allow writing" in refused(HubError, remove_cached, "o/m")


def test_a_home_directory_that_does_not_exist_is_named() -> None:
    assert "~nobody-of-this-name/x" in refused(HubError, expanded, "~nobody-of-this-name/x")
