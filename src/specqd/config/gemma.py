"""Gemma: norms with weights around zero, scaled embeddings; since Gemma 2 norms on both sides and
alternating windows."""

from dataclasses import replace
from math import sqrt

from specqd.config.decoder import (
    DecoderConfig,
    alternating_types,
    read_activation,
    read_decoder,
    read_window,
    windows_of,
)
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.rope import RopeDefaults, read_ropes_by_type, without_ropes
from specqd.config.tensor_names import NORMS_AROUND


def read_gemma(fields: Fields, context: int | None) -> DecoderConfig:
    """The first Gemma: norms before both blocks, full attention. Its `gelu` means `gelu_tanh`."""
    if fields.flag("use_bidirectional_attention"):
        raise fields.wrong("use_bidirectional_attention", "false")
    activation = read_activation(fields, "hidden_act", "gelu_pytorch_tanh")
    config = read_decoder(
        fields,
        context=context,
        max_positions=8192,
        bos=(2,),
        eos=(1,),
        num_kv_heads=16,
        head_dim=256,
        activation="gelu_tanh" if activation == "gelu" else activation,
        tied=True,
        attention_bias=fields.flag("attention_bias"),
    )
    return replace(config, norm_offset=1.0, embedding_scale=sqrt(config.hidden_size))


def read_gemma2(fields: Fields, context: int | None) -> DecoderConfig:
    """Soft caps on scores and logits, a window on every other layer."""
    config = _read_gemma(fields, context, alternating_types(fields, 2), 8192)
    return replace(
        config,
        attention_softcap=read_cap(fields, "attn_logit_softcapping", 50.0),
        logit_softcap=read_cap(fields, "final_logit_softcapping", 30.0),
    )


def read_gemma3(fields: Fields, context: int | None) -> DecoderConfig:
    """One rope for layers with a window, another for layers without.

    Text parts of models that also read images leave out what has its default.
    """
    fields = fields.with_defaults(num_attention_heads=8, vocab_size=262_208)
    if fields.flag("use_bidirectional_attention"):
        raise fields.wrong("use_bidirectional_attention", "false")
    types = alternating_types(fields, fields.integer("sliding_window_pattern", 6))
    config = _read_gemma(without_ropes(fields), context, types, 131_072)
    return replace(
        config,
        ropes=read_ropes_by_type(
            fields,
            types,
            131_072,
            config.head_dim,
            full=RopeDefaults(theta=1_000_000.0),
            sliding=RopeDefaults(theta=10_000.0, theta_name="rope_local_base_freq"),
            context=context,
        ),
        qk_norm="one",
        attention_softcap=read_cap(fields, "attn_logit_softcapping", None),
        logit_softcap=read_cap(fields, "final_logit_softcapping", None),
    )


def read_cap(fields: Fields, name: str, default: float | None) -> float | None:
    """None for a null, the default if absent."""
    if name not in fields.values:
        return default
    return fields.positive(name) if fields.get(name) is not None else None


def _read_gemma(
    fields: Fields, context: int | None, layer_types: list[str], max_positions: int
) -> DecoderConfig:
    windows = windows_of(fields, layer_types, read_window(fields, 4096))
    return replace(
        read_gemma_decoder(fields, context, max_positions, windows),
        norm_offset=1.0,
        attention_scale=1.0 / sqrt(fields.positive("query_pre_attn_scalar", 256.0)),
    )


def read_gemma_decoder(
    fields: Fields, context: int | None, max_positions: int, windows: tuple[int, ...]
) -> DecoderConfig:
    """Reads the fields that all of Gemma's families have."""
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
        windows=windows,
    )
    return replace(config, norms="both", embedding_scale=sqrt(config.hidden_size))


FAMILIES = {
    "gemma": Family(read_gemma),
    "gemma2": Family(read_gemma2, NORMS_AROUND),
    "gemma3_text": Family(read_gemma3, NORMS_AROUND, wrapper="gemma3"),
}
