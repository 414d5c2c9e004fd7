"""Rebuilds `config.json` from the metadata of a GGUF file.

Owns llama.cpp's keys for a model's shape. Knows nothing of what the fields mean.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from specqd.config.fields import Fields
from specqd.errors import ConfigError, shown
from specqd.formats.gguf import GgufFile, of_all_layers

_MODEL_TYPES = {  # by general.architecture
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "olmo2": "olmo2",
    "granite": "granite",
    "phi3": "phi3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "qwen35": "qwen3_5_text",
}
_UNCERTAIN = {  # architecture -> what its files do not say
    "gptneox": "which GELU the model uses, and the base of its rope",
    "stablelm": "the base of the model's rope",
    "starcoder2": "the model's attention window",
}
_COPIED = {  # keys of an architecture -> fields of config.json
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.causal": "is_causal",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_RECURRENT = {  # keys of qwen35 -> fields of config.json; all are needed
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "full_attention_interval": "full_attention_interval",
}
_SCALING = {  # keys of its rope scaling -> fields of rope_scaling
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# A file names at most three of the tokens that end a turn of a chat model. The others are found by
# their text, as llama.cpp does.
_ENDS_OF_TURNS = (
    *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"),
    *("<|endoftext|>", "<|end_of_text|>"),
)
# Number of layers of each known Gemma -> whether its scores are scaled by head_dim; otherwise by
# hidden_size / heads, which differs from head_dim in the largest models.
_GEMMA_SCALED_BY_HEAD = {
    "gemma2": {26: True, 42: True, 46: False},
    "gemma3": {18: True, 26: True, 34: True, 48: True, 62: False},
}
_LLAMA3_WAVES = (1.0, 4.0, 8192)  # low and high frequency factors, original context


def config_fields(gguf: GgufFile) -> Fields:
    """The fields of `config.json`; raises ConfigError for an unsupported or incomplete file."""
    architecture = gguf.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in {**_MODEL_TYPES, **_UNCERTAIN}:
        known = ", ".join(_MODEL_TYPES)
        raise _error(gguf, f"architecture {shown(architecture)} is not supported; known: {known}")
    if architecture in _UNCERTAIN:
        problem = f"GGUF files of architecture {architecture!r} do not say"
        raise _error(gguf, f"{problem} {_UNCERTAIN[architecture]}")
    if gguf.get(f"{architecture}.expert_count"):
        raise _error(gguf, "mixtures of experts are not supported in GGUF files")
    values: dict[str, Any] = {"model_type": _MODEL_TYPES[architecture]}
    for key, name in _COPIED.items():
        value = gguf.get(f"{architecture}.{key}")
        if key == "attention.head_count_kv":
            value = of_all_layers(value)
        if value is not None:
            values[name] = _decimal(value)
    values.setdefault("num_key_value_heads", values.get("num_attention_heads"))
    values["head_dim"] = _head_dim(gguf, architecture, values)
    values |= _vocabulary(gguf) | _biases(gguf)
    values |= _windows(gguf, architecture)
    if architecture == "qwen35":
        values |= _recurrent(gguf, architecture)
    if architecture in _GEMMA_SCALED_BY_HEAD:
        values["query_pre_attn_scalar"] = _gemma_scalar(gguf, architecture, values)
    if architecture == "granite" and "attention_multiplier" not in values:
        raise _error(gguf, "granite.attention.scale is missing")
    values["rope_scaling"] = _rope_scaling(gguf, architecture, values)
    return Fields(gguf.path, values)


def _decimal(value: Any) -> Any:
    """A 32-bit float in its shortest spelling: 1e-06, not 9.999999974752427e-07."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _head_dim(gguf: GgufFile, architecture: str, values: Mapping[str, Any]) -> Any:
    sizes = [gguf.get(f"{architecture}.attention.{part}_length") for part in ("key", "value")]
    hidden, heads = values.get("hidden_size"), values.get("num_attention_heads")
    default = hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else 0
    key, value = (default if size is None else size for size in sizes)
    rotated = gguf.get(f"{architecture}.rope.dimension_count")
    is_partial = architecture == "qwen35" and rotated is not None
    if key != value or (rotated not in (None, key) and not is_partial):
        raise _error(gguf, f"keys of {key}, values of {value}, {rotated} rotated: not supported")
    return key


def _recurrent(gguf: GgufFile, architecture: str) -> dict[str, Any]:
    """Qwen 3.5's recurrent layers and partial rope. Its MTP layers are counted as blocks."""

    def number(key: str, least: int = 1) -> int:
        value = gguf.get(f"{architecture}.{key}")
        if type(value) is not int or value < least:
            raise _error(gguf, f"{architecture}.{key} is {shown(value)}, not a number from {least}")
        return value

    fields: dict[str, Any] = {name: number(key) for key, name in _RECURRENT.items()}
    width, heads = number("ssm.inner_size"), fields["linear_num_value_heads"]
    if width % heads:
        raise _error(gguf, f"{width} values cannot be divided among {heads} heads")
    mtp = f"{architecture}.nextn_predict_layers"
    layers = number("block_count") - (0 if gguf.get(mtp) is None else number(mtp[7:], 0))
    rotated, head_dim = number("rope.dimension_count"), number("attention.key_length")
    return fields | {
        "linear_value_head_dim": width // heads,
        "partial_rotary_factor": rotated / head_dim,
        "num_hidden_layers": layers,
    }


def _vocabulary(gguf: GgufFile) -> dict[str, Any]:
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise _error(gguf, "has no embedding, token_embd.weight; it is not a language model")
    ids = [gguf.get(f"tokenizer.ggml.{key}") for key in _EOS_KEYS]
    if gguf.get("tokenizer.chat_template"):
        tokens = gguf.get("tokenizer.ggml.tokens")
        if isinstance(tokens, list):
            ids += [tokens.index(each) for each in _ENDS_OF_TURNS if each in tokens]
    return {
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": gguf.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [i for at, i in enumerate(ids) if i is not None and i not in ids[:at]]
        or None,
    }


def _biases(gguf: GgufFile) -> dict[str, bool]:
    """One bias in layer 0 means that all must exist: a missing one is refused, not left out."""
    attention = ("attn_q", "attn_k", "attn_v", "attn_output")
    return {
        "attention_bias": any(f"blk.0.{part}.bias" in gguf.tensors for part in attention),
        "mlp_bias": any(
            f"blk.0.ffn_{part}.bias" in gguf.tensors for part in ("gate", "up", "down")
        ),
    }


def _windows(gguf: GgufFile, architecture: str) -> dict[str, Any]:
    window = gguf.get(f"{architecture}.attention.sliding_window")
    if architecture == "phi3" and window is None:
        raise _error(gguf, "phi3.attention.sliding_window is missing, as in old files")
    if not window:
        return {}
    if architecture == "llama":
        return {"model_type": "mistral", "sliding_window": window}
    if architecture == "olmo2":
        raise _error(gguf, f"olmo2 with a window of {shown(window)} (Olmo 3) is not supported")
    pattern = gguf.get(f"{architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        kinds = ["sliding_attention" if each else "full_attention" for each in pattern]
        return {"sliding_window": window, "layer_types": kinds}
    found = {} if pattern is None else {"sliding_window_pattern": pattern}
    return {"sliding_window": window} | found


def _gemma_scalar(gguf: GgufFile, architecture: str, values: Mapping[str, Any]) -> Any:
    """`query_pre_attn_scalar`, from the number of layers: the file does not hold it."""
    known, layers = _GEMMA_SCALED_BY_HEAD[architecture], values.get("num_hidden_layers")
    hidden, heads = values.get("hidden_size"), values.get("num_attention_heads")
    if not isinstance(layers, int) or layers not in known:
        sizes = ", ".join(map(str, known))
        raise _error(
            gguf,
            f"the file does not say how a {architecture} of {shown(layers)} layers scales its "
            f"scores; known: models of {sizes} layers",
        )
    if known[layers] or not (isinstance(hidden, int) and isinstance(heads, int) and heads):
        return values["head_dim"]
    return hidden / heads


def _rope_scaling(
    gguf: GgufFile, architecture: str, values: Mapping[str, Any]
) -> dict[str, Any] | None:
    prefix = f"{architecture}.rope.scaling."
    kind = gguf.get(f"{prefix}type")
    if "rope_factors_long.weight" in gguf.tensors:
        raise _error(gguf, "LongRoPE is not supported in GGUF files")
    if "rope_freqs.weight" in gguf.tensors:
        return _llama3_scaling(gguf, values)
    factor = gguf.get(f"{prefix}factor") or gguf.get(f"{architecture}.rope.scale_linear")
    if kind is None:  # as in llama.cpp, whose older files state only a factor
        return (
            {"rope_type": "linear", "factor": _decimal(factor)} if factor not in (None, 1) else None
        )
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise _error(gguf, f"rope scaling {shown(kind)} is not supported in GGUF files")
    for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        if gguf.get(prefix + key) not in (None, 1.0):
            raise _error(gguf, f"{prefix}{key} is not supported")
    found = {name: _decimal(gguf.get(prefix + key)) for key, name in _SCALING.items()}
    return {"rope_type": kind} | {k: v for k, v in found.items() if v is not None}


def _llama3_scaling(gguf: GgufFile, values: Mapping[str, Any]) -> dict[str, Any]:
    """Llama 3's scaling; the file holds only the frequencies' divisors, which are checked."""
    tensor, fields = gguf.tensors["rope_freqs.weight"], Fields(gguf.path, values)
    theta, head_dim = fields.positive("rope_theta", 10000.0), fields.integer("head_dim")
    if tensor.dtype != "F32" or tensor.shape != (head_dim // 2,):
        raise _error(gguf, f"rope_freqs.weight is {tensor.dtype} {list(tensor.shape)}")
    divisors = gguf.data("rope_freqs.weight").astype(np.float64)
    factor = float(divisors.max(initial=1.0))
    low, high, original = _LLAMA3_WAVES
    for i, divisor in enumerate(divisors):
        turns = original * theta ** (-2 * i / head_dim) / (2 * math.pi)  # in the original context
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        if not math.isclose(divisor, 1 / ((1 - smooth) / factor + smooth), rel_tol=1e-4):
            raise _error(gguf, "rope_freqs.weight does not follow Llama 3's rope scaling")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _error(gguf: GgufFile, problem: str) -> ConfigError:
    return ConfigError(f"{gguf.path}: {problem}; use the model's Hugging Face directory")
