"""The GGUF reader rejects hostile, damaged and unsupported files in one line."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specqd import LLM
from specqd.config import read_config
from specqd.errors import ConfigError, SpecqdError, TensorError, TokenizerError
from specqd.formats.gguf import GgufFile
from specqd.formats.gguf_tensors import GgufTensors
from specqd.text.tokenizer import Tokenizer
from support.gguf_files import (
    changed_file,
    convert,
    model_metadata,
    shape_file,
    string,
    typed,
    write_gguf,
)
from support.random_models import Shape, make_config, make_model
from support.refusals import done_or_refused, refused

GEMMA2 = Shape("gemma2", layers=1, is_tied=True)
fuzz = settings(max_examples=300)


@pytest.fixture
def good(tmp_path: Path, seed: int) -> Path:
    return convert(make_model(tmp_path / "model", Shape(), seed), tmp_path / "m.gguf", "BF16")


def refusal(path: Path, kind: type[SpecqdError] = TensorError) -> str:
    message = refused(kind, LLM, path, "none", 1)
    assert str(path) in message
    return message


HEAD = b"GGUF" + struct.pack("<I", 3)
TENSOR = string("t") + struct.pack("<IQIQ", 1, 4, 0, 0)
HOSTILE = {
    "empty": (b"", "is empty; fetch the file again"),
    "no magic": (b"GGML" + bytes(60), "this is not a GGUF file"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian 2 and 3 are"),
    "cut off": (HEAD + bytes(3), "truncated"),
    "endless metadata": (HEAD + struct.pack("<QQ", 0, 2**64 - 1), "truncated"),
    "endless tensors": (HEAD + struct.pack("<QQ", 2**64 - 1, 0), "truncated"),
    "endless key": (HEAD + struct.pack("<QQQ", 0, 1, 2**64 - 1) + b"abc", "truncated"),
    "endless array": (
        HEAD + struct.pack("<QQ", 0, 1) + string("k") + struct.pack("<IIQ", 9, 8, 2**63),
        "too large or nested too deeply",
    ),
    "deep array": (
        HEAD + struct.pack("<QQ", 0, 1) + string("k") + struct.pack("<I", 9)
        + 9 * struct.pack("<IQ", 9, 1),
        "too large or nested too deeply",
    ),
    "unknown type": (
        HEAD + struct.pack("<QQ", 0, 1) + string("k") + struct.pack("<I", 13), "unknown type 13"
    ),
    "bad text": (
        HEAD + struct.pack("<QQQ", 0, 1, 1) + b"\xff" + struct.pack("<II", 4, 0), "can't decode"
    ),
    "key twice": (
        HEAD + struct.pack("<QQ", 0, 2) + 2 * (string("k\x1b") + typed(1)),
        "'k\\x1b' appears twice",
    ),
    "alignment": (
        HEAD + struct.pack("<QQ", 0, 1) + string("general.alignment") + typed(3),
        "general.alignment is 3",
    ),
    "tensor twice": (
        HEAD + struct.pack("<QQ", 2, 0) + 2 * TENSOR + bytes(96), "'t' appears twice"
    ),
    "data cut off": (HEAD + struct.pack("<QQ", 1, 0) + TENSOR + bytes(20), "ends past the end"),
    "part of a block": (
        HEAD + struct.pack("<QQ", 1, 0) + string("t") + struct.pack("<I2QIQ", 2, 48, 2, 2, 0)
        + bytes(99),
        "'t' has 48 columns, not a multiple of 32, the weights in a Q4_0 block",
    ),
    "blocks of a number": (
        HEAD + struct.pack("<QQ", 1, 0) + string("t") + struct.pack("<IIQ", 0, 12, 0) + bytes(999),
        "'t' has 1 columns, not a multiple of 256, the weights in a Q4_K block",
    ),
    "blocks cut off": (
        HEAD + struct.pack("<QQ", 1, 0) + string("t") + struct.pack("<IQIQ", 1, 64, 8, 0)
        + bytes(60),
        "ends past the end",
    ),
    "misaligned": (
        HEAD + struct.pack("<QQ", 1, 0) + string("t") + struct.pack("<IQIQ", 1, 4, 0, 4)
        + bytes(99),
        "impossible offset",
    ),
    "huge shape": (
        HEAD + struct.pack("<QQ", 1, 0) + string("t") + struct.pack("<I2QIQ", 2, 2**63, 2, 0, 0),
        "impossible offset or shape",
    ),
    "many dimensions": (
        HEAD + struct.pack("<QQ", 1, 0) + string("t") + struct.pack("<I5QIQ", 5, *[1] * 5, 0, 0),
        "has 5 dimensions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_the_error_for_a_hostile_file_names_it(tmp_path: Path, case: str) -> None:
    content, mention = HOSTILE[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert mention in refusal(path)


def attempt(path: Path) -> None:
    for read in (read_config, GgufTensors.open, Tokenizer.open):
        done_or_refused(SpecqdError, read, path)


@fuzz
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(HEAD + content)
    attempt(tmp_path / "m.gguf")


@fuzz
@given(data=st.data())
def test_a_damaged_file_is_read_or_rejected(good: Path, data: st.DataObject) -> None:
    content = bytearray(good.read_bytes())
    header = content.index(b"token_embd.weight") + 200
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, header))] = data.draw(st.integers(0, 255))
    damaged = good.with_name("damaged.gguf")
    damaged.write_bytes(content[: data.draw(st.sampled_from([len(content), header, header // 2]))])
    attempt(damaged)


@pytest.mark.parametrize(
    ("number", "name"), [(9, "Q8_1"), (16, "IQ2_XXS"), (40, "NVFP4"), (99, "of ggml's type 99")]
)
def test_the_error_for_an_unsupported_type_names_it(good: Path, number: int, name: str) -> None:
    content = good.read_bytes()
    entry = string("blk.0.attn_q.weight") + struct.pack("<I2Q", 2, 64, 64)
    at = content.index(entry) + len(entry)
    good.write_bytes(content[:at] + struct.pack("<I", number) + content[at + 4 :])
    message = refusal(good)
    assert f"'blk.0.attn_q.weight' is {name}, which is not supported; use a file in " in message
    assert message.endswith("Q6_K, IQ4_NL or MXFP4")


@pytest.mark.parametrize(
    ("metadata", "error", "mention"),
    [
        ({"general__architecture": "gpt5"}, ConfigError, "architecture 'gpt5' is not supported"),
        ({"llama__expert_count": 8}, ConfigError, "mixtures of experts"),
        ({"llama__attention__value_length": 8}, ConfigError, "keys of 16, values of 8"),
        ({"llama__rope__dimension_count": 8}, ConfigError, "8 rotated"),
        ({"llama__rope__scaling__type": "longrope"}, ConfigError, "'longrope'"),
        ({"llama__rope__scaling__type": "yarn", "llama__rope__scaling__attn_factor": 2.0},
         ConfigError, "attn_factor"),
        ({"llama__embedding_length": "64"}, ConfigError, "hidden_size is '64'"),
        ({"llama__feed_forward_length": [160, 160]}, ConfigError, "intermediate_size is [160"),
        ({"tokenizer__ggml__eos_token_id": [1, 2]}, ConfigError, "eos_token_id is [[1, 2]]"),
        ({"llama__attention__key_length": "16", "llama__attention__value_length": "16",
          "llama__rope__dimension_count": "16"}, ConfigError, "head_dim is '16'"),
        ({"llama__attention__key_length": [16], "llama__attention__value_length": [16],
          "llama__rope__dimension_count": [16]}, ConfigError, "head_dim is [16]"),
        ({"llama__block_count": 3}, TensorError,
             "layers.2.input_layernorm.weight' is missing"),
        ({"llama__feed_forward_length": 161}, TensorError, "[161, 64] was expected"),
        ({"tokenizer__ggml__model": "t5"}, TokenizerError, "only gpt2 and llama are supported"),
        ({"tokenizer__ggml__pre": "klingon"}, TokenizerError, "ggml.pre is 'klingon'"),
        ({"tokenizer__ggml__tokens": 3}, TokenizerError, "a list of strings is needed"),
        ({"tokenizer__ggml__merges": ["a b", "ab"]}, TokenizerError, "merges has 'ab'"),
        ({"tokenizer__ggml__merges": ["no such"]}, TokenizerError, "not a tokenizer"),
        ({"tokenizer__ggml__token_type": [1]}, TokenizerError, "a list of 320 numbers"),
        ({"tokenizer__ggml__bos_token_id": 320}, TokenizerError, "an id below 320"),
        ({"tokenizer__ggml__add_bos_token": 1}, TokenizerError, "true or false"),
        ({"tokenizer__ggml__model": "llama"}, TokenizerError, "scores is missing"),
    ],
)  # fmt: skip
def test_the_error_for_unsupported_metadata_names_it(
    tmp_path: Path, seed: int, metadata: dict[str, Any], error: type[SpecqdError], mention: str
) -> None:
    path = changed_file(tmp_path / "m.gguf", tmp_path / "model", seed, **metadata)
    assert mention in refusal(path, error)


@pytest.mark.parametrize(
    ("key", "value", "mention"),
    [
        ("llama.rope.freq_base", "500000", "rope_theta is '500000'"),
        ("llama.rope.freq_base", 0.0, "rope_theta is 0.0"),
        ("llama.attention.key_length", "16", "head_dim is '16'"),
        ("llama.attention.key_length", [16], "head_dim is [16]"),
    ],
)
def test_rope_values_of_the_wrong_type_are_rejected(
    tmp_path: Path, key: str, value: object, mention: str
) -> None:
    metadata = model_metadata(make_config(Shape())) | {key: value}
    if "length" in key:
        metadata |= {"llama.attention.value_length": value, "llama.rope.dimension_count": value}
    embedding, divisors = np.zeros((320, 64), np.uint16), np.ones(8, np.float32)
    tensors = {"token_embd.weight": embedding, "rope_freqs.weight": divisors}
    with pytest.raises(ConfigError) as caught:
        read_config(write_gguf(tmp_path / "m.gguf", metadata, tensors))
    assert mention in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "metadata", "mention"),
    [
        (Shape(), {"general__architecture": "gptneox"}, "'gptneox' do not say which GELU"),
        (Shape(), {"general__architecture": "stablelm"}, "do not say the base of the model's rope"),
        (Shape(), {"general__architecture": "starcoder2"}, "do not say the model's attention win"),
        (GEMMA2, {}, "gemma2 of 1 layers scales its scores; known: models of 26"),
        (Shape("olmo2"), {"olmo2__attention__sliding_window": 64}, "window of 64 (Olmo 3)"),
        (Shape("granite"), {}, "granite.attention.scale is missing"),
        (GEMMA2, {"gemma2__block_count": [26]}, "gemma2 of [26] layers"),
        (GEMMA2, {"gemma2__block_count": 46, "gemma2__attention__head_count": 0,
                  "gemma2__attention__sliding_window": 9}, "heads is 0"),
        (Shape("gemma3_text", layers=1), {"gemma3__block_count": 18,
                                          "gemma3__attention__sliding_window": "x"}, "'x'"),
        (Shape("gemma3_text", layers=1), {"gemma3__block_count": 18,
                                          "gemma3__attention__sliding_window": 9,
                                          "gemma3__attention__sliding_window_pattern": [True]},
         "a list of 18 names"),
        (Shape(), {"general__architecture": ["llama"]}, "architecture ['llama'] is not supported"),
    ],
)  # fmt: skip
def test_the_error_for_missing_metadata_names_the_key(
    tmp_path: Path, seed: int, shape: Shape, metadata: dict[str, Any], mention: str
) -> None:
    model = make_model(tmp_path / "model", shape, seed)
    path = convert(model, tmp_path / "m.gguf", "BF16", **metadata)
    assert mention in refusal(path, ConfigError)


def test_longrope_and_old_files_of_phi3_are_refused(tmp_path: Path) -> None:
    shape, path = Shape("phi3"), tmp_path / "m.gguf"
    factors = {"rope_factors_long.weight": np.ones(8, np.float32)}
    assert "LongRoPE" in refusal(shape_file(path, shape, **factors), ConfigError)
    metadata = model_metadata(make_config(shape))
    del metadata["phi3.attention.sliding_window"]
    write_gguf(path, metadata, {"token_embd.weight": np.zeros((320, 64), np.float16)})
    assert "sliding_window is missing" in refusal(path, ConfigError)


def test_gemma_norms_that_are_not_1_plus_bf16_are_rejected(tmp_path: Path, seed: int) -> None:
    shape = Shape("gemma2", layers=26, is_tied=True, window=9)
    path = convert(make_model(tmp_path / "model", shape, seed), tmp_path / "m.gguf", "BF16")
    at = GgufFile.open(path).tensors["output_norm.weight"].begin
    content = bytearray(path.read_bytes())
    content[at : at + 4] = struct.pack("<f", 1.3)
    path.write_bytes(content)
    assert "'model.norm.weight' minus 1 is not BF16" in refusal(path)


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {}, {"blk.0.attn_sub_norm.weight": np.zeros(4, np.float32)})
    with pytest.raises(TensorError, match=r"attn_sub_norm.weight' belongs to no supported model"):
        GgufTensors.open(path)
