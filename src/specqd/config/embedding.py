"""Reads how a model embeds texts: from sentence-transformers' files, or a GGUF file's metadata.

Refuses by name what is not supported. Knows nothing of weights.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from specqd.config.fields import Fields
from specqd.errors import ConfigError, shown
from specqd.formats.gguf import GgufFile, is_gguf
from specqd.formats.small_file import MOST_JSON_BYTES, read_small

Pooling = Literal["last", "mean"]

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
LENGTHS = "sentence_bert_config.json"
FILES = (MODULES, "*_Pooling/config.json", PROMPTS, LENGTHS)  # patterns of all that are read
_POOLINGS: Mapping[str, Pooling] = {"lasttoken": "last", "mean": "mean"}
_FLAGS = {  # of a pooling's config.json -> the mode that it switches on
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_GGUF_POOLINGS = {0: None, 1: "mean", 2: "cls", 3: "lasttoken", 4: "rank"}
_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """The rule by which the rows of a text become its vector: the last row, or the mean of all.

    `is_shortenable` says whether a model was trained so that the first values of a vector are a
    vector, too (Matryoshka); `sizes` are the lengths for which it was trained, and empty for any.
    `prompts` are texts by name that come before a text; `default_prompt` names the one that comes
    before every text. With `pools_prompt` false, a mean leaves out the prompt's rows.
    """

    pooling: Pooling = "last"
    normalizes: bool = True
    pools_prompt: bool = True
    prompts: Mapping[str, str] | None = None
    default_prompt: str | None = None
    max_tokens: int = _MOST_TOKENS
    is_shortenable: bool = False
    sizes: tuple[int, ...] = ()


def read_embedding_config(directory: Path) -> EmbeddingConfig:
    """Reads a model directory or GGUF file. Without files of sentence-transformers, vectors are
    normalised last rows. Raises ConfigError."""
    if is_gguf(directory):
        return _of_gguf(GgufFile.open(directory))
    config = _with_sizes(EmbeddingConfig(), Fields.read(directory / "config.json"))
    if (directory / MODULES).exists():
        config = _with_modules(config, directory)
    if (directory / LENGTHS).exists():
        longest = Fields.read(directory / LENGTHS).get("max_seq_length")
        if isinstance(longest, int) and longest > 0:
            config = replace(config, max_tokens=longest)
    return _with_prompts(config, directory) if (directory / PROMPTS).exists() else config


def _with_sizes(config: EmbeddingConfig, fields: Fields) -> EmbeddingConfig:
    sizes = fields.token_ids("matryoshka_dimensions") if fields.get("matryoshka_dimensions") else ()
    is_shortenable = bool(sizes) or fields.flag("is_matryoshka")
    return replace(config, is_shortenable=is_shortenable, sizes=sizes)


def _with_modules(config: EmbeddingConfig, directory: Path) -> EmbeddingConfig:
    kinds = _modules(directory / MODULES)
    names = list(kinds)
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]):
        raise ConfigError(
            f"{directory / MODULES}: the modules {shown(', '.join(names))} are not supported; "
            "known: Transformer, Pooling, Normalize, in this order"
        )
    fields = Fields.read(directory / kinds["Pooling"] / "config.json")
    return replace(
        config,
        pooling=_pooling(fields),
        normalizes="Normalize" in kinds,
        pools_prompt=fields.flag("include_prompt", True),
    )


def _modules(path: Path) -> dict[str, str]:
    """The kinds of modules, in order, and their directories."""
    try:
        listed = json.loads(read_small(path, MOST_JSON_BYTES).decode("utf-8"))
        kinds = {str(each["type"]).rpartition(".")[2]: str(each["path"]) for each in listed}
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: is not a list of modules; fetch the model again") from error
    for place in kinds.values():
        if Path(place).name != place:
            raise ConfigError(f"{path}: the path {shown(place)} is not a directory's name")
    return kinds


def _pooling(fields: Fields) -> Pooling:
    mode = fields.text("pooling_mode")
    has_flags = any(name in fields.values for name in _FLAGS)
    if mode is None and has_flags:
        mode = "+".join(kind for name, kind in _FLAGS.items() if fields.flag(name))
    if (pooling := _POOLINGS.get(mode or "mean")) is None:  # the default of sentence-transformers
        known = " or ".join(_POOLINGS)
        raise fields.error("pooling_mode", f"{shown(mode)} is not supported; {known} is")
    return pooling


def _with_prompts(config: EmbeddingConfig, directory: Path) -> EmbeddingConfig:
    fields = Fields.read(directory / PROMPTS)
    prompts = fields.object("prompts") or {}
    for name, text in prompts.items():
        if not isinstance(text, str):
            raise fields.error(f"prompts.{shown(name)}", f"{shown(text)} is not a text")
    default = fields.text("default_prompt_name")
    if default is not None and default not in prompts:
        raise fields.error("default_prompt_name", f"{shown(default)} is not one of the prompts")
    return replace(config, prompts=prompts, default_prompt=default)


def gguf_files(gguf: GgufFile) -> dict[str, str]:
    """The files of sentence-transformers that say the same as a GGUF file; none if it says
    nothing."""
    if (mode := _gguf_mode(gguf)) is None:
        return {}
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"type": kind, "path": path} for kind, path in kinds.items()]
    pooling = {"pooling_mode": mode}
    return {MODULES: json.dumps(modules), "1_Pooling/config.json": json.dumps(pooling)}


def _of_gguf(gguf: GgufFile) -> EmbeddingConfig:
    mode = _gguf_mode(gguf)
    if mode is not None and mode not in _POOLINGS:
        known = " or ".join(_POOLINGS)
        raise ConfigError(f"{gguf.path}: pooling_type {shown(mode)} is not supported; {known} is")
    return EmbeddingConfig() if mode is None else EmbeddingConfig(_POOLINGS[mode])


def _gguf_mode(gguf: GgufFile) -> str | None:
    number = gguf.get(f"{gguf.get('general.architecture')}.pooling_type") or 0
    return _GGUF_POOLINGS.get(number, str(number)) if isinstance(number, int) else str(number)
