"""Tensors of random Gemma 4 models, whose layers differ in shape. Knows no readers."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.random_models import Shape

Sizes = Iterator[tuple[str, tuple[int, ...]]]


def model_sizes(shape: "Shape") -> Sizes:
    """Names and sizes of the tensors of per-layer embeddings outside the layers."""
    width = shape.extra.get("hidden_size_per_layer_input", 256)
    if width == 0:
        return
    columns = shape.layers * width
    yield "model.embed_tokens_per_layer.weight", (shape.vocab, columns)
    yield "model.per_layer_model_projection.weight", (columns, shape.hidden)
    yield "model.per_layer_projection_norm.weight", (width,)


def layer_sizes(shape: "Shape", index: int) -> Sizes:
    """Those of a layer, but for the norms around attention and feed forward."""
    extra, hidden, ffn = shape.extra, shape.hidden, shape.ffn
    is_full = extra["layer_types"][index] == "full_attention"
    values_are_keys = is_full and extra.get("attention_k_eq_v", False)
    dim = extra["global_head_dim"] if is_full else shape.head_dim
    kv_heads = extra["num_global_key_value_heads"] if values_are_keys else shape.kv_heads
    shares = index >= shape.layers - extra.get("num_kv_shared_layers", 0)
    linears = {"self_attn.q_proj": (shape.heads * dim, hidden)}
    yield "self_attn.q_norm.weight", (dim,)
    if not shares:
        yield "self_attn.k_norm.weight", (dim,)
        for letter in "k" if values_are_keys else "kv":
            linears[f"self_attn.{letter}_proj"] = (kv_heads * dim, hidden)
    linears["self_attn.o_proj"] = (hidden, shape.heads * dim)
    for name, size in linears.items():
        yield f"{name}.weight", size
        if shape.has_biases:
            yield f"{name}.bias", size[:1]
    wide = ffn * 2 if shares and extra.get("use_double_wide_mlp") else ffn
    yield "mlp.gate_proj.weight", (wide, hidden)
    yield "mlp.up_proj.weight", (wide, hidden)
    yield "mlp.down_proj.weight", (hidden, wide)
    if extra.get("enable_moe_block"):
        yield from _experts(shape)
    width = extra.get("hidden_size_per_layer_input", 256)
    if width > 0:
        yield "per_layer_input_gate.weight", (width, hidden)
        yield "per_layer_projection.weight", (hidden, width)
        yield "post_per_layer_input_norm.weight", (hidden,)
    yield "layer_scalar", (1,)


def _experts(shape: "Shape") -> Sizes:
    count, width = shape.extra["num_experts"], shape.extra["moe_intermediate_size"]
    for norm in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
        yield f"{norm}.weight", (shape.hidden,)
    yield "pre_feedforward_layernorm_2.weight", (shape.hidden,)
    yield "router.proj.weight", (count, shape.hidden)
    yield "router.scale", (shape.hidden,)
    yield "router.per_expert_scale", (count,)
    yield "experts.gate_up_proj", (count, 2 * width, shape.hidden)
    yield "experts.down_proj", (count, shape.hidden, width)


def shorten(
    config: Mapping[str, Any], tensors: MutableMapping[str, Any], layers: int
) -> Mapping[str, Any]:
    """Cuts per-layer embeddings to the first `layers` in place; returns changes of the config."""
    if config["model_type"] != "gemma4_text":
        return {}
    width = config["hidden_size_per_layer_input"]
    for name, cut in (
        ("model.embed_tokens_per_layer.weight", (slice(None), slice(layers * width))),
        ("model.per_layer_model_projection.weight", (slice(layers * width),)),
    ):
        if name in tensors:
            tensors[name] = tensors[name][cut]
    unshared = config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0)
    return {"num_kv_shared_layers": max(0, layers - unshared)}
