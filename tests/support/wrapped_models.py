"""Makes models that also read images from text models. Knows nothing of readers."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np

from support.random_models import read_model
from support.writers import write_safetensors

_KINDS = {"lfm2": "lfm2_vl", "lfm3": "lfm3_vl"}
Naming = Literal["model.language_model.", "language_model."]


def wrap_model(directory: Path, model: Path, naming: Naming, **more: Any) -> Path:
    """Writes the model as the text part of a `mistral3`, `qwen3_5`, `gemma4` and so on, with `more`
    entries of config.json."""
    shutil.copytree(model, directory)
    config, tensors = read_model(model)
    wrapped = {"vision_tower.weight": np.full((64, 64), 0x7FC0, np.uint16)}  # NaN, never read
    for name, bits in tensors.items():
        if naming == "language_model.":
            name = naming + name
        elif name.startswith("model."):
            name = naming + name.removeprefix("model.")
        wrapped[name] = bits
    write_safetensors(directory / "model.safetensors", wrapped)
    text = config["model_type"]
    kind = text.removesuffix("_text") if text.endswith("_text") else _KINDS.get(text, "mistral3")
    around = {"model_type": kind, "text_config": config, "vision_config": {}, **more}
    (directory / "config.json").write_text(json.dumps(around))
    return directory
