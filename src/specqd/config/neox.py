"""The families with layer norms: GPT-NeoX (Pythia), StableLM, StarCoder2, Cohere."""

from dataclasses import replace

from specqd.config.decoder import (
    Activation,
    DecoderConfig,
    alternating_types,
    read_activation,
    read_decoder,
    read_window,
    windows_of,
)
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.rope import RopeDefaults
from specqd.config.tensor_names import LLAMA


def read_gpt_neox(fields: Fields, context: int | None) -> DecoderConfig:
    """Each head's query, key and value are fused, so there are as many of each."""
    rope = RopeDefaults(theta_name="rotary_emb_base", share=0.25, share_name="rotary_pct")
    config = read_decoder(
        fields,
        context=context,
        max_positions=2048,
        bos=(0,),
        eos=(2,),
        eps=("layer_norm_eps", 1e-5),
        rope=rope,
        activation=_read_gelu(fields, "gelu"),
        attention_bias=fields.flag("attention_bias", True),
        mlp_bias=True,
    )
    if config.num_kv_heads != config.num_heads:
        raise fields.wrong("num_key_value_heads", f"the number of heads ({config.num_heads})")
    return replace(
        config,
        norm="layer",
        is_gated=False,
        is_parallel=fields.flag("use_parallel_residual", True),
    )


def read_stablelm(fields: Fields, context: int | None) -> DecoderConfig:
    config = read_decoder(
        fields,
        context=context,
        max_positions=4096,
        bos=(0,),
        eos=(0,),
        num_kv_heads=32,
        eps=("layer_norm_eps", 1e-5),
        rope=RopeDefaults(share=0.25),
        qkv_bias=fields.flag("use_qkv_bias"),
    )
    return replace(
        config,
        norm="layer",
        qk_norm="each" if fields.flag("qk_layernorm") else None,
        is_parallel=fields.flag("use_parallel_residual"),
    )


def read_starcoder2(fields: Fields, context: int | None) -> DecoderConfig:
    bias = fields.flag("use_bias", True)
    config = read_decoder(
        fields,
        context=context,
        max_positions=4096,
        bos=(50256,),
        eos=(50256,),
        num_kv_heads=2,
        eps=("norm_epsilon", 1e-5),
        activation=_read_gelu(fields, "gelu_pytorch_tanh"),
        tied=True,
        attention_bias=bias,
        mlp_bias=bias,
        window=read_window(fields, 0),
    )
    return replace(config, norm="layer", is_gated=False)


def read_cohere(fields: Fields, context: int | None) -> DecoderConfig:
    """One norm, without a bias, before both blocks; neighbours rotate together."""
    if fields.flag("use_qk_norm"):
        raise fields.wrong("use_qk_norm", "false")
    return _read_cohere(fields, context, RopeDefaults(theta=500_000.0))


def read_cohere2(fields: Fields, context: int | None) -> DecoderConfig:
    """The same with windows; layers without one have no positions."""
    types = alternating_types(fields, fields.integer("sliding_window_pattern", 4))
    windows = windows_of(fields, types, read_window(fields, 4096))
    config = _read_cohere(fields, context, RopeDefaults(), windows)
    ropes = (rope if window else None for rope, window in zip(config.ropes, windows, strict=True))
    return replace(config, ropes=tuple(ropes))


def _read_cohere(
    fields: Fields, context: int | None, rope: RopeDefaults, windows: tuple[int, ...] = ()
) -> DecoderConfig:
    config = read_decoder(
        fields,
        context=context,
        max_positions=8192,
        bos=(5,),
        eos=(255_001,),
        eps=("layer_norm_eps", 1e-5),
        rope=rope,
        tied=True,
        attention_bias=fields.flag("attention_bias"),
        windows=windows,
    )
    return replace(
        config,
        norm="layer",
        norm_bias=False,
        is_parallel=True,
        rope_pairs="neighbours",
        logit_scale=fields.positive("logit_scale", 0.0625),
    )


def _read_gelu(fields: Fields, default: str) -> Activation:
    """The activation of a feed forward without a gate."""
    activation = read_activation(fields, "hidden_act", default)
    if activation not in ("gelu", "gelu_tanh"):
        raise fields.wrong("hidden_act", "gelu, gelu_new, gelu_fast or gelu_pytorch_tanh")
    return activation


FAMILIES = {
    "starcoder2": Family(read_starcoder2, replace(LLAMA, gate_up=("mlp.c_fc",), down="mlp.c_proj")),
    "gpt_neox": Family(
        read_gpt_neox,
        replace(
            LLAMA,
            embedding="gpt_neox.embed_in",
            layers="gpt_neox.layers",
            final_norm="gpt_neox.final_layer_norm",
            head="embed_out",
            query_key_value=("attention.query_key_value",),
            fused_by_head=True,
            output="attention.dense",
            gate_up=("mlp.dense_h_to_4h",),
            down="mlp.dense_4h_to_h",
        ),
    ),
    "cohere": Family(read_cohere, shares_norm=True),
    "cohere2": Family(read_cohere2, shares_norm=True),
    "stablelm": Family(
        read_stablelm,
        replace(LLAMA, query_norm="self_attn.q_layernorm", key_norm="self_attn.k_layernorm"),
        shares_norm=True,
    ),
}
