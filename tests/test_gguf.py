"""The GGUF reader reads good files bit for bit, and their metadata as those of a directory."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd.config import read_config
from specqd.errors import ConfigError
from specqd.formats.gguf import GgufFile
from specqd.formats.gguf_tensors import GgufTensors, in_half_order, without_one
from specqd.formats.safetensors import TensorDirectory
from specqd.text.tokenizer import Tokenizer
from support.gguf_files import changed_file, convert, shape_file, write_gguf
from support.random_models import ROPE_SCALINGS, Shape, make_model

VALUES: dict[str, Any] = {
    "a.flag": True,
    "a.number": 7,
    "a.real": 0.5,
    "a.text": "héllo",
    "a.numbers": [1, 2, 3],
    "a.texts": ["x", "", "日本"],
    "a.nested": [[1, 2], [3]],
    "a.empty": [],
}


def arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "wide": rng.standard_normal((3, 5)).astype(np.float32),
        "half": rng.standard_normal(7).astype(np.float16),
        "bits": rng.integers(0, 1 << 16, (2, 3, 4), dtype=np.uint16),
    }


@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_everything_reads_back(tmp_path: Path, rng: np.random.Generator, alignment: int) -> None:
    written = arrays(rng)
    values = VALUES | {"general.alignment": alignment}
    read = GgufFile.open(write_gguf(tmp_path / "m.gguf", values, written, alignment=alignment))
    assert {key: read.get(key) for key in values} == values
    assert read.get("a.missing") is None
    for name, array in written.items():
        assert read.tensors[name].shape == array.shape
        assert read.data(name).tobytes() == array.tobytes()
        assert not read.data(name).flags.writeable


def test_reordered_rows_are_restored(rng: np.random.Generator) -> None:
    heads, half, columns = 3, 4, 5
    rows = rng.integers(0, 1 << 16, (heads * 2 * half, columns), dtype=np.uint16)
    paired = np.stack(
        [
            rows[h * 2 * half + part * half + i]
            for h in range(heads)
            for i in range(half)
            for part in (0, 1)
        ]
    )
    assert np.array_equal(in_half_order(paired, heads), rows)
    assert np.array_equal(in_half_order(paired[:, 0].copy(), heads), rows[:, 0])


def test_gemma_norms_minus_one_are_exact_or_rejected(rng: np.random.Generator) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    values = (every.astype(np.uint32) << 16).view(np.float32)
    kept = (np.abs(values) >= 2.0**-16) & (np.abs(values) < 2.0**15)
    assert np.array_equal(without_one(values[kept] + np.float32(1)), every[kept])
    assert np.array_equal(without_one(np.float32([1, 0, 2])), np.uint16([0, 0xBF80, 0x3F80]))
    for value in (1.3, 1 + 2.0**-7 + 2.0**-20, np.pi, 2.0**24 + 2):
        assert without_one(np.float32([1.5, value])) is None


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_scaling_is_recognised_by_its_divisors(tmp_path: Path, factor: float) -> None:
    shape = Shape(hidden=512, heads=4, head_dim=128, rope_theta=500000.0)
    frequencies = 500000.0 ** (-np.arange(0, 128, 2) / 128)
    wavelengths = 2 * math.pi / frequencies
    smooth = (8192 / wavelengths - 1.0) / (4.0 - 1.0)
    divisors = np.where(
        wavelengths < 8192 / 4.0,
        1.0,
        np.where(wavelengths > 8192, factor, 1 / ((1 - smooth) / factor + smooth)),
    ).astype(np.float32)
    [rope] = set(
        read_config(shape_file(tmp_path / "m.gguf", shape, **{"rope_freqs.weight": divisors})).ropes
    )
    assert rope is not None
    assert (rope.kind, rope.factor, rope.original_max_positions) == ("llama3", factor, 8192)
    assert (rope.low_freq_factor, rope.high_freq_factor) == (1.0, 4.0)
    divisors[20] *= 1.01
    path = shape_file(tmp_path / "m.gguf", shape, **{"rope_freqs.weight": divisors})
    with pytest.raises(ConfigError, match="does not follow Llama 3"):
        read_config(path)


def test_the_configuration_is_that_of_config_json(tmp_path: Path, seed: int) -> None:
    for index, shape in enumerate((
        Shape(rope_scaling=ROPE_SCALINGS["linear"]),
        Shape("qwen2", is_tied=True),
        Shape("qwen3", head_dim=24),
    )):  # fmt: skip
        model = make_model(tmp_path / f"model{index}", shape, seed)
        more: dict[str, Any] = {}
        if shape.rope_scaling:
            more = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 2.5}
        assert read_config(convert(model, tmp_path / "m.gguf", "F32", **more)) == read_config(model)


@pytest.mark.parametrize("key", ["rope__scaling__factor", "rope__scale_linear"])
def test_older_files_state_only_the_factor_of_a_linear_rope(
    tmp_path: Path, seed: int, key: str
) -> None:
    model = make_model(tmp_path / "model", Shape(rope_scaling=ROPE_SCALINGS["linear"]), seed)
    path = convert(model, tmp_path / "m.gguf", "F32", **{f"llama__{key}": 2.5})
    assert read_config(path) == read_config(model)


def test_heads_may_be_listed_by_layer_if_all_layers_have_as_many(tmp_path: Path, seed: int) -> None:
    """Files of Granite 4 list them."""
    model = make_model(tmp_path / "model", Shape(), seed)
    heads, layers = Shape().kv_heads, Shape().layers
    more = {"llama__attention__head_count_kv": [heads] * layers}
    whole = convert(model, tmp_path / "whole.gguf", "BF16")
    listed = convert(model, tmp_path / "listed.gguf", "BF16", **more)
    assert read_config(listed) == read_config(whole)
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk"]
    for name in names:
        shape = TensorDirectory.open(model)[name].shape
        found = [GgufTensors.open(path).bf16(name, shape) for path in (whole, listed)]
        assert np.array_equal(*found)


def test_all_end_of_turn_tokens_end_the_text(tmp_path: Path, seed: int) -> None:
    path = changed_file(
        tmp_path / "m.gguf", tmp_path / "model", seed, tokenizer__ggml__eot_token_id=7
    )
    assert read_config(path).eos_token_ids == (257, 7)


def test_ends_of_turns_are_found_by_their_text_in_files_of_chat_models(
    tmp_path: Path, seed: int
) -> None:
    """A file names three at most, and converters leave some out, as for Gemma 3."""
    path = changed_file(tmp_path / "m.gguf", tmp_path / "model", seed)
    tokens = GgufFile.open(path).get("tokenizer.ggml.tokens")
    assert isinstance(tokens, list)
    tokens[5], tokens[6] = "<end_of_turn>", "<|eom_id|>"
    for template, expected in (("{{ messages }}", (257, 6, 5)), ("", (257,))):
        more = {"tokenizer__chat_template": template} if template else {}
        path = changed_file(
            tmp_path / "m.gguf", tmp_path / "model", seed, tokenizer__ggml__tokens=tokens, **more
        )
        assert read_config(path).eos_token_ids == expected


def test_templates_and_named_tokens_come_from_the_file(tmp_path: Path, seed: int) -> None:
    templates = {
        "tokenizer__chat_template": "{{ bos_token }}{{ messages[0].content }}",
        "tokenizer__chat_templates": ["tool_use"],
        "tokenizer__chat_template__tool_use": "tools",
    }
    tokenizer = Tokenizer.open(
        changed_file(tmp_path / "m.gguf", tmp_path / "model", seed, **templates)
    )
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.render_chat(messages) == "<s>hi"
    assert tokenizer.render_chat(messages, tools=[{}]) == "tools"
    assert tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("flags", [(False, False), (True, False), (True, True)])
def test_the_file_decides_which_end_tokens_are_added(
    tmp_path: Path, seed: int, flags: tuple[bool, bool]
) -> None:
    keys = ("tokenizer__ggml__add_bos_token", "tokenizer__ggml__add_eos_token")
    kept = dict(zip(keys, flags, strict=True))
    path = changed_file(tmp_path / "m.gguf", tmp_path / "model", seed, **kept)
    tokenizer = Tokenizer.open(path)
    bos, eos = ([i] * flag for i, flag in zip((256, 257), flags, strict=True))
    assert tokenizer.encode("é") == [*bos, *tokenizer.encode("é", add_special_tokens=False), *eos]
