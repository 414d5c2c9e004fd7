"""All families by `model_type`, and the names of a model's tensors."""

from collections.abc import Mapping
from dataclasses import replace

from specqd.config import (
    experts,
    gemma,
    gemma4,
    granite,
    latent,
    lfm2,
    llama,
    neox,
    qwen3_5,
    ungated,
)
from specqd.config.decoder import DecoderConfig
from specqd.config.family import Family
from specqd.config.tensor_names import MtpNames, TensorNames

FAMILIES: Mapping[str, Family] = {
    **llama.FAMILIES,
    **ungated.FAMILIES,
    **granite.FAMILIES,
    **gemma.FAMILIES,
    **gemma4.FAMILIES,
    **neox.FAMILIES,
    **qwen3_5.FAMILIES,
    **experts.FAMILIES,
    **latent.FAMILIES,
    **lfm2.FAMILIES,
}
MTP_TYPES = tuple(name for name, family in FAMILIES.items() if family.mtp)


def text_types(wrapper: str) -> tuple[str, ...]:
    """The types of text models inside a model that also reads images; else empty."""
    return tuple(name for name, family in FAMILIES.items() if family.wrapper == wrapper)


def names_of(config: DecoderConfig) -> TensorNames:
    family = FAMILIES[config.model_type]
    if family.shares_norm and config.is_parallel:
        return replace(family.names, feed_forward_norm=family.names.attention_norm)
    return family.names


def mtp_names_of(config: DecoderConfig) -> MtpNames:
    """The names of an MTP layer of this model, which must be of MTP_TYPES."""
    mtp = FAMILIES[config.model_type].mtp
    assert mtp is not None
    return mtp(config.num_layers)
