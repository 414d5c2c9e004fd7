"""Small random models as complete Hugging Face directories. Knows nothing of our readers."""

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support import random_gemma4 as gemma4
from support.random_families import (
    ARCHITECTURES,
    BYTES,
    NORMS_AFTER,
    PER_LAYER,
    ROUTERS,
    ZERO_CENTRED,
    ModelType,
    family_config,
    module_name,
    rope_parameters,
    tensor_sizes,
)
from support.random_recurrent import draw_recurrent
from support.writers import bf16_bits, entry, read_raw, write_safetensors

Tensors = dict[str, NDArray[np.uint16] | NDArray[np.uint8]]

BOS, EOS = 256, 257
FIRST_PAIR = 258  # tokens: the 256 bytes, BOS, EOS, then pairs of bytes
LARGEST_VOCABULARY = FIRST_PAIR + 256 * 256

# Measured, for the agreement that `Shape` describes.
PEAKED_GAIN = 6.0  # on the logits
PEAKED_QUIET = 0.8  # on each layer's output, over sqrt(layers)
PEAKED_PULL = 4.5  # logit of a token's successor, in deviations of the others'
ROUTER_GAIN = 4.0  # on scores of experts

ROPE_SCALINGS: Mapping[str, Mapping[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape and traits of a random model.

    Peaked models choose tokens by wide margins: greedy choices of the fp4 precision agree with the
    exact ones at 40 to 95 % of positions, at temperature 0.8 too.
    """

    model_type: ModelType = "llama"
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 160
    layers: int = 2
    vocab: int = 320
    context: int = 512
    window: int | None = None  # on every layer of mistral, on all but the first of qwen2 and qwen3
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    is_tied: bool = False
    has_biases: bool = False  # where the family allows them; qwen2 always has them for q, k and v
    is_peaked: bool = False
    spells_rope_parameters: bool = False  # the spelling of transformers 5
    extra: Mapping[str, Any] = field(default_factory=dict)  # further entries of config.json


PACKED_SHAPE = Shape("llama", ffn=95, vocab=301, has_biases=True)


def make_model(directory: Path, shape: Shape, seed: int) -> Path:
    """Writes all files of the model; returns `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", make_config(shape))
    write_safetensors(directory / "model.safetensors", make_tensors(shape, seed))
    write_tokenizer(directory, shape.vocab)
    return directory


def make_escaping_model(directory: Path, seed: int) -> Path:
    """A model that generates only ESC: its head is zero, so token 0 wins every tie."""
    shape = Shape(layers=1, context=1 << 17)
    make_model(directory, shape, seed)
    tensors = make_tensors(shape, seed)
    tensors["lm_head.weight"] = np.zeros_like(tensors["lm_head.weight"])
    write_safetensors(directory / "model.safetensors", tensors)
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    escape, nul = chr(256 + 0x1B), chr(256)  # in the byte-level alphabet
    vocabulary[escape], vocabulary[nul] = vocabulary[nul], vocabulary[escape]
    _write_json(directory / "tokenizer.json", tokenizer)
    return directory


def shorten_model(directory: Path, model: Path, layers: int) -> Path:
    """Writes the model with its first `layers` layers only; it often agrees with the whole one."""
    shutil.copytree(model, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    config, tensors = read_model(model)
    per_layer = {name: config[name][:layers] for name in PER_LAYER if name in config}
    shared = gemma4.shorten(config, tensors, layers)
    fewer = {**per_layer, **shared, "num_hidden_layers": layers}
    _write_json(directory / "config.json", config | fewer)
    kept = {
        name: bits
        for name, bits in tensors.items()
        if (part := re.search(r"\.layers\.(\d+)\.", name)) is None or int(part[1]) < layers
    }
    write_safetensors(directory / "model.safetensors", kept)
    return directory


def make_config(shape: Shape) -> dict[str, Any]:
    architecture = ARCHITECTURES.get(shape.model_type, shape.model_type.capitalize())
    config: dict[str, Any] = {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": shape.model_type,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.is_tied,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": None,
        "torch_dtype": "bfloat16",
    }
    if shape.spells_rope_parameters:
        scaling = shape.rope_scaling or {"rope_type": "default"}
        config["rope_parameters"] = rope_parameters(
            shape, {"rope_theta": shape.rope_theta, **scaling}
        )
    elif shape.model_type != "gemma4_text":  # has the new spelling alone
        config["rope_theta"] = shape.rope_theta
        config["rope_scaling"] = dict(shape.rope_scaling) if shape.rope_scaling else None
    return config | family_config(shape)


def make_tensors(shape: Shape, seed: int) -> Tensors:
    """Gaussian BF16 weights by their Hugging Face names, scaled so that activations stay near 1."""
    rng = np.random.default_rng(seed)
    weights = {name: draw(rng, shape, name, size) for name, size in tensor_sizes(shape)}
    if shape.is_peaked:
        _peak(rng, shape, weights)
    head = "model.embed_tokens.weight" if shape.is_tied else "lm_head.weight"
    weights[module_name(shape, head)][[BOS, EOS]] = 0  # no sequence ends by chance
    return {
        name: weight.astype(np.uint8) if name.endswith(BYTES) else bf16_bits(weight)
        for name, weight in weights.items()
    }


def draw(
    rng: np.random.Generator, shape: Shape, name: str, size: tuple[int, ...]
) -> NDArray[np.float32]:
    if name.endswith("_blocks"):
        return rng.integers(0, 256, size).astype(np.float32)
    if name.endswith("_scales"):  # codes have an RMS of about 3, blocks 32 weights
        least = 125 - round(math.log2(3 * math.sqrt(32 * size[-1])))
        return rng.integers(least, least + 3, size).astype(np.float32)
    if (drawn := draw_recurrent(rng, name, size)) is not None:
        return drawn
    noise = rng.standard_normal(size, np.float32)
    if name.endswith(("bias", "sinks")):
        return np.float32(0.3) * noise
    if name.endswith("q_norm.weight") and shape.model_type == "gemma4_text":  # scores have no scale
        return (2 + np.float32(0.4) * noise) / np.float32(np.sqrt(size[0]))
    if len(size) == 1:  # a norm
        return (shape.model_type not in ZERO_CENTRED) + np.float32(0.2) * noise
    # Large router scores give an expert that is barely chosen a small share.
    gain = ROUTER_GAIN if name.endswith(ROUTERS) else 1.0
    if name.endswith("router.proj.weight"):  # its inputs are divided by as much
        gain *= math.sqrt(shape.hidden)
    return noise / np.float32(np.sqrt(size[-1]) / gain)


def _peak(rng: np.random.Generator, shape: Shape, weights: dict[str, NDArray[np.float32]]) -> None:
    """Widens margins in place: smaller outputs of layers, larger logits and, where the head is not
    tied, a successor for each token along one cycle through the vocabulary."""
    centre = np.float32(shape.model_type in ZERO_CENTRED)

    def scale(name: str, factor: float) -> None:
        is_norm = weights[name].ndim == 1 and not name.endswith("bias")
        offset = centre if is_norm else np.float32(0)
        weights[name][...] = np.float32(factor) * (offset + weights[name]) - offset

    final_norm = module_name(shape, "model.norm")
    attention = ("self_attn.o_proj", "linear_attn.out_proj", "conv.out_proj")
    modules = (*attention, "mlp.down_proj", ".down_proj", ".w2")
    outputs = [module_name(shape, f"{name}.weight") for name in modules] + ["experts.down_proj"]
    if shape.model_type in NORMS_AFTER:
        outputs = [f"{name}.weight" for name in NORMS_AFTER[shape.model_type]]
    first_layer = module_name(shape, "model.layers.0.")
    for name in weights:
        if name.startswith(final_norm):
            scale(name, PEAKED_GAIN)
        is_kept = shape.is_tied and name.startswith(first_layer)
        if name.endswith(tuple(outputs)) and not is_kept:
            scale(name, PEAKED_QUIET / np.sqrt(shape.layers))
    if not shape.is_tied:
        embedding = weights[module_name(shape, "model.embed_tokens.weight")]
        embedding *= np.float32(np.sqrt(shape.hidden))
        cycle = rng.permutation(shape.vocab)
        pull = np.float32(PEAKED_PULL / shape.hidden)
        head = weights[module_name(shape, "lm_head.weight")]
        head[np.roll(cycle, -1)] += pull * embedding[cycle]


def safetensors_header(sizes: Mapping[str, tuple[int, ...]]) -> bytes:
    """The header of a safetensors file of BF16 and MXFP4 tensors of these shapes, in order."""
    header: dict[str, Any] = {}
    start = 0
    for name, size in sizes.items():
        is_bytes = name.endswith(BYTES)
        end = start + (1 if is_bytes else 2) * math.prod(size)
        header[name] = entry("U8" if is_bytes else "BF16", size, start, end)
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_model(directory: Path) -> tuple[dict[str, Any], Tensors]:
    """Config, BF16 and MXFP4 tensors of a directory with one weights file."""
    header, data = read_raw(directory / "model.safetensors")
    tensors = {}
    for name, facts in json.loads(header).items():
        if name != "__metadata__":
            first, last = facts["data_offsets"]
            kind = "u1" if facts["dtype"] == "U8" else "<u2"
            tensors[name] = np.frombuffer(data[first:last], kind).reshape(facts["shape"])
    return json.loads((directory / "config.json").read_text()), tensors


def swap_tokens(directory: Path, first: int, second: int) -> None:
    """Two tokens of the directory's tokenizer take each other's ids."""
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocab = content["model"]["vocab"]
    names = {i: token for token, i in vocab.items()}
    vocab[names[first]], vocab[names[second]] = second, first
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def write_tokenizer(directory: Path, vocab: int) -> None:
    """Writes a byte-level BPE of exactly `vocab` tokens: bytes, <s>, </s>, then pairs of bytes."""
    if not FIRST_PAIR <= vocab <= LARGEST_VOCABULARY:
        raise ValueError(f"a vocabulary of {vocab} is not {FIRST_PAIR} to {LARGEST_VOCABULARY}")
    alphabet = _byte_alphabet()
    printable_first = sorted(alphabet, key=ord)
    pairs = list(islice(product(printable_first, repeat=2), vocab - FIRST_PAIR))
    tokens = [*alphabet, "<s>", "</s>", *(a + b for a, b in pairs)]
    byte_level: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False}
    byte_level |= {"trim_offsets": False, "use_regex": False}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    _write_json(
        directory / "tokenizer.json",
        {
            "version": "1.0",
            "added_tokens": [
                {"id": i, "content": tokens[i], **added, "special": True} for i in (BOS, EOS)
            ],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "vocab": {token: i for i, token in enumerate(tokens)},
                "merges": [list(pair) for pair in pairs],
            },
        },
    )
    _write_json(
        directory / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"},
    )


def _byte_alphabet() -> list[str]:
    """The character for each byte: itself where visible, else one from U+0100 on."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(b) if b in visible else chr(256 + hidden.index(b)) for b in range(256)]


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
