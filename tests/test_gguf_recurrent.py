"""GGUF files of Qwen 3.5 give the same model as its directory, or an error that names the cause."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd.config import read_config
from specqd.errors import ConfigError, SpecqdError
from specqd.formats.bf16 import rounded_to_bf16, widened
from specqd.formats.gguf import GgufFile
from specqd.formats.gguf_recurrent import logarithms
from specqd.model.model import Machine, Model
from specqd.text.backends import NORMAL, WORD_SPLITS, byte_level_backend
from support.families import FAMILY_SHAPES
from support.gguf_files import convert
from support.random_models import Shape, change_model, make_model
from support.refusals import refused

SHAPE = replace(FAMILY_SHAPES["qwen3_5_text"], spells_rope_parameters=False)
TILES = {  # key heads and value heads
    "one each": (3, 3),
    "two each": (2, 4),
    "three each": (2, 6),
    "one key head": (1, 5),
}


def shape_of(key_heads: int, value_heads: int) -> Shape:
    heads = {"linear_num_key_heads": key_heads, "linear_num_value_heads": value_heads}
    return replace(SHAPE, extra=SHAPE.extra | heads)


def hybrid(directory: Path, shape: Shape, rng: np.random.Generator) -> Path:
    """A model whose A_log stays the same when a file keeps -e^A_log in fp32."""
    make_model(directory, shape, int(rng.integers(1 << 30)))
    drawn = np.log(rng.uniform(0.01, 16, 4000)).astype(np.float32)
    values = widened(rounded_to_bf16(drawn))
    found = logarithms(-np.exp(values))
    assert found is not None
    kept = rounded_to_bf16(values[found == values])

    def choose(tensors: dict[str, Any]) -> None:
        for name in (name for name in tensors if name.endswith("A_log")):
            tensors[name] = rng.choice(kept, tensors[name].size)

    return change_model(directory, choose)


def opened(path: Path) -> Model:
    return Model.open(path, machine=Machine.choose(1), cache_positions=256)


@pytest.mark.parametrize("heads", TILES.values(), ids=TILES)
def test_a_hybrid_has_the_logits_of_its_directory(
    heads: tuple[int, int], tmp_path: Path, rng: np.random.Generator
) -> None:
    directory = hybrid(tmp_path / "model", shape_of(*heads), rng)
    path = convert(directory, tmp_path / "m.gguf", "BF16")
    assert read_config(path) == read_config(directory)
    tokens = rng.integers(0, SHAPE.vocab, 70).tolist()
    ours, theirs = opened(path), opened(directory)
    assert ours.logits(tokens).tobytes() == theirs.logits(tokens).tobytes()
    drafted = ours.as_draft().logits(tokens)
    assert drafted.tobytes() == theirs.as_draft().logits(tokens).tobytes()


def test_mtp_layers_are_counted_as_blocks_and_not_read(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    directory = hybrid(tmp_path / "model", SHAPE, rng)
    plain = read_config(convert(directory, tmp_path / "m.gguf", "BF16"))
    blocks = {"qwen35__block_count": SHAPE.layers + 1, "qwen35__nextn_predict_layers": 1}
    path = convert(directory, tmp_path / "mtp.gguf", "BF16", **blocks)
    assert read_config(path) == plain


@pytest.mark.parametrize(
    ("metadata", "mention"),
    [
        ({"qwen35__ssm__group_count": 0}, "qwen35.ssm.group_count is 0"),
        ({"qwen35__ssm__state_size": "24"}, "qwen35.ssm.state_size is '24'"),
        ({"qwen35__ssm__inner_size": 129}, "129 values cannot be divided among 4 heads"),
        ({"qwen35__ssm__time_step_rank": 1 << 40}, "cannot be divided"),
        ({"qwen35__full_attention_interval": 0}, "full_attention_interval is 0"),
        ({"qwen35__rope__dimension_count": 0}, "rope.dimension_count is 0"),
        ({"qwen35__nextn_predict_layers": "1"}, "nextn_predict_layers is '1'"),
        ({"qwen35__nextn_predict_layers": 4}, "num_hidden_layers is 0"),
    ],
)
def test_the_error_for_wrong_metadata_names_the_key(
    metadata: dict[str, Any], mention: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    directory = hybrid(tmp_path / "model", SHAPE, rng)
    path = convert(directory, tmp_path / "m.gguf", "BF16", **metadata)
    assert mention in refused(ConfigError, read_config, path)


@pytest.mark.parametrize("rate", [0.0, 0.5, float("nan"), float("-inf")])
def test_rates_that_are_not_negative_are_rejected(
    rate: float, tmp_path: Path, rng: np.random.Generator
) -> None:
    path = convert(hybrid(tmp_path / "model", SHAPE, rng), tmp_path / "m.gguf", "BF16")
    at = GgufFile.open(path).tensors["blk.0.ssm_a"].begin
    content = bytearray(path.read_bytes())
    content[at : at + 4] = struct.pack("<f", rate)
    path.write_bytes(content)
    assert "'blk.0.ssm_a' has a rate that is not below 0" in refused(SpecqdError, opened, path)


def test_tokenization_keeps_combining_marks_with_their_word() -> None:
    def words(pre: str) -> int:
        backend = byte_level_backend(["a"], [NORMAL], [], WORD_SPLITS[pre])
        return len(backend.pre_tokenizer.pre_tokenize_str("नमस्ते"))

    assert words("qwen35") == 1
    assert words("qwen2") > 1
