"""Converts the configuration of a decoder to the structs of the native core."""

import numpy as np

from specqd import _native
from specqd.config import DecoderConfig
from specqd.config.recurrent import ConvolutionConfig, DeltaConfig
from specqd.config.rope import RopeConfig


def decoder_spec(config: DecoderConfig) -> _native.DecoderSpec:
    experts, recurrent = config.experts, config.recurrent
    return _native.DecoderSpec(
        hidden=config.hidden_size,
        vocabulary=config.vocab_size,
        attentions=[attention_shape(config, *heads) for heads in config.distinct_heads],
        ropes=[rope_spec(*rotation) for rotation in config.distinct_rotations],
        norm_epsilon=config.norm_eps,
        norm=config.norm,
        norm_offset=config.norm_offset,
        norms_whole_rows=config.qk_norm == "row",
        norms_after_rotation=config.rotates_before_norm,
        activation=config.activation,
        is_gated=config.is_gated,
        is_parallel=config.is_parallel,
        logit_cap=config.logit_softcap or 0.0,
        embedding_scale=config.embedding_scale,
        residual_scale=config.residual_scale,
        logit_scale=config.logit_scale,
        experts_per_token=experts.per_token if experts else 0,
        normalizes_routing_weights=experts.normalizes_routing_weights if experts else True,
        attention_gates=config.attention_gates or "none",
        states=None if recurrent is None else _state_shape(recurrent),
    )


def _state_shape(recurrent: DeltaConfig | ConvolutionConfig) -> _native.StateShape:
    delta = recurrent if isinstance(recurrent, DeltaConfig) else None
    return _native.StateShape(
        channels=recurrent.channels,
        kernel_width=recurrent.taps,
        key_heads=delta.key_heads if delta else 0,
        value_heads=delta.value_heads if delta else 0,
        key_dim=delta.key_dim if delta else 0,
        value_dim=delta.value_dim if delta else 0,
    )


def attention_shape(config: DecoderConfig, kv_heads: int, head_dim: int) -> _native.AttentionShape:
    return _native.AttentionShape(
        heads=config.num_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=config.latent.rank if config.latent else head_dim,
        scale=config.attention_scale or float(np.float32(1) / np.sqrt(np.float32(head_dim))),
        cap=config.attention_softcap or 0.0,
    )


def rope_spec(rope: RopeConfig, head_dim: int) -> _native.RopeSpec:
    rotated = int(head_dim * rope.share)
    return _native.RopeSpec(
        kind=rope.kind,
        dims=head_dim if rope.kind == "proportional" else rotated,
        theta=rope.theta,
        factor=rope.factor,
        original_max_positions=rope.original_max_positions,
        low_freq_factor=rope.low_freq_factor,
        high_freq_factor=rope.high_freq_factor,
        beta_fast=rope.beta_fast,
        beta_slow=rope.beta_slow,
        attention_factor=rope.attention_factor or 0.0,
        mscale=rope.mscale,
        mscale_all_dim=rope.mscale_all_dim,
        truncate=rope.truncate,
        factors=np.array(rope.factors, np.float32),
        query_growth=rope.query_growth,
        turning_pairs=rotated // 2,
    )
