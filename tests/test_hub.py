"""Models are found by path or name; a failure is reported in one line."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors

from specqd.errors import HubError
from specqd.hub import resolve
from support.refusals import refused


class NoHub:
    """Stands in for snapshot_download: records repositories, then raises."""

    def __init__(self, problem: Exception) -> None:
        self.problem = problem
        self.asked: list[str] = []

    def __call__(self, repo_id: str, **options: object) -> str:
        self.asked.append(repo_id)
        raise self.problem


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> NoHub:
    hub = NoHub(AssertionError("the hub was asked"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


def refusal(path_or_repo: str | Path) -> str:
    return refused(HubError, resolve, path_or_repo)


def test_local_directory_is_itself(model_directory, no_hub):
    assert resolve(model_directory) == model_directory
    assert resolve(str(model_directory)) == model_directory
    assert not no_hub.asked


def test_local_directory_wins_over_a_repository(model_directory, no_hub, monkeypatch):
    monkeypatch.chdir(model_directory.parent.parent)
    name = f"{model_directory.parent.name}/{model_directory.name}"
    assert resolve(name) == Path(name)
    assert not no_hub.asked


def test_directory_without_a_config_is_refused(tmp_path):
    assert "has no config.json; name a Hugging Face model dir" in refusal(tmp_path)


def test_a_directory_of_gguf_files_is_told_their_names(tmp_path):
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).touch()
    problem = refusal(tmp_path)
    assert problem.endswith(f"name {tmp_path / 'a.gguf'}, or another of its 2 .gguf files")
    (tmp_path / "b.gguf").unlink()
    assert refusal(tmp_path).endswith(f"name {tmp_path / 'a.gguf'}")


def test_file_in_place_of_a_directory_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "is a file; name the model's directory" in refusal(tmp_path / "model.safetensors")


def test_gguf_file_is_itself(tmp_path, no_hub):
    (tmp_path / "m.GGUF").write_bytes(b"")
    assert resolve(tmp_path / "m.GGUF") == tmp_path / "m.GGUF"


@pytest.mark.parametrize(
    "name",
    ["/no/such/place", "nothere", "", "a/b/c", "../up/there", "./a/b", "a/b@", "a/b@v 1", "a//b"],
)
def test_name_that_is_neither_path_nor_repository_is_refused(no_hub, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refusal(name)
    assert not no_hub.asked


@pytest.mark.parametrize("name", ["x" * 5000, "~nosuchuser/model", "a\0b", "a/b\n"])
def test_impossible_path_is_refused(no_hub, name):
    refusal(name)
    assert not no_hub.asked


def http_error(kind: type[errors.HfHubHTTPError]) -> errors.HfHubHTTPError:
    """An error without __init__, which needs a response of the HTTP library."""
    return kind.__new__(kind, "first line\nsecond line")


@pytest.mark.parametrize(
    ("problem", "mention"),
    [
        (http_error(errors.RepositoryNotFoundError), "check the name"),
        (http_error(errors.GatedRepoError), "accept its licence"),
        (http_error(errors.RevisionNotFoundError), "no such revision"),
        (errors.LocalEntryNotFoundError("offline\nand not cached"), "check the network"),
        (ConnectionError("no route\nto host"), "check the network"),
        (OSError("No space left on device"), "the disk"),
    ],
)
def test_failed_fetch_is_one_line_with_the_repository(monkeypatch, problem, mention):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", NoHub(problem))
    message = refusal("owner/model@v1")
    assert "owner/model@v1" in message
    assert mention in message
