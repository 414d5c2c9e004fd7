"""GGUF files in several parts, written by the `gguf` package, read as the whole file."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from specqd.errors import TensorError
from specqd.formats.gguf import GgufFile, parts_of, whole_stem
from specqd.model.model import Machine, Model
from specqd.text.tokenizer import Tokenizer
from support.families import FAMILY_SHAPES
from support.gguf_files import convert, write_gguf, write_parts
from support.random_models import make_model
from support.refusals import refused


@pytest.fixture
def model(tmp_path: Path, seed: int) -> Path:
    return make_model(tmp_path / "model", FAMILY_SHAPES["qwen2"], seed)


@pytest.mark.parametrize("is_first_empty", [False, True])
def test_a_file_in_parts_is_the_whole_file(
    tmp_path: Path, model: Path, is_first_empty: bool
) -> None:
    first, *_ = write_parts(model, tmp_path / "parts.gguf", is_first_empty=is_first_empty)
    whole = convert(model, tmp_path / "whole.gguf", "F32")
    found, wanted = GgufFile.open(first), GgufFile.open(whole)
    assert sorted(found.tensors) == sorted(wanted.tensors)
    for name in wanted.tensors:
        np.testing.assert_array_equal(found.data(name), wanted.data(name))
    text = "def f(x):"
    tokens = Tokenizer.open(first).encode(text)
    assert tokens == Tokenizer.open(whole).encode(text)
    logits = [
        Model.open(path, machine=Machine.choose(1)).logits(tokens).tobytes()
        for path in (first, whole)
    ]
    assert logits[0] == logits[1]


def test_a_change_of_any_part_is_noticed(tmp_path: Path, model: Path) -> None:
    parts = write_parts(model, tmp_path / "m.gguf")
    file = GgufFile.open(parts[0])
    file.check_unchanged()
    with parts[-1].open("ab") as last:
        last.write(b"x")
    assert str(parts[-1]) in refused(TensorError, file.check_unchanged)


def test_what_is_wrong_with_parts_is_named(tmp_path: Path, model: Path) -> None:
    first, second, third = write_parts(model, tmp_path / "m.gguf")
    assert refused(TensorError, GgufFile.open, second).endswith(f"name {first}")
    renamed = shutil.copy(first, tmp_path / "renamed.gguf")
    assert "is one of 3 parts; give them their names" in refused(
        TensorError, GgufFile.open, Path(renamed)
    )
    third.unlink()
    assert str(third) in refused(TensorError, GgufFile.open, first)
    shutil.copy(second, third)
    assert f"{third}: is not part 3 of {first}" in refused(TensorError, GgufFile.open, first)


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    paths = parts_of(tmp_path / "m-00001-of-00002.gguf")
    for number, path in enumerate(paths):
        split = {"split.no": number, "split.count": 2}
        write_gguf(path, split, {"same": np.zeros(1, np.float32)})
    assert f"{paths[1]}: tensor 'same' is also" in refused(TensorError, GgufFile.open, paths[0])


@pytest.mark.parametrize(
    ("name", "stem", "count"),
    [
        ("m-q4-00001-of-00002.gguf", "m-q4", 2),
        ("m-q4-00003-of-00002.gguf", "m-q4-00003-of-00002", 1),
        ("m-q4-00000-of-00000.gguf", "m-q4-00000-of-00000", 1),
        ("m-q4.gguf", "m-q4", 1),
    ],
)
def test_names_tell_the_parts(name: str, stem: str, count: int) -> None:
    assert len(parts_of(Path(name))) == count
    assert whole_stem(Path(name)) == stem
