"""The program fetches models by name from a fake hub on this machine."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.cli import main
from support.command_line import PROGRAM
from support.embedding_models import write_modules, write_prompts
from support.fake_hub import FakeHub, commit_of
from support.random_models import Shape, change_model, make_model, read_model, resize
from support.tekken_files import tekken_content, write_tekken
from support.terminal_session import TerminalSession
from support.writers import write_shards

NEEDED = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
NOWHERE = "http://127.0.0.1:9"  # the discard port; nothing listens


@dataclass(frozen=True, slots=True)
class Fetched:
    """Exit status and output of the program."""

    returncode: int
    stdout: str
    stderr: str


Fetch = Callable[..., Fetched]


@pytest.fixture
def model(tmp_path: Path, seed: int) -> Path:
    """A repository: a model, and files that running it does not need."""
    directory = make_model(tmp_path / "repository", Shape(), seed)
    for name in ("README.md", "pytorch_model.bin", "consolidated.safetensors", "onnx/model.onnx"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(b"x" * 100)
    return directory


@pytest.fixture
def hub(model: Path) -> Iterator[FakeHub]:
    with FakeHub({"org/name": model}) as hub:
        yield hub


@pytest.fixture
def environment(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    return kept | {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.endpoint}


@pytest.fixture
def fetch(environment: dict[str, str], tmp_path: Path) -> Fetch:
    def generate(name: str, **more: str) -> Fetched:
        command = [*PROGRAM, "generate", name, "-p", "ab", "-n", "9", "--draft", "none"]
        ran = subprocess.run(
            [*command, "--temperature", "0"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment | more,
            cwd=tmp_path,
            check=False,
        )
        return Fetched(ran.returncode, ran.stdout.decode(), ran.stderr.decode())

    return generate


def text_of(model: Path) -> str:
    return LLM(model, "none").generate("ab", SamplingParams(9, temperature=0))[0].text


def refused(ran: Fetched) -> str:
    """The one-line error."""
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout == ""
    [line] = ran.stderr.splitlines()
    assert line.startswith("specqd: error: ")
    return line


def test_a_model_is_fetched_once_and_only_the_files_it_needs(
    hub: FakeHub, fetch: Fetch, model: Path, tmp_path: Path
) -> None:
    first = fetch("org/name")
    assert first.returncode == 0, first.stderr
    assert first.stdout == text_of(model)
    assert hub.fetched() == NEEDED
    assert (tmp_path / "home" / "hub").is_dir()
    hub.requests.clear()
    assert fetch("org/name").stdout == first.stdout
    assert hub.fetched() == set()


def test_files_about_embeddings_are_fetched(hub: FakeHub, fetch: Fetch, model: Path) -> None:
    write_modules(model, "mean")
    write_prompts(model, {"query": "q: "}, None)
    assert fetch("org/name").returncode == 0
    files = {"modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"}
    assert hub.fetched() == NEEDED | files


def test_only_shards_of_the_index_are_fetched(hub: FakeHub, fetch: Fetch, model: Path) -> None:
    expected = text_of(model)
    _, tensors = read_model(model)
    names = sorted(tensors)
    shards = {
        f"part-{i}.safetensors": {name: np.array(tensors[name]) for name in names[i::2]}
        for i in (0, 1)
    }
    write_shards(model, shards)
    (model / "model.safetensors").rename(model / "model.fp32.safetensors")
    ran = fetch("org/name")
    assert ran.stdout == expected
    assert hub.fetched() & {"part-0.safetensors", "part-1.safetensors"} == set(shards)
    assert "model.fp32.safetensors" not in hub.fetched()


def test_a_revision_is_asked_for_by_name_or_commit(hub: FakeHub, fetch: Fetch, model: Path) -> None:
    assert fetch(f"org/name@{commit_of('org/name')}").stdout == text_of(model)
    assert "has no such revision" in refused(fetch("org/name@v9"))


def test_a_broken_download_is_resumed(hub: FakeHub, fetch: Fetch, model: Path) -> None:
    chunk = 10 << 20  # bytes that huggingface_hub writes at a time
    change_model(model, resize("unused", 3 * chunk // 2))
    hub.cuts["model.safetensors"] = [chunk + 1000, chunk + 1000]
    ran = fetch("org/name")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == text_of(model)
    asked = [r for r in hub.requests if r.method == "GET" and r.path.endswith("model.safetensors")]
    assert [r.range for r in asked] == [None, f"bytes={chunk}-", f"bytes={2 * chunk}-"]


def test_an_interrupted_fetch_continues_with_the_missing_files(
    hub: FakeHub, fetch: Fetch, model: Path
) -> None:
    weights = model / "model.safetensors"
    kept = weights.rename(model / "elsewhere")
    assert "no safetensors weights, or not all of them" in refused(fetch("org/name"))
    shutil.copy(kept, weights)
    hub.requests.clear()
    for listing in model.parent.glob("home/hub/*/trees"):  # cached listings of the files
        shutil.rmtree(listing)
    assert fetch("org/name").stdout == text_of(model)
    assert hub.fetched() == {"model.safetensors"}


def test_without_a_network_the_cache_serves(fetch: Fetch, model: Path) -> None:
    expected = fetch("org/name").stdout
    assert expected == text_of(model)
    assert fetch("org/name", HF_HUB_OFFLINE="1").stdout == expected
    assert fetch("org/name", HF_ENDPOINT=NOWHERE).stdout == expected


def test_without_a_network_or_a_cache_one_line_says_what_to_do(fetch: Fetch) -> None:
    line = refused(fetch("org/other", HF_ENDPOINT=NOWHERE))
    assert "org/other: is not a local directory and could not be fetched from" in line
    assert NOWHERE in line
    assert "check the network" in line
    line = refused(fetch("org/name", HF_HUB_OFFLINE="1"))
    assert "org/name: is not a local directory and not (wholly) in the cache" in line
    assert "HF_HUB_OFFLINE forbids" in line


def test_a_token_opens_private_repositories(hub: FakeHub, fetch: Fetch, model: Path) -> None:
    hub.private["org/name"] = "hf_secret"
    assert "check the name, or run `hf auth login`" in refused(fetch("org/name"))
    assert fetch("org/name", HF_TOKEN="hf_secret").stdout == text_of(model)
    wrong = refused(fetch("org/name", HF_TOKEN="hf_wrong", HF_HOME=str(model.parent / "other")))
    assert "hf_" not in wrong


def test_gated_and_missing_repositories_have_different_errors(hub: FakeHub, fetch: Fetch) -> None:
    hub.gated.add("org/name")
    assert "is gated; accept its licence" in refused(fetch("org/name"))
    assert "neither a local directory nor a repository" in refused(fetch("org/nothing"))


def test_unsupported_models_are_refused_before_weights_are_fetched(
    hub: FakeHub, fetch: Fetch, model: Path
) -> None:
    change_model(model, model_type="bert")
    assert "model_type 'bert' is not supported" in refused(fetch("org/name"))
    assert "model.safetensors" not in hub.fetched()


def test_packed_models_are_fetched(hub: FakeHub, fetch: Fetch, model: Path) -> None:
    packed = model.parent / "packed"
    assert main(["pack", str(model), str(packed)]) == 0
    hub.repositories["org/packed"] = packed
    assert fetch("org/packed").stdout == text_of(model)
    assert hub.fetched() == (NEEDED - {"model.safetensors"}) | {"model-packed.safetensors"}


def test_a_repository_without_a_model_is_named(hub: FakeHub, fetch: Fetch, model: Path) -> None:
    (model / "config.json").unlink()
    assert "has no config.json" in refused(fetch("org/name"))


def test_sentencepiece_models_are_fetched_where_there_is_no_tokenizer_json(
    hub: FakeHub, fetch: Fetch, model: Path
) -> None:
    (model / "tokenizer.json").unlink()
    golden = Path(__file__).parent / "goldens" / "tokenizers" / "bpe" / "tokenizer.model"
    shutil.copy(golden, model)
    assert "tokenizer has 1000 tokens and the model 320" in refused(fetch("org/name"))
    assert "tokenizer.model" in hub.fetched()


def test_tekken_json_is_fetched_where_there_is_no_tokenizer_json(
    hub: FakeHub, fetch: Fetch, model: Path
) -> None:
    write_tekken(model, tekken_content("v13"))
    assert fetch("org/name").stdout == text_of(model)
    assert "tekken.json" not in hub.fetched()
    (model / "tokenizer.json").unlink()
    hub.repositories["org/other"] = model
    assert "tokenizer has 736 tokens and the model 320" in refused(fetch("org/other"))
    assert "tekken.json" in hub.fetched()


def test_a_terminal_shows_one_progress_bar_and_removes_it(
    environment: dict[str, str], model: Path
) -> None:
    command = [*PROGRAM, "generate", "org/name", "-p", "ab", "-n", "2", "--draft", "none"]
    with TerminalSession(command, environment) as session:
        assert session.wait() == 0
    shown = session.raw.decode()
    assert "\rFetching org/name: " in shown
    assert "B /" in shown
    assert "\x1b[A" not in shown  # no second line
    assert shown.splitlines()[-1].startswith("specqd: 2 tokens")
