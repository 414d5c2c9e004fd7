"""The families that are Llama but for a feed forward without a gate: Arcee, Apertus."""

from dataclasses import replace

from specqd.config.decoder import Activation, DecoderConfig, read_decoder
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.rope import RopeDefaults, with_default_rope
from specqd.config.tensor_names import LLAMA

_APERTUS_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def read_arcee(fields: Fields, context: int | None) -> DecoderConfig:
    """Squared ReLUs."""
    config = read_decoder(
        fields,
        context=context,
        max_positions=4096,
        bos=(128000,),
        eos=(128001,),
        eps=("rms_norm_eps", 1e-5),
        activation=_only(fields, "relu2", "relu_squared"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
    )
    return replace(config, is_gated=False)


def read_apertus(fields: Fields, context: int | None) -> DecoderConfig:
    """xIELU, whose parameters each layer learns, and norms of queries and keys."""
    config = read_decoder(
        with_default_rope(fields, _APERTUS_ROPE),
        context=context,
        max_positions=65536,
        bos=(1,),
        eos=(2,),
        eps=("rms_norm_eps", 1e-5),
        rope=RopeDefaults(theta=12_000_000.0),
        activation=_only(fields, "xielu", "xielu"),
        attention_bias=fields.flag("attention_bias"),
    )
    return replace(config, is_gated=False, qk_norm="one")


def _only(fields: Fields, name: str, activation: Activation) -> Activation:
    """The family's activation, which `hidden_act` may only repeat."""
    if fields.get("hidden_act") not in (None, name):
        raise fields.wrong("hidden_act", name)
    return activation


_UNGATED = replace(LLAMA, gate_up=("mlp.up_proj",))
FAMILIES = {
    "arcee": Family(read_arcee, _UNGATED),
    "apertus": Family(
        read_apertus,
        replace(
            _UNGATED,
            attention_norm="attention_layernorm",
            feed_forward_norm="feedforward_layernorm",
        ),
    ),
}
