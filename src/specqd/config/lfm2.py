"""LFM2 and LFM3: short convolutions between layers of attention; some have experts."""

from dataclasses import replace

from specqd.config.decoder import (
    DecoderConfig,
    SigmoidChoice,
    layer_count,
    read_decoder,
    read_experts,
    read_window,
    windows_of,
)
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.recurrent import (
    FULL,
    MOST_TAPS,
    SLIDING,
    ConvolutionConfig,
    read_recurrent_layers,
)
from specqd.config.rope import RopeDefaults, read_proportional_ropes, without_ropes
from specqd.config.tensor_names import LLAMA

_MOST_WIDTH = 2**31 - 1
_POSITIONS = 128_000


def read_lfm2(fields: Fields, context: int | None) -> DecoderConfig:
    types = _layer_types(fields)
    return _read(fields.with_values(intermediate_size=_width(fields), layer_types=types), context)


def read_lfm2_moe(fields: Fields, context: int | None) -> DecoderConfig:
    """LFM2 with experts in all layers but the first ones."""
    config = _read(fields, context)
    dense = fields.integer("num_dense_layers", 2, least=0)
    experts = read_experts(
        fields,
        size=fields.integer("moe_intermediate_size", 1792),
        count=32,
        per_token=4,
        layers=tuple(layer >= dense for layer in range(config.num_layers)),
        normalizes_routing_weights=fields.flag("norm_topk_prob", True),
    )
    choice = SigmoidChoice(
        scale=fields.positive("routed_scaling_factor", 1.0),
        weight_sum_epsilon=1e-6,
        has_bias=fields.flag("use_expert_bias", True),
    )
    return replace(config, experts=replace(experts, sigmoids=choice))


def read_lfm3(fields: Fields, context: int | None) -> DecoderConfig:
    """LFM2 with windows, norms on both sides of each block, and a gate for each attention head."""
    if not fields.flag("use_sandwich_norm", True):
        raise fields.wrong("use_sandwich_norm", "true")
    types = _lfm3_types(fields)
    fields = fields.with_values(layer_types=types).with_defaults(
        num_key_value_heads=4,
        head_dim=128,
        conv_L_cache=7,
        bos_token_id=124_894,
        eos_token_id=124_900,
    )
    config = _read(without_ropes(fields), context, may_slide=True)
    has_bias = fields.flag("attention_bias")
    return replace(
        config,
        norms="both",
        windows=windows_of(fields, types, read_window(fields, 256)),
        ropes=read_proportional_ropes(
            fields, types, _POSITIONS, config.head_dim, share=0.5, context=context
        ),
        qkv_bias=has_bias,
        output_bias=has_bias,
        attention_gates="heads" if fields.flag("use_attention_gate", True) else None,
    )


def _lfm3_types(fields: Fields) -> list[str]:
    """`layer_types`; by default every other layer has attention, in turns a window and none."""
    layers = layer_count(fields)
    if fields.get("layer_types") is not None:
        return fields.kinds("layer_types", layers, (FULL, SLIDING, "conv"))
    return [
        FULL if layer % 4 == 2 else SLIDING if layer % 4 == 0 and layer > 0 else "conv"
        for layer in range(layers)
    ]


def _read(fields: Fields, context: int | None, may_slide: bool = False) -> DecoderConfig:
    is_tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True))
    config = read_decoder(
        fields.with_values(tie_word_embeddings=is_tied),
        context=context,
        max_positions=_POSITIONS,
        bos=(1,),
        eos=(2,),
        num_kv_heads=8,
        eps=("norm_eps", 1e-5),
        rope=RopeDefaults(theta=1_000_000.0),
        activation="silu",
    )
    convolution = ConvolutionConfig(
        channels=config.hidden_size,
        taps=fields.integer("conv_L_cache", 3, least=2, most=MOST_TAPS),
        layers=read_recurrent_layers(fields, config.num_layers, "conv", may_slide=may_slide),
        has_bias=fields.flag("conv_bias"),
    )
    return replace(config, qk_norm="one", recurrent=convolution)


def _width(fields: Fields) -> int:
    """Of feed forwards: as stated, or two thirds of that, rounded up."""
    name = "intermediate_size" if fields.get("block_ff_dim") is None else "block_ff_dim"
    width = fields.integer(name)
    if fields.flag("block_auto_adjust_ff_dim", True):
        multiple = fields.integer("block_multiple_of", 256)
        width = int(fields.positive("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        width = multiple * -(-width // multiple)
    if not 1 <= width <= _MOST_WIDTH:
        problem = f"is adjusted to {width}; an integer from 1 to {_MOST_WIDTH} is needed"
        raise fields.error(name, problem)
    return width


def _layer_types(fields: Fields) -> object:
    """`layer_types`; or an old spelling, the layers with attention, which are all by default."""
    if fields.get("layer_types") is not None:
        return fields.get("layer_types")
    layers = range(layer_count(fields))
    full = list(layers) if fields.get("full_attn_idxs") is None else fields.get("full_attn_idxs")
    if not isinstance(full, list) or not all(type(layer) is int for layer in full):
        raise fields.wrong("full_attn_idxs", "a list of layers")
    if not set(full) & set(layers):
        raise fields.error("full_attn_idxs", "has no layer; one layer at least needs attention")
    return ["full_attention" if layer in full else "conv" for layer in layers]


_LFM2 = replace(
    LLAMA,
    final_norm="model.embedding_norm",
    attention_norm="operator_norm",
    feed_forward_norm="ffn_norm",
    query_norm="self_attn.q_layernorm",
    key_norm="self_attn.k_layernorm",
    output="self_attn.out_proj",
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    recurrent="conv",
    recurrent_inputs=("in_proj",),
    convolution="conv",
)
FAMILIES = {
    "lfm2": Family(read_lfm2, _LFM2, wrapper="lfm2_vl"),
    "lfm2_moe": Family(
        read_lfm2_moe,
        replace(
            _LFM2,
            router="feed_forward.gate",
            experts="feed_forward.experts",
            expert_gate_up=("w1", "w3"),
            expert_down="w2",
            correction_bias="feed_forward.expert_bias",
        ),
    ),
    "lfm3": Family(
        read_lfm3,
        replace(
            _LFM2,
            attention_gates="self_attn.gate_proj",
            query_norm=LLAMA.query_norm,
            key_norm=LLAMA.key_norm,
            output=LLAMA.output,
            attention_post_norm="post_operator_norm",
            feed_forward_post_norm="post_ffn_norm",
        ),
        wrapper="lfm3_vl",
    ),
}
