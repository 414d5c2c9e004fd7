"""Granite: Llama with scales on embeddings, scores, residual branches and logits."""

from dataclasses import replace

from specqd.config.decoder import (
    DecoderConfig,
    layer_count,
    read_decoder,
    read_experts,
    read_layer_types,
    read_window,
    windows_of,
)
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.llama import read_llama
from specqd.config.rope import RopeConfig, RopeDefaults, read_rope, rope_fields
from specqd.config.tensor_names import LLAMA
from specqd.errors import shown


def read_granite(fields: Fields, context: int | None) -> DecoderConfig:
    return _with_scales(fields, read_llama(fields, context))


def _with_scales(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    return replace(
        config,
        attention_scale=fields.positive("attention_multiplier", 1.0),
        embedding_scale=fields.positive("embedding_multiplier", 1.0),
        residual_scale=fields.positive("residual_multiplier", 1.0),
        logit_scale=1.0 / fields.positive("logits_scaling", 1.0),
    )


def read_granite_swa(fields: Fields, context: int | None) -> DecoderConfig:
    """Granite with sinks, windows on three of four layers, and a base of the rope for each layer;
    0 is a layer without positions."""
    layers, positions = layer_count(fields), 8192
    types = read_layer_types(fields) or [
        "sliding_attention" if layer % 4 else "full_attention" for layer in range(layers)
    ]
    config = read_decoder(
        fields,
        context=context,
        max_positions=positions,
        bos=(100_257,),
        eos=(100_257,),
        num_kv_heads=4,
        eps=("rms_norm_eps", 1e-5),
        tied=True,
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        windows=windows_of(fields, types, read_window(fields, 128)),
    )
    return replace(
        _with_scales(fields, config),
        has_sinks=True,
        ropes=_ropes_by_base(fields, config, positions, context),
    )


def _ropes_by_base(
    fields: Fields, config: DecoderConfig, max_positions: int, context: int | None
) -> tuple[RopeConfig | None, ...]:
    bases = fields.get("layer_rope_theta")
    if bases is None:
        return config.ropes
    if not isinstance(bases, list) or len(bases) != config.num_layers:
        raise fields.wrong("layer_rope_theta", f"a list of {config.num_layers} numbers")
    positions = fields.integer("max_position_embeddings", max_positions)

    def rope(base: object) -> RopeConfig | None:
        if base == 0:
            return None
        stated = rope_fields(fields).with_values(rope_theta=base)
        return read_rope(fields, stated, positions, config.head_dim, RopeDefaults(), context)

    return tuple(map(rope, bases))


def read_granitemoe(fields: Fields, context: int | None) -> DecoderConfig:
    """Granite with experts."""
    config = read_granite(fields, context)
    experts = read_experts(fields, size=config.intermediate_size, count=8, per_token=2)
    return replace(config, experts=experts)


def read_granitemoeshared(fields: Fields, context: int | None) -> DecoderConfig:
    """The same with a shared expert, unless its size is 0."""
    config = read_granitemoe(fields, context)
    size = fields.integer("shared_intermediate_size", 0, least=0)
    if size == 0 or config.experts is None:
        return config
    experts = replace(config.experts, has_shared=True)
    return replace(config, experts=experts, intermediate_sizes=(size,) * config.num_layers)


def read_granitemoehybrid(fields: Fields, context: int | None) -> DecoderConfig:
    """Granite 4 without recurrent layers and without experts: the shared feed forward alone."""
    types = fields.get("layer_types") or fields.get("layers_block_type")
    for kind in types if isinstance(types, list) else [types]:
        if kind not in ("attention", "full_attention"):
            problem = f"has {shown(kind)}; only full_attention is supported, no recurrent layers"
            raise fields.error("layer_types", problem)
    if fields.integer("num_local_experts", 8, least=0):
        raise fields.wrong("num_local_experts", "0 (no experts, only the shared feed forward)")
    position = fields.get("position_embedding_type")
    if position not in (None, "rope", "nope"):
        raise fields.wrong("position_embedding_type", "rope, nope or null")
    width = fields.integer("shared_intermediate_size", 1024)
    fields = fields.with_values(layer_types=types, intermediate_size=width, mlp_bias=False)
    config, _ = read_granite(fields, context), read_layer_types(fields)
    return config if position == "rope" else replace(config, ropes=(None,) * config.num_layers)


_EXPERTS = replace(
    LLAMA,
    router="block_sparse_moe.router.layer",
    experts="block_sparse_moe",
    expert_stacks=("input_linear.weight", "output_linear.weight"),
    shared_gate_up=("shared_mlp.input_linear",),
    shared_down="shared_mlp.output_linear",
)
FAMILIES = {
    "granite": Family(read_granite),
    "granitemoe": Family(read_granitemoe, _EXPERTS),
    "granitemoeshared": Family(read_granitemoeshared, _EXPERTS),
    "granite_swa": Family(read_granite_swa),
    "granitemoehybrid": Family(
        read_granitemoehybrid,
        replace(LLAMA, gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear"),
    ),
}
