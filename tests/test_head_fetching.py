"""Trained heads are fetched from repositories of a fake hub: `--draft head:owner/name`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_hub import FakeHub
from support.hub_program import Program
from support.random_dflash import BlockShape, make_drafter
from support.random_heads import HeadShape, make_head
from support.random_models import Shape, make_model

TARGET = Shape(layers=4, context=256)
GENERATE = ("-p", "ab", "-n", "9", "--temperature", "0")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_model(tmp_path_factory.mktemp("target"), TARGET, seed)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        yield hub


@pytest.fixture
def program(hub: FakeHub, tmp_path: Path) -> Program:
    return Program(hub, tmp_path)


def make_repository(directory: Path, kind: str, maker: Any) -> Path:
    if kind == "head":
        return make_head(directory, TARGET, HeadShape(maker=maker), 1)
    return make_drafter(directory, TARGET, BlockShape(maker=maker), 1)


@pytest.mark.parametrize(
    ("kind", "maker"),
    [
        ("blocks", "z-lab"),
        ("blocks", "speculators"),
        ("head", "specforge"),
        ("head", "nvidia"),
        ("head", "speculators"),
    ],
)
def test_the_heads_of_every_maker_are_fetched(
    kind: str, maker: str, target: Path, hub: FakeHub, program: Program, tmp_path: Path
) -> None:
    hub.repositories["org/head"] = make_repository(tmp_path / "head", kind, maker)
    plain = program("generate", str(target), *GENERATE, "--draft", "none")
    words = ("--draft", "head:org/head:k=3", "--stats")
    drafted = program("generate", str(target), *GENERATE, *words)
    assert drafted.returncode == 0, drafted.stderr
    assert drafted.stdout == plain.stdout
    assert b"head:org/head" in drafted.stderr
    assert hub.fetched() == {"config.json", "model.safetensors"}
    hub.requests.clear()
    assert program("generate", str(target), *GENERATE, *words).stdout == plain.stdout
    assert hub.fetched() == set()


@pytest.mark.parametrize(
    ("entries", "file", "why"),
    [
        ({"architectures": ["DSparkDraftModel"]}, None, "DSpark"),
        ({"num_target_layers": 36}, None, "the drafter belongs to another model"),
        ({}, "mask_embedding.pt", "an embedding of masks of its own"),
    ],
)
def test_what_is_no_drafter_of_the_model_is_refused_before_its_weights_are_fetched(
    entries: dict[str, Any],
    file: str | None,
    why: str,
    target: Path,
    hub: FakeHub,
    program: Program,
    tmp_path: Path,
) -> None:
    drafter = hub.repositories["org/head"] = make_repository(tmp_path / "head", "blocks", "z-lab")
    config = json.loads((drafter / "config.json").read_text()) | entries
    (drafter / "config.json").write_text(json.dumps(config))
    if file is not None:
        (drafter / file).write_bytes(b"x")
    ran = program("generate", str(target), *GENERATE, "--draft", "head:org/head")
    [line] = ran.stderr.decode().splitlines()
    assert ran.returncode == 1
    assert why in line
    assert "model.safetensors" not in hub.fetched()
