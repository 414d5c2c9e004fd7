"""The families that are Llama with a trait or two: RMS norms, a gated feed forward, one rope."""

from dataclasses import replace

from specqd.config.decoder import (
    DecoderConfig,
    layer_count,
    read_decoder,
    read_layer_types,
    read_window,
    windows_of,
)
from specqd.config.fields import Fields
from specqd.config.rope import RopeDefaults


def read_llama(fields: Fields, context: int | None) -> DecoderConfig:
    return read_decoder(
        fields,
        context=context,
        max_positions=2048,
        bos=(1,),
        eos=(2,),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
    )


def read_mistral(fields: Fields, context: int | None) -> DecoderConfig:
    return read_decoder(
        fields,
        context=context,
        max_positions=4096 * 32,
        bos=(1,),
        eos=(2,),
        num_kv_heads=8,
        window=read_window(fields, 4096),
    )


def read_qwen2(fields: Fields, context: int | None) -> DecoderConfig:
    return read_decoder(
        fields,
        context=context,
        max_positions=32768,
        num_kv_heads=32,
        qkv_bias=True,
        windows=_qwen_windows(fields),
    )


def read_qwen3(fields: Fields, context: int | None) -> DecoderConfig:
    config = read_decoder(
        fields,
        context=context,
        max_positions=32768,
        num_kv_heads=32,
        head_dim=128,
        attention_bias=fields.flag("attention_bias"),
        windows=_qwen_windows(fields),
    )
    return replace(config, qk_norm="one")


def _qwen_windows(fields: Fields) -> tuple[int, ...]:
    num_layers = layer_count(fields)
    window = read_window(fields, 4096) if fields.flag("use_sliding_window") else 0
    layer_types = read_layer_types(fields)
    if layer_types is None:
        first = fields.integer("max_window_layers", 28, least=0)
        return tuple(window if layer >= first else 0 for layer in range(num_layers))
    return windows_of(fields, layer_types, window)


def read_olmo2(fields: Fields, context: int | None) -> DecoderConfig:
    """Norms after attention and feed forward, and over whole rows of queries and keys."""
    if fields.get("clip_qkv") is not None:
        raise fields.wrong("clip_qkv", "null (no clipping)")
    config = read_decoder(
        fields,
        context=context,
        max_positions=2048,
        eos=(50279,),
        eps=("rms_norm_eps", 1e-5),
        attention_bias=fields.flag("attention_bias"),
    )
    return replace(config, norms="after", qk_norm="row")


def read_granite(fields: Fields, context: int | None) -> DecoderConfig:
    """Llama with scales on embeddings, scores, residual branches and logits."""
    return replace(
        read_llama(fields, context),
        attention_scale=fields.positive("attention_multiplier", 1.0),
        embedding_scale=fields.positive("embedding_multiplier", 1.0),
        residual_scale=fields.positive("residual_multiplier", 1.0),
        logit_scale=1.0 / fields.positive("logits_scaling", 1.0),
    )


def read_smollm3(fields: Fields, context: int | None) -> DecoderConfig:
    """Every fourth layer has no positions."""
    layers = layer_count(fields)
    interval = fields.integer("no_rope_layer_interval", 4)
    has_rope = fields.get("no_rope_layers")
    if has_rope is None:
        has_rope = [int((layer + 1) % interval != 0) for layer in range(layers)]
    if not isinstance(has_rope, list) or len(has_rope) != layers:
        raise fields.wrong("no_rope_layers", f"a list of {layers} numbers, 0 or 1")
    window = read_window(fields, 0) if fields.flag("use_sliding_window") else 0
    types = read_layer_types(fields) or [
        "sliding_attention" if window and not rope else "full_attention" for rope in has_rope
    ]
    config = read_decoder(
        fields,
        context=context,
        max_positions=32768,
        bos=(128000,),
        eos=(128001,),
        num_kv_heads=4,
        rope=RopeDefaults(theta=2_000_000.0),
        tied=True,
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        windows=windows_of(fields, types, window) if window else (),
    )
    ropes = (rope if has else None for rope, has in zip(config.ropes, has_rope, strict=True))
    return replace(config, ropes=tuple(ropes))


def read_phi3(fields: Fields, context: int | None) -> DecoderConfig:
    return read_decoder(
        fields,
        context=context,
        max_positions=4096,
        bos=(1,),
        eos=(32000,),
        eps=("rms_norm_eps", 1e-5),
        rope=RopeDefaults(share=1.0),
        window=read_window(fields, 0),
    )
