"""Batch files answered in this process."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specqd import LLM
from specqd.openai.batch import answer_batch, open_answers, read_batch
from support.writers import write_lines


def line(custom_id: str, url: str, body: object) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def answer_file(llm: LLM, source: Path, out: Path) -> int:
    """Answers a file for the model "small"; the number of requests that failed."""
    batch = read_batch(source, "small")
    with open_answers(out, batch) as answers:
        return answer_batch(llm, batch, answers, lambda done, total: None)


def answered(llm: LLM, folder: Path, lines: Iterable[object]) -> list[Any]:
    """The lines of the answers, in the order in which they were written."""
    out = folder / "out.jsonl"
    answer_file(llm, write_lines(folder / "in.jsonl", lines), out)
    return [json.loads(answer) for answer in out.read_text().splitlines()]
