"""The families that are Llama but for a feed forward without a gate: Arcee."""

from dataclasses import replace

from specqd.config.decoder import Activation, DecoderConfig, read_decoder
from specqd.config.family import Family
from specqd.config.fields import Fields
from specqd.config.tensor_names import LLAMA


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


def _only(fields: Fields, name: str, activation: Activation) -> Activation:
    """The family's activation, which `hidden_act` may only repeat."""
    if fields.get("hidden_act") not in (None, name):
        raise fields.wrong("hidden_act", name)
    return activation


_UNGATED = replace(LLAMA, gate_up=("mlp.up_proj",))
FAMILIES = {
    "arcee": Family(read_arcee, _UNGATED),
}
