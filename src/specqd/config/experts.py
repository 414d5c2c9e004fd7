"""The families whose feed forwards are a mixture of experts: Mixtral, Qwen3-MoE."""

from dataclasses import replace

from specqd.config.decoder import (
    DecoderConfig,
    layer_count,
    read_decoder,
    read_experts,
    read_window,
)
from specqd.json_fields import Fields
from specqd.rope import RopeDefaults


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
        windows=(read_window(fields, 0),) * layer_count(fields),
    )
    experts = read_experts(fields, size=config.intermediate_size, count=8, per_token=2)
    return replace(config, experts=experts)


def read_qwen3_moe(fields: Fields, context: int | None) -> DecoderConfig:
    """Experts in every so many layers, the plain feed forward in the others."""
    bias, layers = fields.flag("attention_bias", False), layer_count(fields)
    window = read_window(fields, 4096) if fields.flag("use_sliding_window", False) else 0
    config = read_decoder(
        fields,
        context=context,
        max_positions=32768,
        num_kv_heads=4,
        qkv_bias=bias,
        output_bias=bias,
        windows=(window,) * layers,
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
        shares_of_chosen=fields.flag("norm_topk_prob", False),
    )
    return replace(config, qk_norm="one", experts=experts)
