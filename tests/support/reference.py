"""The decoder in NumPy float64; only the weights are rounded.

Written from the models' definitions, to be read. Knows nothing of caches, batches or speed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support import reference_gemma4
from support.fp4 import bf16_values
from support.reference_feed_forward import (
    Weights,
    feed_forward,
    gelu_tanh,
    linear,
    norm,
    norm_if_any,
    rms_norm,
)
from support.reference_latent import is_latent, latent_attention
from support.reference_positions import (
    Array,
    Config,
    head_dim,
    is_qwen3_5,
    is_visible,
    query_scales,
    rotate,
    tells_positions,
    window,
)
from support.reference_recurrent import is_recurrent, recurrent

KeysValues = dict[int, tuple[Array, Array]]  # by layer


def logits(config: Config, tensors: Mapping[str, NDArray[Any]], tokens: Sequence[int]) -> Array:
    """Logits after each token, [n, vocab]; BF16 `tensors` have their Hugging Face names."""
    return forward(config, values(tensors), tokens)


def values(tensors: Mapping[str, NDArray[Any]]) -> Weights:
    """Values of BF16 tensors, and of MXFP4 ones by the common name of blocks and scales."""
    weights = {n: bf16_values(bits) for n, bits in tensors.items() if bits.dtype == np.uint16}
    for name, scales in tensors.items():
        if name.endswith("_scales"):
            stem = name.removesuffix("_scales")
            pairs = tensors[f"{stem}_blocks"]
            codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*scales.shape, 32)
            grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7] * np.where(codes & 8, -1, 1)
            blocks = np.ldexp(grid, scales[..., None].astype(int) - 127)
            weights[stem] = blocks.reshape(*scales.shape[:-1], -1)
    return weights


def router_margins(
    config: Config, tensors: Mapping[str, NDArray[Any]], tokens: Sequence[int]
) -> Array:
    """By how much scores of experts may err before another one is chosen, over their RMS: the least
    of all layers for each token, [n]."""
    margins: list[Array] = []
    forward(config, values(tensors), tokens, margins)
    return np.minimum.reduce([np.full(len(tokens), np.inf), *margins])


def rms_error(found: NDArray[Any], truth: NDArray[Any]) -> float:
    """RMS of the difference over RMS of `truth`, in float64."""
    truth = truth.astype(np.float64)
    return float(np.sqrt(((found - truth) ** 2).mean() / (truth**2).mean()))


def forward(
    config: Config, weights: Weights, tokens: Sequence[int], margins: list[Array] | None = None
) -> Array:
    """Logits after each token, [n, vocab]. Appends each router's margins, [n]."""
    margins = [] if margins is None else margins
    weights = canonical(config, weights)
    embedding = weights["model.embed_tokens.weight"]
    x = embedding[np.asarray(tokens)] * embedding_scale(config)
    per_layer = reference_gemma4.per_layer_inputs(config, weights, tokens, x)
    keys_values: KeysValues = {}
    branch_scale = config.get("residual_multiplier", 1.0)
    for index in range(config["num_hidden_layers"]):
        layer = _layer(weights, index)
        before = x
        inputs = norm_if_any(config, layer, "before_attention", x)
        if is_recurrent(layer):
            mixed = recurrent(config, layer, inputs)
        elif is_latent(layer):
            mixed = latent_attention(config, layer, inputs)
        else:
            mixed = _attention(config, layer, index, inputs, keys_values)
        mixed = norm_if_any(config, layer, "after_attention", mixed)
        x = x + mixed * branch_scale
        source = before if _is_parallel(config) else x
        added = feed_forward(config, layer, source, margins)
        x = x + norm_if_any(config, layer, "after_mlp", added) * branch_scale
        if per_layer is not None:
            gate = gelu_tanh(linear(layer, "per_layer_input_gate", x))
            added = linear(layer, "per_layer_projection", gate * per_layer[:, index])
            x = x + norm_if_any(config, layer, "post_per_layer_input_norm", added)
        x = x * layer.get("layer_scalar", 1.0)
    x = norm_if_any(config, weights, "model.norm", x)
    head = embedding if is_tied(config) else weights["lm_head.weight"]
    logits = x @ head.T / config.get("logits_scaling", 1.0)
    return soft_cap(logits, cap_of(config, "final_logit_softcapping", 30.0))


def canonical(config: Config, weights: Weights) -> Weights:
    """Weights by Llama's names, norms by their position; fused tensors are split."""
    kind = config["model_type"]
    renamed = {}
    for name, weight in weights.items():
        for theirs, ours in (*_NAMES.get(kind, ()), *_NORM_NAMES.get(kind, _NORM_NAMES["llama"])):
            name = name.replace(theirs, ours)
        renamed[name] = weight
    if kind == "stablelm" and _is_parallel(config):  # one norm for both
        for name in [n for n in renamed if ".before_attention." in n]:
            renamed[name.replace("attention", "mlp")] = renamed[name]
    return dict(part for item in renamed.items() for part in _cut(config, *item))


_LFM2 = (
    ("model.embedding_norm", "model.norm"),
    ("self_attn.out_proj", "self_attn.o_proj"),
    ("q_layernorm", "q_norm"),
    ("k_layernorm", "k_norm"),
    ("feed_forward", "mlp"),
    (".w1.", ".gate_proj."),
    (".w2.", ".down_proj."),
    (".w3.", ".up_proj."),
)
_NAMES = {
    "lfm2": _LFM2,
    "lfm2_moe": (*_LFM2, ("mlp.expert_bias", "mlp.gate.e_score_correction_bias")),
    "gpt_neox": (
        ("gpt_neox.embed_in", "model.embed_tokens"),
        ("gpt_neox.final_layer_norm", "model.norm"),
        ("gpt_neox.layers", "model.layers"),
        ("embed_out", "lm_head"),
        ("attention.dense", "self_attn.o_proj"),
        ("attention.query_key_value", "self_attn.qkv_by_head"),
        ("mlp.dense_h_to_4h", "mlp.up_proj"),
        ("mlp.dense_4h_to_h", "mlp.down_proj"),
    ),
    "gpt_oss": (("mlp.router", "mlp.gate"),),
    "granitemoehybrid": (
        ("shared_mlp.input_linear", "mlp.gate_up_proj"),
        ("shared_mlp.output_linear", "mlp.down_proj"),
    ),
    "gemma4_text": (("router.proj", "mlp.gate"), (".experts.", ".mlp.experts.")),
    "mixtral": (
        ("block_sparse_moe", "mlp"),
        (".w1.", ".gate_proj."),
        (".w2.", ".down_proj."),
        (".w3.", ".up_proj."),
    ),
    "starcoder2": (("mlp.c_fc", "mlp.up_proj"), ("mlp.c_proj", "mlp.down_proj")),
}
_AROUND = (
    ("input_layernorm", "before_attention"),
    ("post_attention_layernorm", "after_attention"),
    ("pre_feedforward_layernorm", "before_mlp"),
    ("post_feedforward_layernorm", "after_mlp"),
)
_LFM2_NORMS = (("operator_norm", "before_attention"), ("ffn_norm", "before_mlp"))
_NORM_NAMES = {
    "lfm2": _LFM2_NORMS,
    "lfm2_moe": _LFM2_NORMS,
    "llama": (
        ("input_layernorm", "before_attention"),
        ("post_attention_layernorm", "before_mlp"),
    ),
    "olmo2": _AROUND,
    "olmo3": _AROUND,
    "glm4": (
        ("input_layernorm", "before_attention"),
        ("post_self_attn_layernorm", "after_attention"),
        ("post_attention_layernorm", "before_mlp"),
        ("post_mlp_layernorm", "after_mlp"),
    ),
    "gemma2": _AROUND,
    "gemma3_text": _AROUND,
    "gemma4_text": _AROUND,
}


def _cut(config: Config, name: str, weight: Array) -> Iterator[tuple[str, Array]]:
    heads, dim = config["num_attention_heads"], head_dim(config)
    if "qkv_by_head" in name:
        parts = weight.reshape(heads, 3, dim, -1)
        for i, letter in enumerate("qkv"):
            part = parts[:, i].reshape(heads * dim, *weight.shape[1:])
            yield name.replace("qkv_by_head", f"{letter}_proj"), part
    elif "qkv_proj" in name:
        ends = heads * dim, (heads + config["num_key_value_heads"]) * dim
        for letter, part in zip("qkv", np.split(weight, ends), strict=True):
            yield name.replace("qkv_proj", f"{letter}_proj"), part
    elif is_qwen3_5(config) and ".q_proj" in name:
        parts = weight.reshape(heads, 2, dim, -1)
        for i, part_name in enumerate(("q_proj", "gates")):
            rows = parts[:, i].reshape(heads * dim, *weight.shape[1:])
            yield name.replace("q_proj", part_name), rows
    elif config["model_type"] == "gpt_oss" and "mlp.experts." in name:
        ending = "bias" if name.endswith("_bias") else "weight"
        for expert, each in enumerate(weight):
            at = name[: name.index("experts.")] + f"experts.{expert}."
            parts = {"gate": each[::2], "up": each[1::2]} if "gate_up" in name else {"down": each}
            for part, rows in parts.items():
                yield f"{at}{part}_proj.{ending}", rows
    elif weight.ndim == 3 and "experts." in name:  # a stack
        for expert, each in enumerate(weight):
            one = f"{name.replace('experts.', f'experts.{expert}.')}.weight"
            yield from _cut(config, one, each)
    elif "gate_up_proj" in name:
        for half, part in zip(("gate", "up"), np.split(weight, 2), strict=True):
            yield name.replace("gate_up_proj", f"{half}_proj"), part
    else:
        yield name, weight


def is_tied(config: Config) -> bool:
    return bool(config.get("tie_word_embeddings", False))


def embedding_scale(config: Config) -> float:
    if config["model_type"].startswith("gemma"):
        return math.sqrt(config["hidden_size"])
    return float(config.get("embedding_multiplier", 1.0))


def soft_cap(x: Array, cap: float | None) -> Array:
    return x if cap is None else cap * np.tanh(x / cap)


def cap_of(config: Config, name: str, default: float) -> float | None:
    return config.get(name, default if config["model_type"] == "gemma2" else None)


def _is_parallel(config: Config) -> bool:
    return bool(config.get("use_parallel_residual", config["model_type"] == "gpt_neox"))


def _layer(weights: Weights, index: int) -> Weights:
    prefix = f"model.layers.{index}."
    return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}


def _keys_values(config: Config, layer: Weights, index: int, x: Array) -> tuple[Array, Array]:
    """Keys and values of a layer's own, [n, kv_heads, head_dim] each."""
    dim = head_dim(config, index)
    raw = linear(layer, "self_attn.k_proj", x)
    kv_heads = raw.shape[1] // dim
    k = _normed_heads(config, layer, "k", raw, kv_heads)
    has_values = "self_attn.v_proj.weight" in layer
    v = linear(layer, "self_attn.v_proj", x) if has_values else raw
    v = v.reshape(len(x), kv_heads, dim)
    if config["model_type"] == "gemma4_text":
        v = rms_norm(v, np.ones(dim), config.get("rms_norm_eps", 1e-6))
    return rotate(config, index, k) if tells_positions(config, index) else k, v


def _attention(
    config: Config, layer: Weights, index: int, x: Array, keys_values: KeysValues
) -> Array:
    """Keeps keys and values by layer, for later layers that share them."""
    n, dim = len(x), head_dim(config, index)
    heads = config["num_attention_heads"]
    q = _normed_heads(config, layer, "q", linear(layer, "self_attn.q_proj", x), heads)
    if tells_positions(config, index):
        q = rotate(config, index, q)
    source = reference_gemma4.kv_layer(config, index)
    if source == index:
        keys_values[index] = _keys_values(config, layer, index, x)
    q = q * query_scales(config, n)[:, None, None]
    k, v = (np.repeat(t, heads // t.shape[1], axis=1) for t in keys_values[source])
    scores = np.einsum("thd,shd->hts", q, k) * score_scale(config)
    scores = soft_cap(scores, cap_of(config, "attn_logit_softcapping", 50.0))
    scores = np.where(is_visible(n, window(config, index)), scores, -np.inf)
    sinks = layer.get("self_attn.sinks")
    if sinks is not None:  # one more score per head, with the value zero
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (heads, n, 1))], -1)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = (shares / shares.sum(axis=-1, keepdims=True))[..., :n]
    mixed = np.einsum("hts,shd->thd", shares, v).reshape(n, heads * dim)
    if "self_attn.gates.weight" in layer:
        mixed = mixed / (1 + np.exp(-linear(layer, "self_attn.gates", x)))
    return linear(layer, "self_attn.o_proj", mixed)


def score_scale(config: Config) -> float:
    if config["model_type"] == "gemma4_text":
        return 1.0
    if config["model_type"].startswith("gemma"):
        return float(1.0 / math.sqrt(config.get("query_pre_attn_scalar", 256)))
    if config["model_type"] in ("granite", "granitemoehybrid"):
        return float(config.get("attention_multiplier", 1.0))
    return 1.0 / math.sqrt(head_dim(config))


def _normed_heads(config: Config, layer: Weights, letter: str, x: Array, heads: int) -> Array:
    """x as [n, heads, head_dim], after the norm of queries or keys, if there is one."""
    weight = layer.get(f"self_attn.{letter}_norm.weight")
    if config["model_type"] in ("olmo2", "olmo3") and weight is not None:  # one norm over all heads
        return norm(config, x, weight).reshape(len(x), heads, -1)
    x = x.reshape(len(x), heads, -1)
    if config.get("qk_layernorm"):  # a weight for each head
        names = [f"self_attn.{letter}_layernorm.norms.{head}.weight" for head in range(heads)]
        weight = np.stack([layer[name] for name in names])
    return x if weight is None else norm(config, x, weight)
