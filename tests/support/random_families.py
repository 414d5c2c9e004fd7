"""Differences of the families for random models: entries of config.json, and tensors by name.

Written from the models' definitions. Knows no readers.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from support import random_gemma4 as gemma4
from support import random_latent as latent
from support import random_lfm2 as lfm2
from support.random_recurrent import Linears, Sizes, recurrent_linears, recurrent_vectors

if TYPE_CHECKING:
    from support.random_models import Shape

ModelType = Literal[
    "llama", "mistral", "ministral3", "qwen2", "qwen3", "olmo2", "olmo3", "granite",
    "granitemoehybrid", "glm4", "smollm3", "gemma2", "gemma3_text", "gemma4_text", "phi3",
    "starcoder2", "gpt_neox", "stablelm", "mixtral", "qwen3_moe", "gpt_oss", "qwen3_5_text",
    "qwen3_5_moe_text", "qwen3_next", "lfm2", "lfm2_moe", "glm4_moe", "glm4_moe_lite",
    "deepseek_v3",
]  # fmt: skip

ARCHITECTURES = {
    "granitemoehybrid": "GraniteMoeHybrid",
    "smollm3": "SmolLM3",
    "gemma3_text": "Gemma3",
    "gemma4_text": "Gemma4",
    "gpt_neox": "GPTNeoX",
    "stablelm": "StableLm",
    "qwen3_moe": "Qwen3Moe",
    "gpt_oss": "GptOss",
    "qwen3_5_text": "Qwen3_5",
    "qwen3_5_moe_text": "Qwen3_5Moe",
    "qwen3_next": "Qwen3Next",
    "lfm2_moe": "Lfm2Moe",
    "glm4_moe": "Glm4Moe",
    "glm4_moe_lite": "Glm4MoeLite",
    "deepseek_v3": "DeepseekV3",
}
RECURRENT = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
PER_LAYER = ("layer_types", "no_rope_layers", "mlp_layer_types")  # entries that list layers
ROUTERS = (
    "mlp.gate.weight",
    "block_sparse_moe.gate.weight",
    "mlp.router.weight",
    "router.proj.weight",
    "feed_forward.gate.weight",
)
BYTES = ("_blocks", "_scales")  # tensors of MXFP4
LAYER_NORMED = ("starcoder2", "gpt_neox", "stablelm")
ZERO_CENTRED = ("gemma2", "gemma3_text", *RECURRENT)  # norms multiply by 1 + weight
_NORMS_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
NORMS_AFTER = {  # of attention and feed forward, by their names
    "olmo2": _NORMS_AFTER,
    "olmo3": _NORMS_AFTER,
    "gemma2": _NORMS_AFTER,
    "gemma3_text": _NORMS_AFTER,
    "gemma4_text": (*_NORMS_AFTER, "post_per_layer_input_norm"),
    "glm4": ("post_self_attn_layernorm", "post_mlp_layernorm"),
}
_UNBIASED_OUTPUTS = ("stablelm", "glm4", "glm4_moe")

# Names of modules that differ from Llama's.
_NEOX = {
    "model.embed_tokens": "gpt_neox.embed_in",
    "model.norm": "gpt_neox.final_layer_norm",
    "model.layers": "gpt_neox.layers",
    "lm_head": "embed_out",
    "self_attn.o_proj": "attention.dense",
    "self_attn.qkv_proj": "attention.query_key_value",
    "mlp.up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
}
_STARCODER = {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}
_GRANITE_HYBRID = {
    "mlp.gate_up_proj": "shared_mlp.input_linear",
    "mlp.down_proj": "shared_mlp.output_linear",
}
_RENAMED = {
    "gpt_neox": _NEOX,
    "starcoder2": _STARCODER,
    "granitemoehybrid": _GRANITE_HYBRID,
    **dict.fromkeys(lfm2.TYPES, lfm2.NAMES),
}


def module_name(shape: "Shape", name: str) -> str:
    """The family's name of Llama's module or tensor `name`."""
    for ours, theirs in _RENAMED.get(shape.model_type, {}).items():
        name = name.replace(ours, theirs)
    return name


def family_config(shape: "Shape") -> Mapping[str, Any]:
    """The family's own entries of config.json, and `shape.extra`."""
    biases = {"attention_bias": shape.has_biases}
    match shape.model_type:
        case "llama" | "granite" | "smollm3":
            entries: dict[str, Any] = {**biases, "mlp_bias": shape.has_biases}
        case "granitemoehybrid":
            entries = {
                **biases,
                "shared_intermediate_size": shape.ffn,
                "intermediate_size": 1,  # of experts, which these models lack
                "num_local_experts": 0,
                "position_embedding_type": "rope",
                "layer_types": ["attention"] * shape.layers,
                "mamba_expand": 2,  # transformers checks these three
                "mamba_n_heads": 2,
                "mamba_d_head": shape.hidden,
            }
        case "olmo2" | "glm4" | "qwen3_5_text":
            entries = biases
        case "qwen3_5_moe_text" | "qwen3_next" | "glm4_moe" | "glm4_moe_lite" | "deepseek_v3":
            entries = {**biases, "moe_intermediate_size": shape.ffn}
        case "olmo3":
            entries = {**biases, "sliding_window": shape.window}
        case "mistral" | "ministral3" | "phi3" | "mixtral":
            entries = {"sliding_window": shape.window}
        case "qwen2" | "qwen3":
            entries = {
                "use_sliding_window": shape.window is not None,
                "sliding_window": shape.window,
                "max_window_layers": 1,
            }
        case "qwen3_moe":
            entries = {**biases, "moe_intermediate_size": shape.ffn, "sliding_window": shape.window}
            entries["use_sliding_window"] = shape.window is not None
        case "gpt_oss":
            entries = {**biases, "sliding_window": shape.window}
            entries["quantization_config"] = {"quant_method": "mxfp4"}
        case "gemma2" | "gemma3_text" | "gemma4_text":
            entries = {"sliding_window": shape.window, "hidden_activation": "gelu_pytorch_tanh"}
            if shape.model_type == "gemma4_text":
                entries |= {**biases, "vocab_size_per_layer_input": shape.vocab}
        case "starcoder2":
            entries = {
                "norm_epsilon": 1e-5,
                "hidden_act": "gelu_pytorch_tanh",
                "use_bias": shape.has_biases,
                "sliding_window": shape.window,
            }
        case "gpt_neox":
            entries = {**biases, "layer_norm_eps": 1e-5, "hidden_act": "gelu"}
            entries["rotary_emb_base"] = shape.rope_theta
        case "stablelm":
            entries = {"layer_norm_eps": 1e-5, "use_qkv_bias": shape.has_biases}
        case "lfm2" | "lfm2_moe":
            entries = dict(lfm2.config_of(shape))
    return entries | dict(shape.extra)


def rope_parameters(shape: "Shape", rope: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of `rope` in the spelling of transformers 5."""
    if shape.model_type in ("gemma3_text", "gemma4_text", "olmo3"):
        local = {"rope_type": "default", "rope_theta": 500.0}
        return {"full_attention": rope, "sliding_attention": local}
    return rope


def tensor_sizes(shape: "Shape") -> Sizes:
    """Names and sizes of tensors in file order."""
    for name, size in _llama_like_sizes(shape):
        yield module_name(shape, name), size


def _llama_like_sizes(shape: "Shape") -> Sizes:
    yield "model.embed_tokens.weight", (shape.vocab, shape.hidden)
    for index in range(shape.layers):
        for name, size in _layer_sizes(shape, index):
            yield f"model.layers.{index}.{name}", size
    if shape.model_type == "gemma4_text":
        yield from gemma4.model_sizes(shape)
    yield from _norm(shape, "model.norm")
    if not shape.is_tied:
        yield "lm_head.weight", (shape.vocab, shape.hidden)


def _norm(shape: "Shape", name: str) -> Sizes:
    yield f"{name}.weight", (shape.hidden,)
    if shape.model_type in LAYER_NORMED:
        yield f"{name}.bias", (shape.hidden,)


def _layer_sizes(shape: "Shape", index: int) -> Sizes:
    kind = shape.model_type
    if kind in lfm2.TYPES:
        yield from lfm2.layer_sizes(shape, index)
        return
    norms = ["input_layernorm", "post_attention_layernorm"]
    if kind in ("olmo2", "olmo3"):
        norms = list(NORMS_AFTER[kind])
    if kind in ("gemma2", "gemma3_text", "gemma4_text"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if kind == "glm4":
        norms += NORMS_AFTER[kind]
    if kind == "stablelm" and shape.extra.get("use_parallel_residual"):
        norms.remove("post_attention_layernorm")
    for norm in norms:
        yield from _norm(shape, norm)
    if kind == "gemma4_text":
        yield from gemma4.layer_sizes(shape, index)
        return
    feed_forward = _experts if _has_experts(shape, index) else _mlp
    is_recurrent = _is_recurrent(shape, index)
    linears = _mixer_linears(shape, is_recurrent) | feed_forward(shape)
    for name, (rows, columns, is_biased) in linears.items():
        yield f"{name}.weight", (rows, columns)
        if is_biased:
            yield f"{name}.bias", (rows,)
    if kind in latent.LATENT:
        yield from latent.latent_norms(shape)
    else:
        yield from recurrent_vectors(shape) if is_recurrent else _head_norms(shape)
    if "mlp.gate" in linears and kind in latent.SIGMOID:
        yield "mlp.gate.e_score_correction_bias", (shape.extra["n_routed_experts"],)
    if kind == "qwen3_5_moe_text":
        yield from _stacked_experts(shape, "mlp.experts")
    if kind == "gpt_oss":
        yield from _mxfp4_experts(shape)
        yield "self_attn.sinks", (shape.heads,)


def _mixer_linears(shape: "Shape", is_recurrent: bool) -> Linears:
    if shape.model_type in latent.LATENT:
        return latent.latent_linears(shape)
    return recurrent_linears(shape) if is_recurrent else _attention_linears(shape)


def _head_norms(shape: "Shape") -> Sizes:
    dim, kind = shape.head_dim, shape.model_type
    for letter, heads in (("q", shape.heads), ("k", shape.kv_heads)):
        if kind in ("qwen3", "qwen3_moe", "gemma3_text", *RECURRENT):
            yield f"self_attn.{letter}_norm.weight", (dim,)
        if kind in ("olmo2", "olmo3"):
            yield f"self_attn.{letter}_norm.weight", (heads * dim,)
        if shape.extra.get("use_qk_norm"):
            yield f"self_attn.{letter}_norm.weight", (dim,)
        if kind == "stablelm" and shape.extra.get("qk_layernorm"):
            for head in range(heads):
                yield f"self_attn.{letter}_layernorm.norms.{head}.weight", (dim,)


def _attention_linears(shape: "Shape") -> Linears:
    kind, hidden, biased = shape.model_type, shape.hidden, shape.has_biases
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    qkv_biased = kind == "qwen2" or biased
    if kind in ("phi3", "gpt_neox"):
        linears = {"self_attn.qkv_proj": (q + 2 * kv, hidden, qkv_biased)}
    else:
        gates = q if kind in RECURRENT else 0
        rows = {"q": q + gates, "k": kv, "v": kv}
        linears = {f"self_attn.{n}_proj": (rows[n], hidden, qkv_biased) for n in rows}
    return linears | {"self_attn.o_proj": (hidden, q, biased and kind not in _UNBIASED_OUTPUTS)}


def _is_recurrent(shape: "Shape", index: int) -> bool:
    if shape.model_type not in RECURRENT:
        return False
    return bool((index + 1) % shape.extra.get("full_attention_interval", 4))


def _mlp(shape: "Shape") -> Linears:
    kind, hidden = shape.model_type, shape.hidden
    ffn = shape.extra.get("intermediate_size", shape.ffn)  # that of experts may differ
    unbiased = (
        *("olmo2", "olmo3", "granitemoehybrid", "glm4", "stablelm", "qwen3_moe"),
        *(*RECURRENT, *latent.SIGMOID),
    )
    biased = kind == "gpt_neox" or (shape.has_biases and kind not in unbiased)
    if kind in ("phi3", "granitemoehybrid", "glm4"):
        linears = {"mlp.gate_up_proj": (2 * ffn, hidden, False)}
    elif kind in ("gpt_neox", "starcoder2"):
        linears = {"mlp.up_proj": (ffn, hidden, biased)}
    else:
        linears = {f"mlp.{name}_proj": (ffn, hidden, biased) for name in ("gate", "up")}
    return linears | {"mlp.down_proj": (hidden, ffn, biased)}


def _has_experts(shape: "Shape", index: int) -> bool:
    if shape.model_type in ("mixtral", "gpt_oss", "qwen3_5_moe_text"):
        return True
    if shape.model_type in latent.SIGMOID:
        return latent.has_experts(shape, index)
    step = shape.extra.get("decoder_sparse_step", 1)
    is_plain = index in shape.extra.get("mlp_only_layers", [])
    is_sparse = (index + 1) % step == 0 and not is_plain
    return shape.model_type in ("qwen3_moe", "qwen3_next") and is_sparse


def _experts(shape: "Shape") -> Linears:
    hidden, ffn = shape.hidden, shape.ffn
    if shape.model_type == "gpt_oss":
        return {"mlp.router": (shape.extra["num_local_experts"], hidden, True)}
    if shape.model_type == "mixtral":
        block, count = "block_sparse_moe", shape.extra["num_local_experts"]
        names = {"w1": (ffn, hidden), "w3": (ffn, hidden), "w2": (hidden, ffn)}
    else:
        count = shape.extra.get("num_experts") or shape.extra["n_routed_experts"]
        block = "mlp"
        names = {"gate_proj": (ffn, hidden), "up_proj": (ffn, hidden), "down_proj": (hidden, ffn)}
    linears = {f"{block}.gate": (count, hidden, False)}
    if shape.model_type in RECURRENT:
        linears |= _shared_expert(shape)
    if shape.model_type in latent.SIGMOID:
        linears |= latent.shared_experts(shape)
    if shape.model_type == "qwen3_5_moe_text":
        return linears
    for expert in range(count):
        for name, size in names.items():
            linears[f"{block}.experts.{expert}.{name}"] = (*size, False)
    return linears


def _shared_expert(shape: "Shape") -> Linears:
    at, width = "mlp.shared_expert", shape.extra["shared_expert_intermediate_size"]
    linears = {f"{at}.{name}_proj": (width, shape.hidden, False) for name in ("gate", "up")}
    down = {f"{at}.down_proj": (shape.hidden, width, False)}
    return {f"{at}_gate": (1, shape.hidden, False)} | linears | down


def _stacked_experts(shape: "Shape", at: str) -> Sizes:
    """Experts as one tensor for gates and ups, and one for downs."""
    hidden, ffn, count = shape.hidden, shape.ffn, shape.extra["num_experts"]
    yield f"{at}.gate_up_proj", (count, 2 * ffn, hidden)
    yield f"{at}.down_proj", (count, hidden, ffn)


def _mxfp4_experts(shape: "Shape") -> Sizes:
    hidden, ffn, count = shape.hidden, shape.ffn, shape.extra["num_local_experts"]
    for name, rows, columns in (("gate_up_proj", 2 * ffn, hidden), ("down_proj", hidden, ffn)):
        yield f"mlp.experts.{name}_blocks", (count, rows, columns // 32, 16)
        yield f"mlp.experts.{name}_scales", (count, rows, columns // 32)
        yield f"mlp.experts.{name}_bias", (count, rows)
