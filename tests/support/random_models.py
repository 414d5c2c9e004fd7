"""Small random models as complete Hugging Face directories.

Which tensors a model has follows from the configuration that its `config.json` is read as.
"""

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd.config import DecoderConfig
from specqd.config.families import names_of
from support.families import FAMILIES
from support.model_tensors import Sizes, sizes_of
from support.reference import config_of
from support.shapes import ROPE_SCALINGS as ROPE_SCALINGS
from support.shapes import Shape
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

BYTES = ("_blocks", "_scales")  # tensors of MXFP4
# Entries that list layers.
PER_LAYER = ("layer_types", "no_rope_layers", "mlp_layer_types", "layer_rope_theta")

PACKED_SHAPE = Shape("llama", ffn=95, vocab=301, has_biases=True)


def make_model(directory: Path, shape: Shape, seed: int) -> Path:
    """Writes all files of the model; returns `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", make_config(shape))
    write_safetensors(directory / "model.safetensors", make_tensors(shape, seed))
    write_tokenizer(directory, shape.vocab)
    return directory


def make_repeating_model(directory: Path, byte: int, seed: int) -> Path:
    """A model that generates only `byte`: its output head is zero, so token 0 wins every tie."""
    make_model(directory, Shape(layers=1, context=1 << 17), seed)
    change_model(directory, lambda tensors: tensors["lm_head.weight"].fill(0))
    swap_tokens(directory, 0, byte)
    return directory


def shorten_model(directory: Path, model: Path, layers: int) -> Path:
    """Writes the model with its first `layers` layers only; it often agrees with the whole one."""
    shutil.copytree(model, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    config, tensors = read_model(model)
    per_layer = {name: config[name][:layers] for name in PER_LAYER if name in config}
    shared = _shorten_per_layer(config, tensors, layers)
    fewer = {**per_layer, **shared, "num_hidden_layers": layers}
    _write_json(directory / "config.json", config | fewer)
    kept = {
        name: bits
        for name, bits in tensors.items()
        if (part := re.search(r"\.layers\.(\d+)\.", name)) is None or int(part[1]) < layers
    }
    write_safetensors(directory / "model.safetensors", kept)
    return directory


def _shorten_per_layer(
    config: Mapping[str, Any], tensors: Tensors, layers: int
) -> Mapping[str, Any]:
    """Cuts per-layer embeddings to the first `layers` in place; returns changes of the config."""
    read = config_of(config)
    names, per_layer = names_of(read), read.per_layer
    if per_layer is not None:
        kept = layers * per_layer.size
        table, projection = f"{names.per_layer_table}.weight", f"{names.per_layer_embedding}.weight"
        tensors[table] = tensors[table][:, :kept]
        tensors[projection] = tensors[projection][:kept]
    if "num_kv_shared_layers" not in config:
        return {}
    unshared = read.num_layers - config["num_kv_shared_layers"]
    return {"num_kv_shared_layers": max(0, layers - unshared)}


def make_config(shape: Shape) -> dict[str, Any]:
    """The content of config.json: the entries of all families, of which each reads its own."""
    config: dict[str, Any] = {
        "model_type": shape.model_type,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": shape.layers,
        "vocab_size": shape.vocab,
        "vocab_size_per_layer_input": shape.vocab,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": shape.is_tied,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": None,
        "torch_dtype": "bfloat16",
    }
    widths = ("intermediate_size", "moe_intermediate_size", "shared_intermediate_size")
    biases = ("attention_bias", "mlp_bias", "use_bias", "use_qkv_bias", "conv_bias")
    config |= dict.fromkeys(widths, shape.ffn) | dict.fromkeys(biases, shape.has_biases)
    if shape.window is not None:
        config |= {"sliding_window": shape.window}
        config |= {"use_sliding_window": True, "max_window_layers": 1}
    return config | _rope(shape) | dict(_entries(shape)) | dict(shape.extra)


def _entries(shape: Shape) -> Mapping[str, Any]:
    family = FAMILIES.get(shape.model_type)
    return family.entries if family else {}


def _rope(shape: Shape) -> dict[str, Any]:
    theta, scaling = shape.rope_theta, dict(shape.rope_scaling or {})
    if theta is None:
        return {}
    if not shape.spells_rope_parameters:
        return {
            "rope_theta": theta,
            "rotary_emb_base": theta,
            "rope_scaling": scaling or None,
        }
    rope = {"rope_theta": theta, "rope_type": "default", **scaling}
    if not FAMILIES[shape.model_type].has_ropes_by_type:
        return {"rope_parameters": rope}
    local = {"rope_type": "default", "rope_theta": 500.0}
    return {"rope_parameters": {"full_attention": rope, "sliding_attention": local}}


def tensor_sizes(shape: Shape) -> Sizes:
    """Names and sizes of tensors in file order."""
    return sizes_of(config_of(make_config(shape)))


def make_tensors(shape: Shape, seed: int) -> Tensors:
    """Gaussian BF16 weights by their Hugging Face names, scaled so that activations stay near 1."""
    rng = np.random.default_rng(seed)
    config = config_of(make_config(shape))
    weights = {name: draw(rng, config, name, size) for name, size in sizes_of(config)}
    if shape.is_peaked:
        _peak(rng, config, weights)
    weights[_head(config)][[BOS, EOS]] = 0  # no sequence ends by chance
    return {
        name: weight.astype(np.uint8) if name.endswith(BYTES) else bf16_bits(weight)
        for name, weight in weights.items()
    }


def _head(config: DecoderConfig) -> str:
    """The name of the output head's tensor."""
    names = names_of(config)
    return f"{names.embedding if config.tied_embeddings else names.head}.weight"


def draw(
    rng: np.random.Generator, config: DecoderConfig, name: str, size: tuple[int, ...]
) -> NDArray[np.float32]:
    """A tensor of a model, or of an MTP layer, by the end of its name."""
    names = names_of(config)
    if name.endswith("_blocks"):
        return rng.integers(0, 256, size).astype(np.float32)
    if name.endswith("_scales"):  # codes have an RMS of about 3, blocks 32 weights
        least = 125 - round(math.log2(3 * math.sqrt(32 * size[-1])))
        return rng.integers(least, least + 3, size).astype(np.float32)
    if (drawn := draw_recurrent(rng, name, size)) is not None:
        return drawn
    noise = rng.standard_normal(size, np.float32)
    if f".{names.activation}." in name:  # of xIELU
        fixed = {"beta": 0.5, "eps": -1e-6}.get(name.rsplit(".", 1)[1])
        return np.float32(0.5) * noise if fixed is None else np.full(size, fixed, np.float32)
    if name.endswith(("bias", "sinks")):
        return np.float32(0.3) * noise
    if name.endswith("q_norm.weight") and config.attention_scale == 1.0:  # scores have no scale
        return (2 + np.float32(0.4) * noise) / np.float32(np.sqrt(size[0]))
    if len(size) == 1:  # a norm
        return np.float32(1 - config.norm_offset) + np.float32(0.2) * noise
    # Large router scores give an expert that is barely chosen a small routing weight.
    gain = ROUTER_GAIN if name.endswith(f"{names.router}.weight") else 1.0
    if gain > 1 and names.router_norm:  # its inputs are divided by as much
        gain *= math.sqrt(config.hidden_size)
    return noise / np.float32(np.sqrt(size[-1]) / gain)


def draw_recurrent(
    rng: np.random.Generator, name: str, size: tuple[int, ...]
) -> NDArray[np.float32] | None:
    """Decays from none to all of a state, as in trained models; None for other tensors."""
    if name.endswith("A_log"):
        drawn = np.log(rng.uniform(0.01, 16, size))
    elif name.endswith("dt_bias"):
        drawn = rng.uniform(-6, 1, size)
    elif name.endswith(("conv1d.weight", "conv.conv.weight")):
        drawn = rng.normal(0, 0.5, size)
    elif name.endswith("linear_attn.norm.weight"):
        drawn = rng.normal(1, 0.2, size)
    else:
        return None
    return drawn.astype(np.float32)


def _peak(
    rng: np.random.Generator, config: DecoderConfig, weights: dict[str, NDArray[np.float32]]
) -> None:
    """Widens margins in place: smaller outputs of layers, larger logits and, where the head is not
    tied, a successor for each token along one cycle through the vocabulary."""
    names = names_of(config)

    def scale(name: str, factor: float) -> None:
        is_norm = weights[name].ndim == 1 and not name.endswith("bias")
        offset = np.float32(config.norm_offset if is_norm else 0)
        weights[name][...] = np.float32(factor) * (offset + weights[name]) - offset

    modules = [names.output, f"{names.recurrent}.out_proj", names.down, ".down_proj", ".w2"]
    if names.attention_post_norm is not None:
        modules = [names.attention_post_norm, names.feed_forward_post_norm or ""]
        modules.append(names.per_layer_post_norm)
    outputs = (*(f"{name}.weight" for name in modules), "experts.down_proj")
    for name in weights:
        if name.startswith(names.final_norm):
            scale(name, PEAKED_GAIN)
        is_kept = config.tied_embeddings and name.startswith(f"{names.layers}.0.")
        if name.endswith(outputs) and not is_kept:
            scale(name, PEAKED_QUIET / np.sqrt(config.num_layers))
    if not config.tied_embeddings:
        embedding = weights[f"{names.embedding}.weight"]
        embedding *= np.float32(np.sqrt(config.hidden_size))
        cycle = rng.permutation(config.vocab_size)
        pull = np.float32(PEAKED_PULL / config.hidden_size)
        weights[_head(config)][np.roll(cycle, -1)] += pull * embedding[cycle]


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
    """Config, and BF16, FP32 and MXFP4 tensors of a directory with one weights file."""
    header, data = read_raw(directory / "model.safetensors")
    tensors = {}
    for name, facts in json.loads(header).items():
        if name != "__metadata__":
            first, last = facts["data_offsets"]
            kind = {"U8": "u1", "F32": "<f4"}.get(facts["dtype"], "<u2")
            tensors[name] = np.frombuffer(data[first:last], kind).reshape(facts["shape"])
    return json.loads((directory / "config.json").read_text()), tensors


def change_model(
    directory: Path, change: Callable[[Any], object] | None = None, **entries: Any
) -> Path:
    """Changes the tensors of a directory with one weights file, and entries of its config.json."""
    if change is not None:
        tensors = {name: bits.copy() for name, bits in read_model(directory)[1].items()}
        change(tensors)
        write_safetensors(directory / "model.safetensors", tensors)
    path = directory / "config.json"
    _write_json(path, json.loads(path.read_text()) | entries)
    return directory


def drop(name: str) -> Callable[[Any], object]:
    """A change: a tensor is missing."""
    return lambda tensors: tensors.pop(name)


def resize(name: str, *shape: int) -> Callable[[Any], object]:
    """A change: a tensor has another shape."""
    return lambda tensors: tensors.update({name: np.zeros(shape, np.uint16)})


def put(name: str, at: Any, bits: Any) -> Callable[[Any], object]:
    """A change: a tensor has other bits at one place, or several."""
    return lambda tensors: tensors[name].__setitem__(at, bits)


def unstack_experts(tensors: dict[str, Any]) -> None:
    """A change: experts that are stacked get tensors of their own, as transformers saves them."""
    for name in [name for name in tensors if ".experts." in name]:
        before, _, stack = name.partition(".experts.")
        for expert, rows in enumerate(tensors.pop(name)):
            halves = dict(zip(("gate_proj", "up_proj"), np.split(rows, 2), strict=True))
            for part, bits in (halves if "gate" in stack else {stack: rows}).items():
                tensors[f"{before}.experts.{expert}.{part}.weight"] = bits


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
