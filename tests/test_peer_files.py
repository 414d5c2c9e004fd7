"""The files that `make bench-peers` converts models to hold the same model."""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from specqd.config import read_config
from specqd.formats.safetensors import TensorDirectory
from specqd.model.model import Machine, Model
from specqd.text.tokenizer import Tokenizer
from support.gguf_files import convert, write_gguf
from support.random_models import ROPE_SCALINGS, Shape, make_model, read_model
from support.writers import bf16_bits

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks" / "peers"))

import from_gguf
import prepare


@pytest.mark.parametrize("spells_rope_parameters", [False, True])
def test_a_gguf_file_for_llama_cpp_is_the_model(
    spells_rope_parameters: bool, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    shape = Shape(rope_theta=31000.0, spells_rope_parameters=spells_rope_parameters)
    model = make_model(tmp_path / "model", shape, seed)
    prepare.write_gguf(model, tmp_path / "m.gguf")
    read = read_config(tmp_path / "m.gguf")
    assert read == read_config(model)
    assert read.distinct_ropes[0].theta == 31000.0
    tokens = list(map(int, rng.integers(0, 256, 20)))
    machine = Machine.choose(1)
    found, expected = (
        Model.open(path, machine=machine, cache_positions=64).logits(tokens)
        for path in (tmp_path / "m.gguf", model)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("spells_rope_parameters", [False, True])
def test_a_scaled_rope_is_not_written(
    spells_rope_parameters: bool, tmp_path: Path, seed: int
) -> None:
    shape = Shape(
        rope_scaling=ROPE_SCALINGS["linear"], spells_rope_parameters=spells_rope_parameters
    )
    with pytest.raises(ValueError, match="unscaled RoPE"):
        prepare.write_gguf(make_model(tmp_path / "model", shape, seed), tmp_path / "m.gguf")


def test_norms_of_a_gguf_file_are_rounded_to_bf16_in_place(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    norm = rng.standard_normal(64).astype(np.float32)
    matrix = bf16_bits(rng.standard_normal((2, 32)))
    path = write_gguf(
        tmp_path / "m.gguf",
        {"general.architecture": "llama"},
        {"output_norm.weight": norm, "output.weight": matrix},
    )
    prepare.round_vectors(path)
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    expected = (bf16_bits(norm).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(found["output_norm.weight"], expected)
    np.testing.assert_array_equal(found["output.weight"].view(np.uint16), matrix)


def test_a_directory_made_of_a_gguf_file_is_the_model(tmp_path: Path, seed: int) -> None:
    model = make_model(tmp_path / "model", Shape(is_tied=True), seed)
    path, out = convert(model, tmp_path / "m.gguf", "BF16"), tmp_path / "out"
    from_gguf.write(path, out)
    assert read_config(out) == read_config(path)
    assert json.loads((out / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    _, expected = read_model(model)
    found = TensorDirectory.open(out)
    assert set(found) == set(expected)
    for name, bits in expected.items():
        np.testing.assert_array_equal(found[name].data, bits)
    ours, theirs = Tokenizer.open(out), Tokenizer.open(path)
    assert (ours.to_json(), ours.named_tokens) == (theirs.to_json(), theirs.named_tokens)
