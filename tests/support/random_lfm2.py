"""Tensors of random LFM2 models, whose layers convolve or attend. Knows no readers."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.random_models import Shape

Sizes = Iterator[tuple[str, tuple[int, ...]]]

TYPES = ("lfm2", "lfm2_moe")
NAMES = {"model.norm": "model.embedding_norm", "self_attn.o_proj": "self_attn.out_proj"}
EPSILON = 1e-3  # larger than published ones, so that it matters


def config_of(shape: "Shape") -> Mapping[str, Any]:
    is_dense = shape.model_type == "lfm2"
    width = (
        {"block_auto_adjust_ff_dim": False} if is_dense else {"moe_intermediate_size": shape.ffn}
    )
    return {"norm_eps": EPSILON, "conv_bias": shape.has_biases, **width}


def layer_sizes(shape: "Shape", index: int) -> Sizes:
    yield "operator_norm.weight", (shape.hidden,)
    yield "ffn_norm.weight", (shape.hidden,)
    is_attention = shape.extra["layer_types"][index] == "full_attention"
    yield from _attention(shape) if is_attention else _convolution(shape)
    if shape.model_type == "lfm2":
        yield from _feed_forward(shape, "feed_forward", shape.ffn)
    elif index < shape.extra.get("num_dense_layers", 2):
        yield from _feed_forward(shape, "feed_forward", shape.extra["intermediate_size"])
    else:
        yield from _experts(shape)


def _attention(shape: "Shape") -> Sizes:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"self_attn.{name}.weight", (rows, shape.hidden)
    yield "self_attn.out_proj.weight", (shape.hidden, queries)
    for name in ("q_layernorm", "k_layernorm"):
        yield f"self_attn.{name}.weight", (shape.head_dim,)


def _convolution(shape: "Shape") -> Sizes:
    hidden = shape.hidden
    sizes = {
        "in_proj": (3 * hidden, hidden),
        "conv": (hidden, 1, shape.extra.get("conv_L_cache", 3)),
        "out_proj": (hidden, hidden),
    }
    for name, size in sizes.items():
        yield f"conv.{name}.weight", size
        if shape.has_biases:
            yield f"conv.{name}.bias", size[:1]


def _feed_forward(shape: "Shape", at: str, width: int) -> Sizes:
    for name in ("w1", "w3"):
        yield f"{at}.{name}.weight", (width, shape.hidden)
    yield f"{at}.w2.weight", (shape.hidden, width)


def _experts(shape: "Shape") -> Sizes:
    count = shape.extra["num_experts"]
    yield "feed_forward.gate.weight", (count, shape.hidden)
    if shape.extra.get("use_expert_bias", True):
        yield "feed_forward.expert_bias", (count,)
    for expert in range(count):
        yield from _feed_forward(shape, f"feed_forward.experts.{expert}", shape.ffn)
