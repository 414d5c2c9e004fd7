"""Reads OpenAI's requests for embeddings, and writes their answers. Knows no models."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd.config.fields import Fields, token_ids
from specqd.errors import FieldError

MOST_INPUTS = 2048  # OpenAI's limit
_FIELDS = ("model", "input", "encoding_format", "dimensions", "user", "prompt_name")


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A request for the vectors of texts or token ids. prompt_name: the model's prompt that comes
    before each text."""

    model: str | None
    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None
    prompt_name: str | None
    is_base64: bool


def embedding_request(body: object) -> EmbeddingRequest:
    """Reads a body of /v1/embeddings. Raises FieldError."""
    fields = Fields.of(body, _FIELDS)
    fields.text("user")
    form = fields.text("encoding_format")
    if form not in (None, "float", "base64"):
        raise fields.wrong("encoding_format", "float or base64")
    return EmbeddingRequest(
        fields.text("model"),
        _inputs(fields),
        fields.whole("dimensions", 1, 2**31 - 1),
        fields.text("prompt_name"),
        form == "base64",
    )


def _inputs(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    """One text, token ids, or a list of either."""
    given = fields.get("input")
    many = [given] if isinstance(given, str) else given
    if not isinstance(many, list) or not many:
        raise fields.wrong("input", "a text, token ids, or a list of them")
    if all(type(each) is int for each in many):
        many = [many]
    if len(many) > MOST_INPUTS:
        raise FieldError("input", f"has {len(many)} texts; give at most {MOST_INPUTS}")
    return tuple(
        each if isinstance(each, str) else token_ids(f"input[{i}]", each)
        for i, each in enumerate(many)
    )


def embedding_answer(
    model: str, vectors: NDArray[np.float32], num_tokens: int, *, is_base64: bool
) -> dict[str, Any]:
    """Returns the answer. In base64, a vector is its little-endian float32 values."""
    written: Sequence[Any] = vectors.tolist()
    if is_base64:
        rows = vectors.astype("<f4")
        written = [base64.b64encode(row.tobytes()).decode("ascii") for row in rows]
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(written)
        ],
        "model": model,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
