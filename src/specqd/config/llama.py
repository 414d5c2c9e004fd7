"""The families that are Llama with a trait or two: RMS norms, a gated feed forward, one rope."""

from dataclasses import replace
from decimal import Decimal

from specqd.config.decoder import (
    DecoderConfig,
    alternating_types,
    layer_count,
    read_decoder,
    read_layer_types,
    read_window,
    windows_of,
)
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.mtp import MtpConfig, read_mtp
from specqd.config.rope import (
    RopeConfig,
    RopeDefaults,
    read_ropes_by_type,
    rope_fields,
    with_default_rope,
    without_ropes,
)
from specqd.config.tensor_names import LLAMA, NORMS_AFTER, NORMS_AROUND, MtpNames

_MINISTRAL3_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


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


def read_ministral(fields: Fields, context: int | None) -> DecoderConfig:
    """Mistral with a window on some layers."""
    window = read_window(fields, 4096)
    kind = "sliding_attention" if window else "full_attention"
    types = read_layer_types(fields) or [kind] * layer_count(fields)
    return replace(read_mistral(fields, context), windows=windows_of(fields, types, window))


def read_ministral3(fields: Fields, context: int | None) -> DecoderConfig:
    """Mistral whose queries grow with the logarithm of their position over the trained length."""
    fields = with_default_rope(fields, _MINISTRAL3_ROPE)
    config = read_decoder(
        fields,
        context=context,
        max_positions=262_144,
        bos=(1,),
        eos=(2,),
        num_kv_heads=8,
        head_dim=128,
        eps=("rms_norm_eps", 1e-5),
        window=read_window(fields, 0),
    )
    settings, [rope] = rope_fields(fields), config.distinct_ropes
    growth = settings.optional_number("llama_4_scaling_beta", 0.0, 1e30)
    if not growth:
        return config
    original = rope.original_max_positions or settings.integer("original_max_position_embeddings")
    rope = replace(rope, query_growth=growth, original_max_positions=original)
    return replace(config, ropes=(rope,) * config.num_layers)


def read_qwen2(fields: Fields, context: int | None) -> DecoderConfig:
    return read_decoder(
        fields,
        context=context,
        max_positions=32768,
        num_kv_heads=32,
        qkv_bias=True,
        windows=_qwen_windows(fields),
    )


def read_mimo(fields: Fields, context: int | None) -> DecoderConfig:
    """Qwen 2 with MTP layers after the last layer."""
    family = MtpConfig(hidden_first=True, blanks_first=True)
    return replace(read_qwen2(fields, context), mtp=read_mtp(fields, family))


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


def read_qwen3_vl(fields: Fields, context: int | None) -> DecoderConfig:
    """The text part of Qwen 3 VL. The sections of `mrope` are for images and change no text."""
    defaults = fields.with_defaults(max_position_embeddings=128_000, rope_theta=500_000.0)
    return read_qwen3(defaults, context)


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


def read_olmo3(fields: Fields, context: int | None) -> DecoderConfig:
    """Olmo 2 with a window on three of four layers; `rope_scaling` is that of the others.

    A top-level `rope_theta` holds for all layers, as in transformers 4; 5.23 forgets it for those
    with a window.
    """
    types, theta = alternating_types(fields, 4), RopeDefaults(theta=500_000.0)
    config = read_olmo2(without_ropes(fields), context)
    ropes = read_ropes_by_type(
        fields, types, 2048, config.head_dim, full=theta, sliding=theta, context=context
    )
    return replace(
        config, ropes=ropes, windows=windows_of(fields, types, read_window(fields, 4096))
    )


def read_glm4(fields: Fields, context: int | None) -> DecoderConfig:
    """GLM with norms around both blocks."""
    return replace(read_glm(fields, context), norms="both")


def read_glm(fields: Fields, context: int | None) -> DecoderConfig:
    """Neighbours rotate together, in half of each head."""
    if fields.get("eos_token_id") is None:  # also for a null
        fields = fields.with_values(eos_token_id=[151329, 151336, 151338])
    config = read_decoder(
        fields,
        context=context,
        max_positions=131_072,
        num_kv_heads=2,
        head_dim=128,
        eps=("rms_norm_eps", 1.5625e-07),
        rope=RopeDefaults(share=0.5),
        qkv_bias=fields.flag("attention_bias", True),
    )
    return replace(config, rope_pairs="neighbours")


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
    """The rope type `yarn` is an old name of `longrope`. The trained length is outside the rope."""
    rope = rope_fields(fields)
    if "yarn" in (rope.get("rope_type"), rope.get("type")):
        fields = fields.with_values(rope_scaling={**rope.values, "rope_type": "longrope"})
    return read_decoder(
        fields.with_defaults(original_max_position_embeddings=4096),
        context=context,
        max_positions=4096,
        bos=(1,),
        eos=(32000,),
        eps=("rms_norm_eps", 1e-5),
        rope=RopeDefaults(share=1.0),
        window=read_window(fields, 0),
    )


def read_seed_oss(fields: Fields, context: int | None) -> DecoderConfig:
    """Llama with heads of a stated size, and biases of queries, keys and values."""
    config = read_decoder(
        fields,
        context=context,
        max_positions=524_288,
        bos=(0,),
        eos=(2,),
        num_kv_heads=8,
        head_dim=128,
        qkv_bias=fields.flag("attention_bias", True),
        mlp_bias=fields.flag("mlp_bias"),
    )
    return replace(config, output_bias=fields.flag("attention_out_bias"))


def read_ernie4_5(fields: Fields, context: int | None) -> DecoderConfig:
    """Llama whose neighbouring dimensions rotate together."""
    bias = fields.flag("use_bias")
    config = read_decoder(
        fields,
        context=context,
        max_positions=131_072,
        bos=(1,),
        eos=(2,),
        num_kv_heads=2,
        head_dim=128,
        eps=("rms_norm_eps", 1e-5),
        rope=RopeDefaults(theta=500_000.0),
        tied=True,
        attention_bias=bias,
        mlp_bias=bias,
    )
    return replace(config, rope_pairs="neighbours")


def read_hunyuan(fields: Fields, context: int | None) -> DecoderConfig:
    """Norms of queries and keys after the rotation."""
    config = read_decoder(
        fields,
        context=context,
        max_positions=2048,
        bos=(1,),
        eos=(2,),
        eps=("rms_norm_eps", 1e-5),
        attention_bias=fields.flag("attention_bias"),
    )
    ropes = (_hunyuan_rope(fields, config),) * config.num_layers
    return replace(config, qk_norm="one", rotates_before_norm=True, ropes=ropes)


def _hunyuan_rope(fields: Fields, config: DecoderConfig) -> RopeConfig:
    """A `dynamic` rope with an `alpha` is a plain one with a larger base at every length.

    `Decimal` rounds the power in the same way on every platform; `math` does not.
    """
    stated, [rope] = rope_fields(fields), config.distinct_ropes
    is_dynamic = (stated.get("rope_type") or stated.get("type")) == "dynamic"
    alpha = stated.optional_number("alpha", 0.0, 1e9)
    if not is_dynamic or not alpha:
        return rope
    if alpha < 1 or config.head_dim == 2:
        raise stated.wrong("alpha", "a number from 1, with a head_dim above 2,")
    power = Decimal(config.head_dim) / (config.head_dim - 2)
    theta = rope.theta * float(Decimal(alpha) ** power)
    return replace(rope, theta=stated.with_values(rope_theta=theta).positive("rope_theta"))


def read_helium(fields: Fields, context: int | None) -> DecoderConfig:
    """Neighbours rotate together; biases of queries, keys and values alone."""
    config = read_decoder(
        fields,
        context=context,
        max_positions=4096,
        bos=(1,),
        eos=(2,),
        num_kv_heads=20,
        head_dim=128,
        eps=("rms_norm_eps", 1e-8),
        rope=RopeDefaults(theta=100_000.0),
        qkv_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
    )
    width = config.num_heads * config.head_dim
    if width != config.hidden_size:
        raise fields.wrong("hidden_size", f"{width}, the size of all heads,")
    return replace(config, rope_pairs="neighbours")


def read_exaone4(fields: Fields, context: int | None) -> DecoderConfig:
    """Norms after both blocks, and of heads. If layers have windows, only these have positions."""
    window = read_window(fields, 4096)
    has_pattern = window and fields.get("layer_types") is None  # else it may be a text: LLLG
    every = fields.integer("sliding_window_pattern", 4) if has_pattern else 1
    types = alternating_types(fields, every)
    config = read_decoder(
        fields,
        context=context,
        max_positions=2048,
        bos=(0,),
        eos=(2,),
        num_kv_heads=32,
        eps=("rms_norm_eps", 1e-5),
        windows=windows_of(fields, types, window),
    )
    ropes = (
        rope if own or not window else None
        for rope, own in zip(config.ropes, config.windows, strict=True)
    )
    return replace(config, norms="after", qk_norm="one", ropes=tuple(ropes))


def _mimo_mtp(_: int) -> MtpNames:
    at = "model.mtp_layers.0"  # holds the other modules too
    return MtpNames(
        prefix="model.mtp_layers.",
        layers="model.mtp_layers",
        embedding_norm=f"{at}.token_layernorm",
        hidden_norm=f"{at}.hidden_layernorm",
        projection=f"{at}.input_proj",
        final_norm=f"{at}.final_layernorm",
    )


FAMILIES = {
    "llama": Family(read_llama),
    "mistral": Family(read_mistral, wrapper="mistral3"),
    "ministral": Family(read_ministral),
    "ministral3": Family(
        read_ministral3,
        wrapper="mistral3",
        bf16_checkpoints="those of Ministral 3 have names that end in -BF16",
    ),
    "qwen2": Family(read_qwen2),
    "qwen3": Family(read_qwen3),
    "qwen3_vl_text": Family(read_qwen3_vl, wrapper="qwen3_vl"),
    "mimo": Family(read_mimo, mtp=_mimo_mtp),
    "olmo2": Family(read_olmo2, NORMS_AFTER),
    "olmo3": Family(read_olmo3, NORMS_AFTER),
    "glm": Family(read_glm, replace(LLAMA, gate_up=("mlp.gate_up_proj",))),
    "glm4": Family(
        read_glm4,
        replace(
            NORMS_AROUND,
            attention_post_norm="post_self_attn_layernorm",
            feed_forward_norm="post_attention_layernorm",
            feed_forward_post_norm="post_mlp_layernorm",
            gate_up=("mlp.gate_up_proj",),
        ),
    ),
    "smollm3": Family(read_smollm3),
    "seed_oss": Family(read_seed_oss),
    "ernie4_5": Family(read_ernie4_5),
    "hunyuan_v1_dense": Family(
        read_hunyuan,
        replace(LLAMA, query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm"),
    ),
    "helium": Family(read_helium),
    "exaone4": Family(read_exaone4, NORMS_AFTER),
    "phi3": Family(
        read_phi3,
        replace(LLAMA, query_key_value=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
    ),
}
