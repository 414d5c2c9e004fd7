"""Gemma 4: heads by layer type, shared keys and values, embeddings by layer."""

from collections.abc import Sequence
from dataclasses import replace

from specqd.config.decoder import (
    AttentionConfig,
    DecoderConfig,
    ExpertsConfig,
    PerLayerConfig,
    alternating_types,
    check_heads,
    read_experts,
    read_window,
    windows_of,
)
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.gemma import read_cap, read_gemma_decoder
from specqd.config.rope import read_proportional_ropes, without_ropes
from specqd.config.tensor_names import EXPERT_STACKS, LLAMA, NORMS_AROUND

_POSITIONS = 131_072
_FULL = "full_attention"


def read_gemma4(fields: Fields, context: int | None) -> DecoderConfig:
    """With or without embeddings by layer and experts; scores are not scaled."""
    _refuse_what_is_missing(fields)
    # The last layer always sees all positions, as in transformers.
    types = [*alternating_types(fields, 6)[:-1], _FULL]
    windows = windows_of(fields, types, read_window(fields, 512))
    config = read_gemma_decoder(without_ropes(fields), context, _POSITIONS, windows)
    attentions = _read_attentions(fields, types, config)
    width, is_wide = config.intermediate_size, fields.flag("use_double_wide_mlp")
    return replace(
        config,
        ropes=read_proportional_ropes(
            fields, types, _POSITIONS, attentions[-1].head_dim, share=0.25, context=context
        ),
        qk_norm="one",
        norms_values=True,
        attention_scale=1.0,
        attentions=attentions,
        intermediate_sizes=tuple(
            width * 2 if is_wide and each.kv_layer is not None else width for each in attentions
        ),
        logit_softcap=read_cap(fields, "final_logit_softcapping", None),
        per_layer=_read_per_layer(fields, config.vocab_size),
        scales_layers=True,
        experts=_read_experts(fields) if fields.flag("enable_moe_block") else None,
    )


def read_gemma4_unified(fields: Fields, context: int | None) -> DecoderConfig:
    """Gemma 4 without embeddings by layer and without experts."""
    defaults = fields.with_defaults(sliding_window=1024, max_position_embeddings=262_144)
    absent = {"hidden_size_per_layer_input": 0, "enable_moe_block": False}
    return read_gemma4(defaults.with_values(**absent), context)


def _refuse_what_is_missing(fields: Fields) -> None:
    if fields.get("use_bidirectional_attention") not in (None, "vision"):
        raise fields.wrong("use_bidirectional_attention", "null or 'vision'")
    if fields.get("rope_scaling") is not None:
        raise fields.wrong("rope_scaling", "null, and rope_parameters by layer type,")


def _read_experts(fields: Fields) -> ExpertsConfig:
    """Every layer has experts, and a feed forward for all rows."""
    experts = read_experts(
        fields,
        size=fields.integer("moe_intermediate_size"),
        count=None,
        per_token=None,
        per_token_name="top_k_experts",
    )
    return replace(experts, has_shared=True, has_own_norms=True)


def _read_attentions(
    fields: Fields, types: Sequence[str], config: DecoderConfig
) -> tuple[AttentionConfig, ...]:
    """The last layers read the keys and values of the last layer of their type before them."""
    num_shared = fields.integer("num_kv_shared_layers", 0, least=0, most=config.num_layers)
    first_shared = config.num_layers - num_shared
    values_are_keys = fields.flag("attention_k_eq_v")
    own = [
        AttentionConfig(*heads, values_are_keys=values_are_keys and kind == _FULL)
        for kind, heads in zip(types, _read_heads(fields, types, config), strict=True)
    ]
    for layer in range(first_shared, config.num_layers):
        before = [i for i in range(first_shared) if types[i] == types[layer]]
        if not before or own[before[-1]] != own[layer]:
            raise fields.error(
                "num_kv_shared_layers",
                f"is {num_shared}, but no layer before those that share is like layer {layer}",
            )
        own[layer] = replace(own[layer], values_are_keys=False, kv_layer=before[-1])
    return tuple(own)


def _read_heads(
    fields: Fields, types: Sequence[str], config: DecoderConfig
) -> list[tuple[int, int]]:
    """Key/value heads and their size by layer: in the published fields, or as transformers saves
    them, in `per_layer_config`."""
    kv_heads, dim = config.num_kv_heads, config.head_dim
    full_kv_heads = kv_heads
    if fields.flag("attention_k_eq_v"):
        full_kv_heads = fields.integer("num_global_key_value_heads", kv_heads)
    full = full_kv_heads, fields.integer("global_head_dim", 512)
    heads = [full if kind == _FULL else (kv_heads, dim) for kind in types]
    if fields.get("per_layer_config") is not None:
        saved = fields.part("per_layer_config")
        keys = {int(key): key for key in saved.values if key.isdecimal()}  # with leading zeros
        layers = [saved.part(keys.get(layer, "")) for layer in range(config.num_layers)]
        heads = [
            (own.integer("num_key_value_heads", kv_heads), own.integer("head_dim", dim))
            for own in layers
        ]
    for each in set(heads):
        check_heads(fields, config.num_heads, *each)
    return heads


def _read_per_layer(fields: Fields, vocab_size: int) -> PerLayerConfig | None:
    name = "hidden_size_per_layer_input"
    size = fields.integer(name, 0 if name in fields.values else 256, least=0, most=1 << 16)
    if size == 0:
        return None
    rows = fields.integer("vocab_size_per_layer_input", 262_144)
    if rows < vocab_size:
        raise fields.wrong("vocab_size_per_layer_input", f"at least vocab_size ({vocab_size})")
    return PerLayerConfig(size, rows)


FAMILIES = {
    "gemma4_text": Family(
        read_gemma4,
        replace(
            NORMS_AROUND,
            router="router.proj",
            experts="experts",
            expert_stacks=EXPERT_STACKS,
            shared_gate_up=LLAMA.gate_up,
            shared_down=LLAMA.down,
            experts_norm="pre_feedforward_layernorm_2",
            experts_post_norm="post_feedforward_layernorm_2",
            shared_post_norm="post_feedforward_layernorm_1",
            router_norm="router.scale",
            expert_scales="router.per_expert_scale",
        ),
        wrapper="gemma4",
    ),
    "gemma4_unified_text": Family(read_gemma4_unified, NORMS_AROUND, wrapper="gemma4_unified"),
}
