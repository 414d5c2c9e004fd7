"""Random EAGLE-3 heads as directories in their makers' forms. Knows nothing of our readers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from support.random_models import Shape, read_model
from support.writers import bf16_bits, read_raw, write_safetensors

Maker = Literal["specforge", "nvidia", "speculators"]


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The shape and traits of a head; None is the target's or the makers' default."""

    taps: tuple[int, ...] = (1, 2, 3)  # boundaries of the target's layers
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 120
    tokens: int | None = None  # of the draft vocabulary; None: the target's head
    hidden: int | None = None  # needs an embedding and tokens of its own
    has_embedding: bool = False
    maker: Maker = "specforge"
    keeps_normed: bool = False
    recycles_normed: bool = False
    norms: Literal["none", "all", "each"] = "none"  # of features
    has_qk_norm: bool = False
    rope_theta: float | None = None
    rope_scaling: Mapping[str, Any] | None = None
    names_outputs: bool = False  # ids are layers whose outputs are read
    extra: Mapping[str, Any] = field(default_factory=dict)  # further entries of config.json


def make_head(directory: Path, target: Shape, shape: HeadShape, seed: int) -> Path:
    """Writes all files of the head; returns `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(head_config(target, shape)))
    write_safetensors(directory / "model.safetensors", head_tensors(target, shape, seed))
    return directory


def head_config(target: Shape, shape: HeadShape) -> dict[str, Any]:
    layer: dict[str, Any] = {
        "hidden_size": shape.hidden or target.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "num_hidden_layers": 36,  # as some makers write
    }
    if shape.rope_theta is not None:
        layer["rope_theta"] = shape.rope_theta
    if shape.rope_scaling is not None:
        layer["rope_scaling"] = dict(shape.rope_scaling)
    ids = [tap - shape.names_outputs for tap in shape.taps]
    read = {"eagle_aux_hidden_state_layer_ids": ids}
    flags: dict[str, Any] = {"norm_before_residual": shape.keeps_normed}
    if shape.recycles_normed:
        flags["norm_output"] = True
    kind = {"layer_ids_are": "outputs" if shape.names_outputs else "boundaries"}
    match shape.maker:
        case "specforge":
            made = {"architectures": ["LlamaForCausalLMEagle3"], **layer, **flags, **read}
        case "nvidia":
            eagle = {**flags, **read, "use_aux_hidden_state": True}
            made = {"architectures": ["LlamaForCausalLMEagle3"], **layer, "eagle_config": eagle}
        case "speculators":
            inner = {"transformer_layer_config": {**layer, "model_type": "llama"}}
            made = {"architectures": ["Eagle3Speculator"], **inner, **flags, **read}
    return made | kind | dict(shape.extra)


def head_tensors(target: Shape, shape: HeadShape, seed: int) -> dict[str, NDArray[Any]]:
    """Gaussian BF16 weights and `d2t`, by their names in the maker's files."""
    rng = np.random.default_rng(seed)
    hidden, taps = shape.hidden or target.hidden, len(shape.taps)
    at = "midlayer." if shape.maker == "specforge" else "layers.0."
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {
        "fc": (hidden, taps * target.hidden),
        f"{at}self_attn.q_proj": (queries, 2 * hidden),
        f"{at}self_attn.k_proj": (keys, 2 * hidden),
        f"{at}self_attn.v_proj": (keys, 2 * hidden),
        f"{at}self_attn.o_proj": (hidden, queries),
        f"{at}mlp.gate_proj": (shape.ffn, hidden),
        f"{at}mlp.up_proj": (shape.ffn, hidden),
        f"{at}mlp.down_proj": (hidden, shape.ffn),
        f"{at}input_layernorm": (hidden,),
        f"{at}hidden_norm": (hidden,),
        f"{at}post_attention_layernorm": (hidden,),
        "norm": (hidden,),
    }
    if shape.has_qk_norm:
        sizes |= {f"{at}self_attn.{name}_norm": (shape.head_dim,) for name in "qk"}
    if shape.norms == "all":
        sizes["input_norm"] = (taps * target.hidden,)
    if shape.norms == "each":
        sizes |= {f"fc_norm.{tap}": (target.hidden,) for tap in range(taps)}
    if shape.tokens is not None:
        sizes["lm_head"] = (shape.tokens, hidden)
    if shape.has_embedding:
        sizes["embed_tokens"] = (target.vocab, hidden)
    tensors: dict[str, NDArray[Any]] = {
        f"{name}.weight": bf16_bits(_draw(rng, name, size)) for name, size in sizes.items()
    }
    if shape.tokens is not None and shape.tokens < target.vocab:
        ids = np.sort(rng.choice(target.vocab, shape.tokens, replace=False))
        tensors["d2t"] = ids - np.arange(shape.tokens)
        tensors["t2d"] = np.isin(np.arange(target.vocab), ids)
    return tensors


def read_tensors(directory: Path) -> dict[str, NDArray[Any]]:
    """All tensors of a head, to be changed; BF16 as bits."""
    header, data = read_raw(directory / "model.safetensors")
    kinds, tensors = {"BF16": "<u2", "I64": "<i8", "BOOL": "?"}, {}
    for name, facts in json.loads(header).items():
        first, last = facts["data_offsets"]
        values = np.frombuffer(data[first:last], kinds[facts["dtype"]])
        tensors[name] = values.reshape(facts["shape"]).copy()
    return tensors


def _draw(rng: np.random.Generator, name: str, size: tuple[int, ...]) -> NDArray[np.float32]:
    noise = rng.standard_normal(size, np.float32)
    if len(size) == 1:
        return np.float32(1) + np.float32(0.2) * noise
    gain = 4.0 if name == "lm_head" else 1.0
    return noise * np.float32(gain / np.sqrt(size[-1]))


def make_knowing_head(directory: Path, target: Path, shape: Shape) -> Path:
    """A head for a peaked model without tied embeddings: it predicts each token's successor.

    Its one attention head attends to its own row and copies the embedding; all else is zero.
    """
    hidden = shape.hidden
    head = HeadShape(
        heads=1, kv_heads=1, head_dim=hidden, ffn=16, taps=(1,), rope_theta=1e30, keeps_normed=True
    )
    tensors = head_tensors(shape, head, 0)
    eye, zero = np.eye(hidden, dtype=np.float32), np.zeros((hidden, hidden), np.float32)
    of_embedding = np.concatenate([eye, zero], axis=1)
    for name, bits in tensors.items():
        if bits.ndim == 2:
            tensors[name] = np.zeros_like(bits)
        else:
            tensors[name] = bf16_bits(np.ones(bits.shape, np.float32))
    at = "midlayer.self_attn."
    for name, gain in (("q", 3.0), ("k", 3.0), ("v", 1.0)):
        tensors[f"{at}{name}_proj.weight"] = bf16_bits(np.float32(gain) * of_embedding)
    tensors[f"{at}o_proj.weight"] = bf16_bits(eye)
    tensors["midlayer.hidden_norm.weight"] = np.zeros(hidden, np.uint16)
    tensors["norm.weight"] = read_model(target)[1]["model.norm.weight"]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(head_config(shape, head)))
    write_safetensors(directory / "model.safetensors", tensors)
    return directory
