"""The configuration of a model from `config.json`: one record for each `model_type`.

Takes every default, and old and new spellings, as transformers 5 does. Refuses by name what is not
supported. Knows nothing of weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specqd.config.decoder import (
    AttentionConfig,
    DecoderConfig,
    ExpertsConfig,
    PerLayerConfig,
)
from specqd.config.families import FAMILIES, text_types
from specqd.config.fields import Fields
from specqd.config.generation import GenerationDefaults, read_generation_defaults
from specqd.config.gguf import config_fields
from specqd.config.rope import RopeConfig
from specqd.errors import ConfigError, shown
from specqd.formats.gguf import GgufFile, is_gguf

__all__ = [
    "AttentionConfig",
    "DecoderConfig",
    "ExpertsConfig",
    "GenerationDefaults",
    "PerLayerConfig",
    "RopeConfig",
    "read_config",
    "read_generation_defaults",
]

_QUANTISED = {  # quant_method -> its usual name
    "gptq": "GPTQ",
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "fp8": "FP8",
    "fbgemm_fp8": "FP8",
    "compressed-tensors": "compressed-tensors",
    "mxfp4": "MXFP4",
}
_WRAPPERS = tuple(dict.fromkeys(each.wrapper for each in FAMILIES.values() if each.wrapper))


def read_config(directory: Path, context: int | None = None) -> DecoderConfig:
    """Reads `config.json` of a model directory, or the metadata of a GGUF file.

    `context` bounds the length of sequences, in tokens: some ropes depend on whether that is more
    than the trained length. Raises ConfigError, in one line that names the file.
    """
    if is_gguf(directory):
        fields = config_fields(GgufFile.open(directory))
    else:
        fields = Fields.read(directory / "config.json")
    return read_decoder_config(fields, context)


def read_decoder_config(fields: Fields, context: int | None = None) -> DecoderConfig:
    """The same for the members of a `config.json`."""
    model_type = _model_type(fields, (*FAMILIES, *_WRAPPERS))
    whole, known = fields, text_types(model_type)
    if known:
        fields = _text_part(whole)
        model_type = _model_type(fields, known)
    family = FAMILIES[model_type]
    if not family.is_mxfp4:
        for part in (whole, fields):
            _refuse_quantised(part, family.bf16_checkpoints)
    config = family.read(fields, context)
    return config if fields.flag("is_causal", True) else _in_both_directions(fields, config)


def _in_both_directions(fields: Fields, config: DecoderConfig) -> DecoderConfig:
    """A decoder whose rows attend to later rows, too, as some embedding models do."""
    if any(config.windows) or any(config.recurrent_layers):
        problem = "is false: this is supported only for full attention on all layers"
        raise fields.error("is_causal", problem)
    return replace(config, causal=(False,) * config.num_layers)


def _model_type(fields: Fields, known: Sequence[str]) -> str:
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in known:
        raise fields.error(
            "model_type", f"{shown(model_type)} is not supported; known: {', '.join(known)}"
        )
    return model_type


def _text_part(fields: Fields) -> Fields:
    """The text model's fields of a model that also reads images.

    The wrapper says whether embeddings are tied; its token ids hold where the text part has none.
    """
    if fields.object("text_config") is None:
        raise fields.wrong("text_config", "an object")
    text = fields.part("text_config")
    ids = {
        name: fields.values[name]
        for name in ("bos_token_id", "eos_token_id")
        if name in fields.values and name not in text.values
    }
    is_tied = fields.flag("tie_word_embeddings", True)
    return text.with_values(**ids, tie_word_embeddings=is_tied)


def _refuse_quantised(fields: Fields, bf16_checkpoints: str) -> None:
    where = f"; {bf16_checkpoints}" if bf16_checkpoints else ""
    for name in ("quantization_config", "compression_config"):
        if fields.get(name) is not None:
            method = fields.part(name).get("quant_method")
            kind = _QUANTISED.get(method, shown(method)) if isinstance(method, str) else name
            raise ConfigError(
                f"{fields.path}: this is a quantised checkpoint ({kind}), which is not supported; "
                f"use the BF16 checkpoint of this model{where}"
            )
