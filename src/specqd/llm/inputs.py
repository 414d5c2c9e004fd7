"""Checks the arguments of the Python API: prompts, sampling parameters, messages. Errors name the
argument. Knows no models."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any

from specqd.errors import FieldError, shown
from specqd.sampling import Defaults, SamplingParams

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]

_SAMPLING = frozenset(each.name for each in fields(SamplingParams))


def params_of(sampling_params: object, defaults: Defaults) -> SamplingParams:
    """The parameters, completed with the model's defaults; raises FieldError for another type."""
    if sampling_params is None:
        return SamplingParams().resolved(defaults)
    if not isinstance(sampling_params, SamplingParams):
        raise FieldError(
            "sampling_params",
            f"{shown(sampling_params)} is not a SamplingParams; write SamplingParams(max_tokens=9)",
        )
    return sampling_params.resolved(defaults)


def token_ids(name: str, value: object) -> list[int]:
    """Token ids from any sequence or array; raises FieldError for other values."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    ids = list(value) if isinstance(value, Iterable) and is_list else None
    if ids is None or not all(map(_is_whole, ids)):
        raise FieldError(name, f"{shown(value)} is not a list of token ids")
    return [int(each) for each in ids]


def prompts_of(prompts: object, name: str = "prompts") -> list[Prompt]:
    """One prompt or several, as a list; raises FieldError, which names the argument."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, bytes | Mapping):
        raise FieldError(name, f"{shown(prompts)} is not a text, token ids, or a list of them")
    many = list(prompts)
    if many and all(map(_is_whole, many)):
        return [token_ids(name, many)]
    return [
        each if isinstance(each, str) else token_ids(f"{name}[{i}]", each)
        for i, each in enumerate(many)
    ]


def is_sampling(name: str) -> bool:
    """Whether this is the name of a sampling parameter."""
    return name in _SAMPLING


def model_name(model: object, name: str = "model") -> str | Path | None:
    """The name or path of a model; raises FieldError for another type."""
    if model is not None and not isinstance(model, str | Path):
        raise FieldError(name, f"{shown(model)} is not a directory, a .gguf file or owner/name")
    return model


def directory_name(name: str, value: object) -> Path | None:
    """The path of a directory; raises FieldError for another type."""
    if value == "" or not isinstance(value, str | Path | None):
        raise FieldError(name, f"{shown(value)} is not the path of a directory")
    return None if value is None else Path(value)


def file_name(name: str, value: object) -> Path | None:
    """The path of a file; raises FieldError for another type."""
    if value == "" or not isinstance(value, str | Path | None):
        raise FieldError(name, f"{shown(value)} is not the path of a file")
    return None if value is None else Path(value)


def check_numbers(**numbers: object) -> None:
    """Raises FieldError for a value that is neither None nor a whole number."""
    for name, value in numbers.items():
        if value is not None and not _is_whole(value):
            raise FieldError(name, f"{shown(value)} is not a whole number")


def check_words(draft: object, isa: object = None) -> None:
    """Raises FieldError if `draft` or `isa` has the wrong type."""
    drafts: object = () if draft is None else [draft] if isinstance(draft, str) else draft
    if not isinstance(drafts, Sequence) or not all(isinstance(each, str) for each in drafts):
        raise FieldError("draft", f'{shown(draft)} is not a draft like "fp4", or a list of them')
    if isa is not None and not isinstance(isa, str):
        raise FieldError("isa", f"{shown(isa)} is not the name of an instruction set")


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
