"""The configuration of a model from `config.json`: one small reader for each `model_type`.

Takes every default, and old and new spellings, as transformers 5 does. Refuses by name what is not
supported. Knows nothing of weights.
"""

from collections.abc import Callable
from pathlib import Path

from specqd.config.decoder import DecoderConfig, ExpertsConfig
from specqd.config.experts import read_gpt_oss, read_mixtral, read_qwen3_moe
from specqd.config.fields import Fields
from specqd.config.gemma import read_gemma2, read_gemma3
from specqd.config.generation import GenerationDefaults, read_generation_defaults
from specqd.config.gguf import config_fields
from specqd.config.llama import (
    read_glm4,
    read_granite,
    read_granitemoehybrid,
    read_llama,
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
from specqd.config.rope import RopeConfig
from specqd.errors import ConfigError, shown
from specqd.formats.gguf import GgufFile, is_gguf

__all__ = [
    "DecoderConfig",
    "ExpertsConfig",
    "GenerationDefaults",
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
    "olmo2": read_olmo2,
    "olmo3": read_olmo3,
    "granite": read_granite,
    "granitemoehybrid": read_granitemoehybrid,
    "glm4": read_glm4,
    "smollm3": read_smollm3,
    "gemma2": read_gemma2,
    "gemma3_text": read_gemma3,
    "phi3": read_phi3,
    "starcoder2": read_starcoder2,
    "gpt_neox": read_gpt_neox,
    "stablelm": read_stablelm,
    "mixtral": read_mixtral,
    "qwen3_moe": read_qwen3_moe,
    "gpt_oss": read_gpt_oss,
}


def read_config(directory: Path, context: int | None = None) -> DecoderConfig:
    """Reads `config.json` of a model directory, or the metadata of a GGUF file.

    `context` bounds the length of sequences, in tokens: some ropes depend on whether that is more
    than the trained length. Raises ConfigError, in one line that names the file.
    """
    if is_gguf(directory):
        fields = config_fields(GgufFile.open(directory))
    else:
        fields = Fields.read(directory / "config.json")
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or model_type not in _READERS:
        raise fields.error(
            "model_type", f"{shown(model_type)} is not supported; known: {', '.join(_READERS)}"
        )
    if model_type != "gpt_oss":  # its checkpoints are MXFP4
        _refuse_quantised(fields)
    return _READERS[model_type](fields, context)


def _refuse_quantised(fields: Fields) -> None:
    for name in ("quantization_config", "compression_config"):
        if fields.get(name) is not None:
            method = fields.part(name).get("quant_method")
            kind = _QUANTISED.get(method, shown(method)) if isinstance(method, str) else name
            raise ConfigError(
                f"{fields.path}: this is a quantised checkpoint ({kind}), which is not supported; "
                "use the BF16 checkpoint of this model"
            )
