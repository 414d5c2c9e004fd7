"""Writes GGUF files for tests: Hugging Face directories converted as by llama.cpp, quantised
tensors, and hostile files. Knows nothing of the reader."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite, prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from support.random_models import Shape, make_config, make_model, read_model
from support.writers import bf16_bits

Metadata = Mapping[str, Any]

_TENSOR_TYPES = {np.dtype("<f4"): 0, np.dtype("<f2"): 1, np.dtype("<u2"): 30}
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_SCALES_AT = {  # offsets in a block at which a scale or minimum in FP16 begins
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "MXFP4": (),
}
_MOST_LAYERS = 64
PARTS = 3
_ARCHITECTURES = {"gemma3_text": "gemma3", "qwen3_5_text": "qwen35"}
_FAMILY_KEYS = {  # fields of config.json that only some families have
    "sliding_window": "attention.sliding_window",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope_local_base_freq": "rope.freq_base_swa",
}


@dataclass(frozen=True, slots=True)
class Quantised:
    """A tensor as blocks of one of ggml's types."""

    kind: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def random(
        cls,
        kind: str,
        shape: tuple[int, ...],
        rng: np.random.Generator,
        *,
        scales: Sequence[float] | None = None,
    ) -> "Quantised":
        """Makes random blocks. With `scales`, scales in FP16 are drawn from these."""
        weights, item_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        blocks = rng.integers(0, 256, (prod(shape) // weights, item_bytes), dtype=np.uint8)
        for at in () if scales is None else _SCALES_AT[kind]:
            drawn = rng.choice(np.asarray(scales, np.float16), len(blocks))
            blocks[:, at : at + 2] = drawn.view(np.uint8).reshape(-1, 2)
        return cls(kind, shape, blocks.tobytes())

    @classmethod
    def of(cls, kind: str, values: NDArray[np.float32]) -> "Quantised":
        data = gguf.quantize(values, gguf.GGMLQuantizationType[kind])
        return cls(kind, values.shape, data.tobytes())

    @classmethod
    def at(cls, content: bytes, kind: str, shape: tuple[int, ...], begin: int) -> "Quantised":
        """Returns a tensor of a file, given as its bytes."""
        weights, item_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        return cls(kind, shape, content[begin : begin + prod(shape) // weights * item_bytes])

    def dequantised(self) -> NDArray[np.float32]:
        kind = gguf.GGMLQuantizationType[self.kind]
        rows = np.frombuffer(self.data, np.uint8).reshape(prod(self.shape[:-1]), -1)
        with np.errstate(all="ignore"):
            values: NDArray[np.float32] = gguf.dequantize(rows, kind)
        return values.reshape(self.shape)


def write_gguf(
    path: Path,
    metadata: Metadata,
    tensors: Mapping[str, NDArray[Any] | Quantised],
    *,
    alignment: int = 32,
) -> Path:
    """Writes Python values as strings, bools, uint32, float32 and arrays of these. Numbers that do
    not fit take 64 bits."""
    values = b"".join(string(key) + typed(value) for key, value in metadata.items())
    return _write(path, len(metadata), values, tensors, alignment)


def write_copy(original: Path, path: Path) -> Path:
    """Writes a copy of a GGUF file with matrices in BF16, dequantised by the `gguf` package."""
    reader = gguf.GGUFReader(original)
    begin, end = 24, reader.fields[list(reader.fields)[-1]]
    values = original.read_bytes()[begin : end.offset + sum(part.nbytes for part in end.parts)]
    tensors = {}
    for each in reader.tensors:
        wide = gguf.dequantize(each.data, each.tensor_type).reshape(each.shape[::-1])
        tensors[each.name] = wide if wide.ndim == 1 else bf16_bits(wide)
    count = sum(not name.startswith("GGUF.") for name in reader.fields)
    return _write(path, count, values, tensors, 32)


def _write(
    path: Path,
    num_values: int,
    values: bytes,
    tensors: Mapping[str, NDArray[Any] | Quantised],
    alignment: int,
) -> Path:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), num_values) + values
    offset, body = 0, bytearray()
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        if isinstance(tensor, Quantised):
            kind, data = int(gguf.GGMLQuantizationType[tensor.kind]), tensor.data
        else:
            kind, data = _TENSOR_TYPES[tensor.dtype], tensor.tobytes()
        head += string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", kind, offset)
        body += data + bytes(-len(data) % alignment)
        offset = len(body)
    path.write_bytes(head + bytes(-len(head) % alignment) + body)
    return path


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> bytes:
    """Returns the bytes of a value, after those of its type."""
    kind, data = _value(value)
    return struct.pack("<I", kind) + data


def _value(value: Any) -> tuple[int, bytes]:
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int() if 0 <= value < 1 << 32:
            return 4, struct.pack("<I", value)
        case int():
            return (11, struct.pack("<q", value)) if value < 0 else (10, struct.pack("<Q", value))
        case float() if abs(value) < 3e38 or not isfinite(value):
            return 6, struct.pack("<f", value)
        case float():
            return 12, struct.pack("<d", value)
        case str():
            return 8, string(value)
    items = [_value(item) for item in value]
    kind = items[0][0] if items else 4
    return 9, struct.pack("<IQ", kind, len(items)) + b"".join(data for _, data in items)


def convert(directory: Path, path: Path, kind: str, **more: Any) -> Path:
    """Writes a Hugging Face directory as a GGUF file of kind BF16, F16 or F32.

    As in llama.cpp, vectors stay F32, and Gemma's norms are 1 + w. `more` replaces derived metadata
    (dots spelled __).
    """
    metadata, tensors = converted(directory)
    metadata |= {key.replace("__", "."): value for key, value in more.items()}
    written = {
        name: _as_kind(values, kind if values.ndim > 1 else "F32")
        for name, values in tensors.items()
    }
    return write_gguf(path, metadata, written)


def write_parts(model: Path, path: Path, *, is_first_empty: bool = False) -> list[Path]:
    """Writes a model by the `gguf` package in PARTS files, whose names are made from `path`."""
    metadata, tensors = converted(model)
    count = PARTS - 1 if is_first_empty else PARTS
    writer = gguf.GGUFWriter(
        path,
        metadata.pop("general.architecture"),
        split_max_tensors=-(-len(tensors) // count),
        small_first_shard=is_first_empty,
    )
    for key, value in metadata.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(path.parent.glob(f"{path.stem}-*.gguf"))
    assert len(parts) == PARTS
    return parts


def converted(directory: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Returns the metadata and tensors of a directory, with llama.cpp's names and order of rows."""
    config, tensors = read_model(directory)
    config = (config.get("rope_parameters") or {}) | config  # as transformers 5 spells them
    converted = {}
    for name, bits in tensors.items():
        values = (bits.astype(np.uint32) << 16).view(np.float32)
        if config["model_type"] in ("llama", "granite"):
            values = in_pair_order(name, values, config)
        if config["model_type"] == "qwen3_5_text" and "linear_attn" in name:
            values = _in_tiles(name, values, config)
        elif config["model_type"].startswith(("gemma", "qwen3_5")) and name.endswith("norm.weight"):
            values = values + np.float32(1)
        converted[llama_cpp_name(name, config["model_type"])] = values
    return model_metadata(config) | tokenizer_metadata(directory), converted


def in_pair_order(name: str, values: NDArray[Any], config: Mapping[str, Any]) -> NDArray[Any]:
    """Returns rows of q and k in llama.cpp's order: rows that rotate together are adjacent."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(
        name.split(".")[-2]
    )
    if heads is None:
        return values
    halves = values.reshape(config[heads], 2, -1, *values.shape[1:])
    return np.ascontiguousarray(np.moveaxis(halves, 1, 2)).reshape(values.shape)


def _in_tiles(name: str, values: NDArray[Any], config: Mapping[str, Any]) -> NDArray[Any]:
    """Reorders a tensor of a recurrent layer: value head j of key head i moves to j * keys + i."""
    part = name.split("linear_attn.")[1]
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    dim, ratio = config["linear_value_head_dim"], value_heads // key_heads
    order = [i * ratio + j for j in range(ratio) for i in range(key_heads)]
    channels = np.concatenate([np.arange(head * dim, (head + 1) * dim) for head in order])
    before = 2 * key_heads * config["linear_key_head_dim"]
    if part == "A_log":
        return -np.exp(values[order])
    if part == "dt_bias" or part.startswith(("in_proj_a", "in_proj_b")):
        return values[order]
    if part == "in_proj_z.weight":
        return values[channels]
    if part == "out_proj.weight":
        return values[:, channels].copy()
    if part == "norm.weight":
        return values
    tiled = np.concatenate([values[:before], values[before:][channels]])
    return tiled[:, 0] if part == "conv1d.weight" else tiled


def model_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    kind = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    keys = {
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.value_length": "head_dim",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "rope.freq_base": "rope_theta",
        "rope.dimension_count": "head_dim",
    }
    values = {f"{kind}.{key}": config[name] for key, name in keys.items()}
    values[f"{kind}.attention.layer_norm_rms_epsilon"] = float(config["rms_norm_eps"])
    values[f"{kind}.rope.freq_base"] = float(config["rope_theta"])
    for name, key in _FAMILY_KEYS.items():
        if config.get(name) is not None and not kind.startswith("qwen"):
            values[f"{kind}.{key}"] = config[name]
    if kind == "qwen35":
        width = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        values |= {
            "qwen35.rope.dimension_count": config["head_dim"] // 4,
            "qwen35.rope.dimension_sections": [11, 11, 10, 0],
            "qwen35.ssm.conv_kernel": config["linear_conv_kernel_dim"],
            "qwen35.ssm.state_size": config["linear_key_head_dim"],
            "qwen35.ssm.group_count": config["linear_num_key_heads"],
            "qwen35.ssm.time_step_rank": config["linear_num_value_heads"],
            "qwen35.ssm.inner_size": width,
            "qwen35.full_attention_interval": config["full_attention_interval"],
        }
    if kind == "phi3":
        values.setdefault("phi3.attention.sliding_window", 0)
    return {"general.architecture": kind, "general.name": "converted"} | values


def tokenizer_metadata(directory: Path) -> dict[str, Any]:
    """Returns the metadata of a tokenizer.json of byte-level BPE, or of sentencepiece's BPE whose
    ids are in merge order."""
    file = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocabulary = sorted(file["model"]["vocab"].items(), key=lambda item: item[1])
    tokens = [token for token, _ in vocabulary]
    added = {token["content"] for token in file["added_tokens"]}
    is_pieces = bool(file["model"].get("byte_fallback"))
    ids = {name: tokens.index(settings[f"{name}_token"]) for name in ("bos", "eos")}
    metadata = {f"tokenizer.ggml.{name}_token_id": i for name, i in ids.items()}
    metadata |= {
        "tokenizer.ggml.model": "llama" if is_pieces else "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_kind(token, added) for token in tokens],
        "tokenizer.ggml.add_bos_token": file["post_processor"] is not None,
    }
    if is_pieces:
        return metadata | {
            "tokenizer.ggml.scores": [float(-i) for i in range(len(tokens))],
            "tokenizer.ggml.unknown_token_id": tokens.index("<unk>"),
        }
    merges = [" ".join(merge) for merge in file["model"]["merges"]]
    return metadata | {"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": merges}


def _kind(token: str, added: set[str]) -> int:
    if token == "<unk>":
        return _UNKNOWN
    if token in added:
        return _CONTROL
    return _BYTE if token.startswith("<0x") else _NORMAL


def llama_cpp_name(name: str, model_type: str) -> str:
    module = name.replace(".dt_bias", ".dt_proj.bias")  # as llama.cpp's converter does
    found = _names_of(model_type).get_name(module, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


@cache
def _names_of(model_type: str) -> gguf.TensorNameMap:
    architecture = _ARCHITECTURES.get(model_type, model_type)
    [kind] = [each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture]
    return gguf.get_tensor_name_map(kind, _MOST_LAYERS)


def _as_kind(values: NDArray[np.float32], kind: str) -> NDArray[Any]:
    if kind == "BF16":
        return bf16_bits(values)
    return values.astype({"F16": np.float16, "F32": np.float32}[kind])


def changed_file(path: Path, directory: Path, seed: int, **metadata: Any) -> Path:
    """Writes a random Llama to `directory` and as a file in BF16 with changed metadata."""
    return convert(make_model(directory, Shape(), seed), path, "BF16", **metadata)


def shape_file(path: Path, shape: Shape, **tensors: np.ndarray) -> Path:
    """Writes a file with only an embedding and `tensors`, which is enough for a configuration."""
    embedding = {"token_embd.weight": np.zeros((shape.vocab, shape.hidden), np.float16)}
    return write_gguf(path, model_metadata(make_config(shape)), embedding | tensors)
