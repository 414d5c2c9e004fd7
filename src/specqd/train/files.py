"""The files of a trained head: SpecForge's form. Knows no torch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specqd.config import DecoderConfig
from specqd.errors import RequestError, shown
from specqd.text.text_file import read_text_file
from specqd.train.settings import TrainSettings

CONFIG, TEXTS, STATE, COURSE = "config.json", "texts.jsonl", "training.pt", "training.json"


def head_config(config: DecoderConfig, settings: TrainSettings, theta: float) -> dict[str, Any]:
    """`config.json` of a head, as SpecForge writes it; `layer_ids_are` says what its ids mean."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": settings.ffn,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": settings.vocabulary or config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "norm_before_residual": False,
        "norm_output": False,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(settings.taps),
            "use_aux_hidden_state": True,
        },
        "layer_ids_are": "boundaries",
    }


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write to, which then replaces the one at `path` at once."""
    unfinished = path.with_name(f".{path.name}")
    yield unfinished
    unfinished.replace(path)


def write_json(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as file:
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def begin_directory(
    out: Path, settings: TrainSettings, model: str, sources: dict[str, Any]
) -> dict[str, Any]:
    """Makes the directory, or goes on in one of the same settings; returns its course so far.

    Raises RequestError for a directory of something else.
    """
    described = {"model": model, **sources, **settings.described()}
    path = out / COURSE
    if path.exists():
        course = _course(path)
        if (begun := course.get("settings")) != described:
            raise RequestError(f"{out}: {_difference(begun, described)}")
        return course
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise RequestError(f"{out}: exists and is no training of a head; name a new directory")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{out}: {error.strerror}; name another directory") from error
    course = {"settings": described}
    write_json(path, course)
    return course


def _course(path: Path) -> dict[str, Any]:
    problem = "is no course of a training; name a new directory"
    try:
        course = json.loads(read_text_file(path, "train-head", "name a new directory"))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path}: {problem}") from error
    if not isinstance(course, dict):
        raise RequestError(f"{path}: {problem}")
    return course


def _difference(begun: object, asked: dict[str, Any]) -> str:
    if not isinstance(begun, dict):
        return f"{COURSE} has no settings; name a new directory"
    name = next(name for name in [*asked, *begun] if begun.get(name) != asked.get(name))
    return (
        f"was begun with {shown(name)} {shown(begun.get(name))}, not {shown(asked.get(name))}; "
        "give the same to go on, or name a new directory"
    )
