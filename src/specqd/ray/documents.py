"""Answers the rows of a Ray Data dataset."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
from ray.data import Dataset

from specqd.errors import RequestError
from specqd.hub import SHIPPED
from specqd.openai.batch import is_refused
from specqd.openai.extras import Json
from specqd.ray.options import absolute
from specqd.ray.worker import Worker, Workers
from specqd.sampling import seed_of

_URLS = {"prompt": "/v1/completions", "messages": "/v1/chat/completions"}


def batch(
    dataset: Dataset,
    *,
    model: str | Path | None = None,
    draft: str | Sequence[str] = (),
    request: Mapping[str, Any] | None = None,
    workers: int | None = None,
    threads: int | None = None,
    isa: str | None = None,
    small: str | None = "auto",
) -> Dataset:
    """Adds the columns `text`, `finish_reason` and `error` to a dataset of prompts or chats.

    A row needs the column `prompt` or `messages`, and may have `seed`. If a row cannot be answered,
    `error` says why. An answer depends only on the row, `request` and the model, even without a
    seed, so Ray may run rows again.

    model: a path that exists on every machine, or `owner/name`. None: the shipped model.
    draft, isa, small: as in LLM.
    request: fields of every request, such as `{"max_tokens": 64}`.
    workers: copies of the model. None: as many as the cluster has room for.
    threads: cores per worker. None: all cores of the smallest machine.

    Raises MachineError if the cluster has no room.
    """
    given = None if model is None else str(model)
    words = (draft,) if isinstance(draft, str) else tuple(draft)
    name = SHIPPED if given is None else Path(given).name if Path(given).is_dir() else given
    made = Workers(absolute(given), name, words, threads, isa, workers, absolute(small))
    return dataset.map_batches(
        _Rows,
        **made.placed(request=dict(request or {})),
    )


class _Rows:
    def __init__(self, workers: Workers, request: Mapping[str, Any]) -> None:
        self._request = request
        self._worker = Worker(workers)

    def __call__(self, rows: pa.Table) -> pa.Table:
        found: list[dict[str, str | None]] = []
        lines: dict[int, bytes] = {}  # by row
        for i, row in enumerate(rows.to_pylist()):
            try:
                lines[i] = _line(str(i), row, self._request)
                self._worker.check(lines[i])
                found.append({})
            except RequestError as error:
                lines.pop(i, None)
                found.append(_refused(str(error)))
        answers = self._worker.answers(list(lines.values())) if lines else []
        for i, answer in zip(lines, answers, strict=True):
            found[i] = _columns(answer)
        for name in ("text", "finish_reason", "error"):
            rows = rows.append_column(name, pa.array([each[name] for each in found], pa.string()))
        return rows


def _line(custom_id: str, row: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
    asked = [name for name in _URLS if row.get(name) is not None]
    if len(asked) != 1:
        raise RequestError("a row needs either `prompt` or `messages`; set one of the columns")
    own = {name: row[name] for name in (*asked, "seed") if row.get(name) is not None}
    entry = {"custom_id": custom_id, "method": "POST", "url": _URLS[asked[0]]}
    body = {**request, **own}
    if body.get("seed") is None:  # of the row alone: Ray decides where a row is in its block
        digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        body["seed"] = seed_of(digest)
    return json.dumps(entry | {"body": body}).encode()


def _refused(why: str) -> dict[str, str | None]:
    return {"text": None, "finish_reason": None, "error": why}


def _columns(answer: Json) -> dict[str, str | None]:
    body = answer["response"]["body"]
    if is_refused(answer):
        return _refused(body["error"]["message"])
    [choice, *_] = body["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return {"text": text, "finish_reason": choice["finish_reason"], "error": None}
