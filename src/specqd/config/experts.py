"""The families whose feed forwards are a mixture of experts: Mixtral, Qwen3-MoE, gpt-oss."""

from dataclasses import replace

from specqd.config.decoder import (
    DecoderConfig,
    alternating_types,
    layer_count,
    read_decoder,
    read_experts,
    read_window,
    windows_of,
)
from specqd.config.fields import Fields
from specqd.config.rope import RopeDefaults, with_default_rope
from specqd.errors import ConfigError
from specqd.formats.fp4 import BLOCK


def read_mixtral(fields: Fields, context: int | None) -> DecoderConfig:
    config = read_decoder(
        fields,
        context=context,
        max_positions=4096 * 32,
        bos=(1,),
        eos=(2,),
        num_kv_heads=8,
        eps=("rms_norm_eps", 1e-5),
        rope=RopeDefaults(theta=1_000_000.0),
        window=read_window(fields, 0),
    )
    experts = read_experts(fields, size=config.intermediate_size, count=8, per_token=2)
    return replace(config, experts=experts)


def read_qwen3_moe(fields: Fields, context: int | None) -> DecoderConfig:
    """Experts in every `decoder_sparse_step`-th layer, a plain feed forward in the others."""
    layers = layer_count(fields)
    window = read_window(fields, 4096) if fields.flag("use_sliding_window") else 0
    config = read_decoder(
        fields,
        context=context,
        max_positions=32768,
        num_kv_heads=4,
        attention_bias=fields.flag("attention_bias"),
        window=window,
    )
    step, plain = fields.integer("decoder_sparse_step", 1), fields.get("mlp_only_layers") or []
    if not isinstance(plain, list):
        raise fields.wrong("mlp_only_layers", "a list of layers")
    experts = read_experts(
        fields,
        size=fields.integer("moe_intermediate_size", 768),
        count=128,
        per_token=8,
        layers=tuple(layer not in plain and (layer + 1) % step == 0 for layer in range(layers)),
        shares_of_chosen=fields.flag("norm_topk_prob"),
    )
    return replace(config, qk_norm="one", experts=experts)


_GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read_gpt_oss(fields: Fields, context: int | None) -> DecoderConfig:
    """MXFP4 experts in the file, attention sinks, a window on every other layer."""
    if fields.part("quantization_config").get("quant_method") != "mxfp4":
        problem = "gpt_oss is read from its MXFP4 checkpoint only; use that one"
        raise ConfigError(f"{fields.path}: {problem}")
    for name, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if fields.positive(name, value) != value:
            raise fields.wrong(name, f"{value}")
    fields = with_default_rope(fields, _GPT_OSS_ROPE)
    config = read_decoder(
        fields,
        context=context,
        max_positions=131_072,
        num_kv_heads=8,
        head_dim=64,
        eps=("rms_norm_eps", 1e-5),
        rope=RopeDefaults(theta=150_000.0),
        activation="clamped_swiglu",
        attention_bias=fields.flag("attention_bias", True),
        windows=windows_of(fields, alternating_types(fields, 2), read_window(fields, 128)),
    )
    if config.hidden_size % BLOCK or config.intermediate_size % BLOCK:
        raise fields.error("hidden_size and intermediate_size", f"must be multiples of {BLOCK}")
    experts = read_experts(fields, size=config.intermediate_size, count=128, per_token=4)
    experts = replace(experts, has_router_bias=True, is_mxfp4=True)
    return replace(config, has_sinks=True, experts=experts)
