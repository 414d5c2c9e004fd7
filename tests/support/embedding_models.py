"""Makes models for embeddings of random models: files of sentence-transformers, base models."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.random_models import change_model


def write_modules(
    directory: Path, pooling: str, *, normalizes: bool = True, config: Mapping[str, Any] = {}
) -> None:
    """The files of sentence-transformers. `config` is added to that of the pooling."""
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    if normalizes:
        kinds["Normalize"] = "2_Normalize"
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (kind, path) in enumerate(kinds.items())
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    flags = {f"pooling_mode_{name}": False for name in ("cls_token", "max_tokens", "mean_tokens")}
    flags |= {"pooling_mode_lasttoken": False}
    name = {"mean": "pooling_mode_mean_tokens", "lasttoken": "pooling_mode_lasttoken"}[pooling]
    (directory / "1_Pooling").mkdir(exist_ok=True)
    content = {"word_embedding_dimension": 1, **flags, name: True, **config}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(content))


def write_prompts(directory: Path, prompts: Mapping[str, str], default: str | None) -> None:
    content = {"prompts": dict(prompts), "default_prompt_name": default}
    (directory / "config_sentence_transformers.json").write_text(json.dumps(content))


def as_base_model(directory: Path) -> Path:
    """Saves the model without its output head, under the names of a base model."""

    def strip(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            values = tensors.pop(name)
            if name != "lm_head.weight":
                tensors[name.removeprefix("model.")] = values

    change_model(directory, strip)
    return directory
