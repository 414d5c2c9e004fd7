"""Gemma: norms on both sides with weights around zero, scaled embeddings, alternating windows."""

from dataclasses import replace
from math import sqrt

from specqd.config.decoder import (
    DecoderConfig,
    layer_count,
    read_activation,
    read_decoder,
    read_layer_types,
    read_window,
    windows_of,
)
from specqd.config.fields import Fields
from specqd.config.rope import RopeDefaults, read_rope


def read_gemma2(fields: Fields, context: int | None) -> DecoderConfig:
    """Soft caps on scores and logits, a window on every other layer."""
    config = _read_gemma(fields, context, _layer_types(fields, 2), 8192)
    return replace(
        config,
        attention_softcap=_cap(fields, "attn_logit_softcapping", 50.0),
        logit_softcap=_cap(fields, "final_logit_softcapping", 30.0),
    )


def read_gemma3(fields: Fields, context: int | None) -> DecoderConfig:
    """One rope for layers with a window, another for layers without."""
    if fields.flag("use_bidirectional_attention"):
        raise fields.wrong("use_bidirectional_attention", "false")
    types = _layer_types(fields, fields.integer("sliding_window_pattern", 6))
    ropes = fields.part("rope_parameters")
    is_old = fields.get("rope_scaling") is not None or not ropes.values
    full = fields.part("rope_scaling") if is_old else ropes.part("full_attention")
    local = ropes.part("sliding_attention")
    plain = Fields(fields.path, {k: v for k, v in fields.values.items() if "rope" not in k})
    config = _read_gemma(plain, context, types, 131_072)
    full_rope, local_rope = (
        read_rope(fields, rope, config.max_positions, config.head_dim, defaults, context)
        for rope, defaults in (
            (full, RopeDefaults(theta=1_000_000.0)),
            (local, RopeDefaults(theta=10_000.0, theta_name="rope_local_base_freq")),
        )
    )
    return replace(
        config,
        ropes=tuple(local_rope if kind == "sliding_attention" else full_rope for kind in types),
        qk_norm="one",
        attention_softcap=_cap(fields, "attn_logit_softcapping", None),
        logit_softcap=_cap(fields, "final_logit_softcapping", None),
    )


def _layer_types(fields: Fields, every: int) -> list[str]:
    """The stated types, or full attention on every `every`-th layer."""
    layers = range(1, layer_count(fields) + 1)
    return read_layer_types(fields) or [
        "sliding_attention" if layer % every else "full_attention" for layer in layers
    ]


def _cap(fields: Fields, name: str, default: float | None) -> float | None:
    """None for a null, the default if absent."""
    if name not in fields.values:
        return default
    return fields.positive(name) if fields.get(name) is not None else None


def _read_gemma(
    fields: Fields, context: int | None, layer_types: list[str], max_positions: int
) -> DecoderConfig:
    config = read_decoder(
        fields,
        context=context,
        max_positions=max_positions,
        bos=(2,),
        eos=(1,),
        num_kv_heads=4,
        head_dim=256,
        activation=read_activation(fields, "hidden_activation", "gelu_pytorch_tanh"),
        tied=True,
        attention_bias=fields.flag("attention_bias"),
        windows=windows_of(fields, layer_types, read_window(fields, 4096)),
    )
    return replace(
        config,
        norms="both",
        norm_offset=1.0,
        attention_scale=1.0 / sqrt(fields.positive("query_pre_attn_scalar", 256.0)),
        embedding_scale=sqrt(config.hidden_size),
    )
