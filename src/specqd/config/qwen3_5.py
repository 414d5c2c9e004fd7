"""Qwen 3.5: gated DeltaNet layers between layers of gated attention, and norms around zero."""

from dataclasses import replace

from specqd.config.decoder import DecoderConfig, layer_count, read_decoder
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.mtp import MtpConfig, read_mtp
from specqd.config.recurrent import MOST_TAPS, DeltaConfig, read_recurrent_layers
from specqd.config.rope import RopeDefaults
from specqd.config.tensor_names import MtpNames

_RECURRENT = "linear_attention"
_LARGEST_HEAD = 256  # of recurrent layers


def read_qwen3_5(fields: Fields, context: int | None) -> DecoderConfig:
    """A quarter of each head rotates. The sections of `mrope` are for images and change no text."""
    if not fields.flag("attn_output_gate", True):
        raise fields.wrong("attn_output_gate", "true")
    if fields.get("output_gate_type") not in (None, "swish", "silu"):
        raise fields.wrong("output_gate_type", "swish")
    config = read_decoder(
        fields,
        context=context,
        max_positions=32768,
        num_kv_heads=4,
        head_dim=256,
        rope=RopeDefaults(share=0.25),
        attention_bias=fields.flag("attention_bias"),
    )
    if config.activation != "silu":
        raise fields.wrong("hidden_act", "silu")
    return replace(
        config,
        qk_norm="one",
        norm_offset=1.0,
        attention_gates="values",
        recurrent=_read_delta(fields),
        mtp=read_mtp(fields, MtpConfig()),
    )


def _read_delta(fields: Fields) -> DeltaConfig:
    key_heads = fields.integer("linear_num_key_heads", 16)
    value_heads = fields.integer("linear_num_value_heads", 32)
    if value_heads % key_heads:
        problem = f"{value_heads} is not a multiple of {key_heads} key heads"
        raise fields.error("linear_num_value_heads", problem)
    key_dim = fields.integer("linear_key_head_dim", 128, most=_LARGEST_HEAD)
    value_dim = fields.integer("linear_value_head_dim", 128, most=_LARGEST_HEAD)
    if key_dim % 2:
        raise fields.wrong("linear_key_head_dim", "an even number")
    if value_dim % 16:
        raise fields.wrong("linear_value_head_dim", "a multiple of 16")
    taps = fields.integer("linear_conv_kernel_dim", 4, most=MOST_TAPS)
    layers = layer_count(fields)
    if fields.get("layer_types") is None:
        interval = fields.integer("full_attention_interval", 4)
        types = [_RECURRENT if (i + 1) % interval else "full_attention" for i in range(layers)]
        fields = fields.with_values(layer_types=types)
    recurrent = read_recurrent_layers(fields, layers, _RECURRENT, older=("mamba",))
    return DeltaConfig(key_heads, value_heads, key_dim, value_dim, taps, recurrent)


def qwen_mtp(_: int) -> MtpNames:
    return MtpNames(
        prefix="mtp.",
        layers="mtp.layers",
        embedding_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        projection="mtp.fc",
        final_norm="mtp.norm",
    )


FAMILIES = {"qwen3_5_text": Family(read_qwen3_5, mtp=qwen_mtp, wrapper="qwen3_5")}
