"""Random DFlash drafters as directories in their makers' forms. Knows nothing of our readers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from support.random_models import Shape
from support.writers import bf16_bits, write_safetensors


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The shape and traits of a drafter; None is the target's or the makers' default."""

    taps: tuple[int, ...] = (1, 3)  # boundaries of the target's layers, in fc's order
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 120
    block: int = 8
    mask: int = 7
    tokens: int | None = None  # of the draft vocabulary; None: the target's output head
    hidden: int | None = None  # needs an embedding and tokens of its own
    has_embedding: bool = False
    maker: Literal["z-lab", "speculators"] = "z-lab"
    has_qk_norm: bool = True
    has_biases: bool = False
    window: int | None = None
    layer_types: tuple[str, ...] | None = None
    is_causal: bool | None = None
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    convolution: tuple[int, int] | None = None  # DFlash2's: taps, channels of a group
    selector: tuple[int, int] | None = None  # DFlash2's: rank, candidates
    extra: Mapping[str, Any] = field(default_factory=dict)  # further entries of dflash_config


def make_drafter(directory: Path, target: Shape, shape: BlockShape, seed: int) -> Path:
    """Writes all files of the drafter; returns `directory`."""
    return _write(directory, drafter_config(target, shape), drafter_tensors(target, shape, seed))


def _write(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    write_safetensors(directory / "model.safetensors", tensors)
    return directory


def drafter_config(target: Shape, shape: BlockShape) -> dict[str, Any]:
    layer: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": shape.hidden or target.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
        "vocab_size": target.vocab,
        "rope_theta": shape.rope_theta,
        "rope_scaling": dict(shape.rope_scaling) if shape.rope_scaling else None,
        "sliding_window": shape.window,
    }
    if shape.layer_types is not None:
        layer["layer_types"] = list(shape.layer_types)
    own: dict[str, Any] = {"mask_token_id": shape.mask, **shape.extra}
    if shape.convolution is not None:
        own["conv_kernel_size"], own["conv_group_size"] = shape.convolution
    if shape.selector is not None:
        own["selector_rank"], own["selector_top_k"] = shape.selector
    outer: dict[str, Any] = {"block_size": shape.block}
    if shape.is_causal is not None:
        outer["is_causal"] = shape.is_causal
    if shape.maker == "speculators":
        read = {"aux_hidden_state_layer_ids": list(shape.taps)}
        inner = {"transformer_layer_config": layer}
        return {"architectures": ["DFlashSpeculator"], **inner, **outer, **own, **read}
    own["target_layer_ids"] = [tap - 1 for tap in shape.taps]
    outer |= {"num_target_layers": target.layers, "dflash_config": own}
    is_dflash2 = shape.convolution is not None and shape.selector is not None
    architecture = "DFlash2DraftModel" if is_dflash2 else "DFlashDraftModel"
    return {"architectures": [architecture], **layer, **outer}


def drafter_tensors(target: Shape, shape: BlockShape, seed: int) -> dict[str, NDArray[Any]]:
    """Gaussian BF16 weights and `d2t`, by their names in the files."""
    rng = np.random.default_rng(seed)
    hidden = shape.hidden or target.hidden
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(shape.taps) * target.hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for layer in range(shape.layers):
        at = f"layers.{layer}."
        parts = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (shape.ffn, hidden),
            "mlp.up_proj": (shape.ffn, hidden),
            "mlp.down_proj": (hidden, shape.ffn),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        if shape.has_qk_norm:
            parts |= {f"self_attn.{name}_norm": (shape.head_dim,) for name in "qk"}
        sizes |= {f"{at}{name}.weight": size for name, size in parts.items()}
        if shape.convolution is not None:
            taps, group = shape.convolution
            for name in ("attention_conv", "mlp_conv"):
                sizes[f"{at}{name}.base_kernel"] = (2, taps, hidden)
                sizes[f"{at}{name}.kernel_projection.weight"] = (2 * taps * hidden // group, hidden)
        if shape.has_biases:
            sizes |= {
                f"{at}self_attn.{name}_proj.bias": parts[f"self_attn.{name}_proj"][:1]
                for name in "qkvo"
            }
    if shape.tokens is not None:
        sizes["lm_head.weight"] = (shape.tokens, hidden)
    if shape.selector is not None:
        rank, at = shape.selector[0], "candidate_selector."
        sizes[f"{at}hidden_projection.weight"] = (rank, hidden)
        sizes |= {
            f"{at}{name}_codebook": (target.vocab, rank) for name in ("predecessor", "successor")
        }
    if shape.has_embedding:
        sizes["embed_tokens.weight"] = (target.vocab, hidden)
    tensors: dict[str, NDArray[Any]] = {
        name: bf16_bits(_draw(rng, name, size)) for name, size in sizes.items()
    }
    if shape.tokens is not None and shape.tokens < target.vocab:
        ids = np.sort(rng.choice(target.vocab, shape.tokens, replace=False))
        tensors["d2t"] = ids - np.arange(shape.tokens)
        tensors["t2d"] = np.isin(np.arange(target.vocab), ids)
    return tensors


def _draw(rng: np.random.Generator, name: str, size: tuple[int, ...]) -> NDArray[np.float32]:
    noise = rng.standard_normal(size, np.float32)
    if name.endswith("bias"):
        return np.float32(0.3) * noise
    if name.endswith("base_kernel"):
        noise[:, 0] += 4  # mostly the row itself, as in trained ones
        return np.float32(0.25) * noise
    if name.endswith("codebook"):
        return noise
    if len(size) == 1:
        return np.float32(1) + np.float32(0.2) * noise
    gains = {"lm_head": 4.0, "kernel_projection": 0.25}
    gain = gains.get(name.split(".")[-2], 1.0)
    return noise * np.float32(gain / np.sqrt(size[-1]))


def make_repeating_drafter(directory: Path, shape: Shape, certainty: float = 1.0) -> Path:
    """A drafter that predicts the newest token in each place, for a model with a tied embedding.
    Its logits are multiplied by `certainty`.

    Keys are the negative of queries, so that no row attends to masks; features are zero, and so
    are the context's values. Each row then copies the newest token's embedding.
    """
    hidden = shape.hidden
    block = BlockShape(
        taps=(1,), layers=1, heads=1, kv_heads=1, head_dim=hidden, ffn=16, has_qk_norm=False,
        rope_theta=1e30, extra={"output_multiplier": certainty},
    )  # fmt: skip
    tensors = drafter_tensors(shape, block, 0)
    for name, bits in tensors.items():
        one = np.ones(bits.shape, np.float32)
        tensors[name] = bf16_bits(one) if bits.ndim == 1 else np.zeros_like(bits)
    eye = np.eye(hidden, dtype=np.float32)
    for name, gain in (("q", 1.0), ("k", -1.0), ("v", 1.0), ("o", 1e4)):
        tensors[f"layers.0.self_attn.{name}_proj.weight"] = bf16_bits(np.float32(gain) * eye)
    return _write(directory, drafter_config(shape, block), tensors)
