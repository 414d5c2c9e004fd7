"""The configuration of a model from `config.json`: one small reader for each `model_type`.

Takes every default, and old and new spellings, as transformers 5 does. Refuses by name what is not
supported. Knows nothing of weights.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from specqd.config.decoder import (
    AttentionConfig,
    DecoderConfig,
    ExpertsConfig,
    PerLayerConfig,
)
from specqd.config.experts import (
    read_gpt_oss,
    read_mixtral,
    read_qwen3_5_moe,
    read_qwen3_moe,
    read_qwen3_next,
)
from specqd.config.fields import Fields
from specqd.config.gemma import read_gemma2, read_gemma3
from specqd.config.gemma4 import read_gemma4
from specqd.config.generation import GenerationDefaults, read_generation_defaults
from specqd.config.gguf import config_fields
from specqd.config.latent import read_deepseek_v3, read_glm4_moe, read_glm4_moe_lite
from specqd.config.lfm2 import read_lfm2, read_lfm2_moe
from specqd.config.llama import (
    read_glm4,
    read_granite,
    read_granitemoehybrid,
    read_llama,
    read_mimo,
    read_ministral3,
    read_mistral,
    read_olmo2,
    read_olmo3,
    read_phi3,
    read_qwen2,
    read_qwen3,
    read_smollm3,
)
from specqd.config.neox import read_gpt_neox, read_stablelm, read_starcoder2
from specqd.config.qwen3_5 import read_qwen3_5
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
_READERS: dict[str, Callable[[Fields, int | None], DecoderConfig]] = {
    "llama": read_llama,
    "mistral": read_mistral,
    "ministral3": read_ministral3,
    "qwen2": read_qwen2,
    "qwen3": read_qwen3,
    "mimo": read_mimo,
    "qwen3_5_text": read_qwen3_5,
    "qwen3_5_moe_text": read_qwen3_5_moe,
    "qwen3_next": read_qwen3_next,
    "lfm2": read_lfm2,
    "lfm2_moe": read_lfm2_moe,
    "olmo2": read_olmo2,
    "olmo3": read_olmo3,
    "granite": read_granite,
    "granitemoehybrid": read_granitemoehybrid,
    "glm4": read_glm4,
    "smollm3": read_smollm3,
    "gemma2": read_gemma2,
    "gemma3_text": read_gemma3,
    "gemma4_text": read_gemma4,
    "phi3": read_phi3,
    "starcoder2": read_starcoder2,
    "gpt_neox": read_gpt_neox,
    "stablelm": read_stablelm,
    "mixtral": read_mixtral,
    "qwen3_moe": read_qwen3_moe,
    "gpt_oss": read_gpt_oss,
    "glm4_moe": read_glm4_moe,
    "glm4_moe_lite": read_glm4_moe_lite,
    "deepseek_v3": read_deepseek_v3,
}
_TEXT_PARTS = {  # wrapper -> types of its text model
    "mistral3": ("mistral", "ministral3"),
    "qwen3_5": ("qwen3_5_text",),
    "qwen3_5_moe": ("qwen3_5_moe_text",),
    "gemma4": ("gemma4_text",),
}
_BF16_CHECKPOINTS = {"ministral3": "; those of Ministral 3 have names that end in -BF16"}


def read_config(directory: Path, context: int | None = None) -> DecoderConfig:
    """Reads `config.json` of a model directory, or the metadata of a GGUF file.

    `context` bounds the length of sequences, in tokens: some ropes depend on whether that is more
    than the trained length. Raises ConfigError, in one line that names the file.
    """
    if is_gguf(directory):
        fields = config_fields(GgufFile.open(directory))
    else:
        fields = Fields.read(directory / "config.json")
    model_type = _model_type(fields, (*_READERS, *_TEXT_PARTS))
    whole = fields
    if model_type in _TEXT_PARTS:
        fields, known = _text_part(whole), _TEXT_PARTS[model_type]
        model_type = _model_type(fields, known)
    if model_type != "gpt_oss":  # its checkpoints are MXFP4
        for part in (whole, fields):
            _refuse_quantised(part, model_type)
    return _READERS[model_type](fields, context)


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


def _refuse_quantised(fields: Fields, model_type: str) -> None:
    where = _BF16_CHECKPOINTS.get(model_type, "")
    for name in ("quantization_config", "compression_config"):
        if fields.get(name) is not None:
            method = fields.part(name).get("quant_method")
            kind = _QUANTISED.get(method, shown(method)) if isinstance(method, str) else name
            raise ConfigError(
                f"{fields.path}: this is a quantised checkpoint ({kind}), which is not supported; "
                f"use the BF16 checkpoint of this model{where}"
            )
