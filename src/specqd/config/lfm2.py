"""LFM2: short convolutions between layers of attention; later ones have experts."""

from dataclasses import replace

from specqd.config.decoder import (
    DecoderConfig,
    SigmoidChoice,
    layer_count,
    read_decoder,
    read_experts,
)
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.recurrent import MOST_TAPS, ConvolutionConfig, read_recurrent_layers
from specqd.config.rope import RopeDefaults
from specqd.config.tensor_names import LLAMA

_MOST_WIDTH = 2**31 - 1


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


def _read(fields: Fields, context: int | None) -> DecoderConfig:
    is_tied = fields.flag("tie_embedding", fields.flag("tie_word_embeddings", True))
    config = read_decoder(
        fields.with_values(tie_word_embeddings=is_tied),
        context=context,
        max_positions=128_000,
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
        layers=read_recurrent_layers(fields, config.num_layers, "conv"),
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
    "lfm2": Family(read_lfm2, _LFM2),
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
}
