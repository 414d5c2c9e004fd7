"""A model that also reads images gives the logits of its text model, under either naming."""

import json
from pathlib import Path
from typing import get_args

import pytest

from specqd.cli import main
from specqd.config import RopeConfig, read_config
from specqd.errors import ConfigError
from specqd.model.model import Machine, Model
from support.families import FAMILY_SHAPES
from support.random_models import Shape, make_model
from support.refusals import refused
from support.wrapped_models import Naming, wrap_model

SHAPES = {
    "ministral3": FAMILY_SHAPES["ministral3"],
    "qwen3_5_text": FAMILY_SHAPES["qwen3_5_text"],
    "qwen3_5_moe_text": FAMILY_SHAPES["qwen3_5_moe_text"],
    "mistral, tied": Shape("mistral", window=9, is_tied=True),
    "gemma3_text": FAMILY_SHAPES["gemma3_text"],
    "gemma4_text": FAMILY_SHAPES["gemma4_text"],
    "gemma4_unified_text": FAMILY_SHAPES["gemma4_unified_text"],
    "qwen3_vl_text": FAMILY_SHAPES["qwen3_vl_text"],
    "lfm2": FAMILY_SHAPES["lfm2"],
    "lfm3": FAMILY_SHAPES["lfm3"],
}
MACHINE = Machine.choose(1)
TOKENS = list(range(1, 100))
each_naming = pytest.mark.parametrize("naming", get_args(Naming))


def logits(directory: Path) -> bytes:
    return Model.open(directory, machine=MACHINE).logits(TOKENS).tobytes()


@each_naming
@pytest.mark.parametrize("name", SHAPES)
def test_a_wrapped_model_has_the_logits_of_its_text_model(
    tmp_path: Path, seed: int, name: str, naming: Naming
) -> None:
    text = make_model(tmp_path / "text", SHAPES[name], seed)
    wrapped = wrap_model(tmp_path / "wrapped", text, naming)
    assert logits(wrapped) == logits(text)
    assert Model.open(wrapped, machine=MACHINE).weights.parameters == (
        Model.open(text, machine=MACHINE).weights.parameters
    )


@each_naming
def test_a_wrapped_model_is_packed(tmp_path: Path, seed: int, naming: Naming) -> None:
    text = make_model(tmp_path / "text", SHAPES["ministral3"], seed)
    wrapped, packed = wrap_model(tmp_path / "wrapped", text, naming), tmp_path / "packed"
    assert main(["pack", str(wrapped), str(packed), "--calibrate", "none"]) == 0
    assert logits(packed) == logits(text)


def test_gemma_3_leaves_out_what_has_its_default(tmp_path: Path) -> None:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    around = {"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(around))
    config = read_config(tmp_path)
    heads = config.num_heads, config.num_kv_heads, config.head_dim, config.attention_scale
    assert heads == (8, 4, 256, 1 / 16)
    assert (config.vocab_size, config.max_positions) == (262_208, 131_072)
    assert (config.tied_embeddings, config.bos_token_id) == (True, 2)
    assert config.eos_token_ids == (1, 106)
    sliding, full = RopeConfig("default", 1e4), RopeConfig("linear", 1e6, 8.0)
    assert config.ropes[:7] == (*(sliding,) * 5, full, sliding)
    assert config.windows[:7] == (*(1024,) * 5, 0, 1024)


def test_token_ids_of_the_wrapper_hold_where_the_text_part_has_none(
    tmp_path: Path, seed: int
) -> None:
    text = make_model(tmp_path / "text", SHAPES["ministral3"], seed)
    around = {"bos_token_id": 3, "eos_token_id": [4, 5], "tie_word_embeddings": False}
    config = read_config(wrap_model(tmp_path / "a", text, "language_model.", **around))
    assert (config.bos_token_id, config.eos_token_ids) == (256, (257,))
    bare = {"model_type": "ministral3", "hidden_size": 64, "intermediate_size": 8}
    bare |= {"num_hidden_layers": 1, "num_attention_heads": 8, "vocab_size": 300}
    around["text_config"] = bare
    config = read_config(wrap_model(tmp_path / "b", text, "language_model.", **around))
    assert (config.bos_token_id, config.eos_token_ids) == (3, (4, 5))
    assert not config.tied_embeddings


@pytest.mark.parametrize(
    ("changes", "mention"),
    [
        ({"text_config": None}, "text_config is missing; an object is needed"),
        ({"text_config": {"model_type": "mistral4"}}, "text_config.model_type 'mistral4' is not"),
        (
            {"text_config": {"model_type": "mistral", "hidden_size": 0}},
            "text_config.num_hidden_layers is missing",
        ),
        (
            {"text_config": {"model_type": "mistral", "quantization_config": {}}},
            "this is a quantised checkpoint (quantization_config)",
        ),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "(FP8), which is not supported; use the BF16 checkpoint of this model; those of "
            "Ministral 3 have names that end in -BF16",
        ),
    ],
)
def test_what_is_wrong_with_a_wrapper_is_named(
    tmp_path: Path, seed: int, changes: dict[str, object], mention: str
) -> None:
    text = make_model(tmp_path / "text", SHAPES["ministral3"], seed)
    wrapped = wrap_model(tmp_path / "wrapped", text, "language_model.", **changes)
    assert mention in refused(ConfigError, read_config, wrapped)
