"""Answers batch files in this process."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specqd import LLM
from specqd.openai.batch import answer_batch, open_answers, read_batch
from support.writers import write_lines

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"


def line(custom_id: str, url: str, body: object) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def answer_file(llm: LLM, source: Path, out: Path) -> int:
    """Answers a file for the model "small", and returns the number of requests that failed."""
    batch = read_batch(source, "small")
    with open_answers(out, batch) as answers:
        return answer_batch(llm, batch, answers, lambda done, total: None)


def answered(llm: LLM, folder: Path, lines: Iterable[object]) -> list[Any]:
    """Returns the lines of the answers, in the order in which they were written."""
    out = folder / "out.jsonl"
    answer_file(llm, write_lines(folder / "in.jsonl", lines), out)
    return [json.loads(answer) for answer in out.read_text().splitlines()]


def request(custom_id: str, /, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    """Returns a line with these fields; by default a short completion."""
    short = {"prompt": "ab", "max_tokens": 4} if url == "/v1/completions" else {}
    return line(custom_id, url, short | body)


def answers_by_id(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the answers by custom_id. Each must occur once and be complete."""
    answers = [json.loads(each) for each in path.read_bytes().splitlines(keepends=True)]
    assert path.read_bytes().endswith(b"\n")
    by_id = {each["custom_id"]: each for each in answers}
    assert len(by_id) == len(answers)
    return by_id


def random_requests(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Returns seeded random requests: completions and chats, sampled and greedy."""
    lines = []
    for i in range(count):
        sampling = {"seed": rng.randrange(1 << 40), "temperature": rng.choice([0, 0.9])}
        text = "".join(rng.choices("abcdef ", k=rng.randrange(1, 40)))
        if rng.random() < 0.3:
            messages = [{"role": "user", "content": text}]
            body = {"messages": messages, "max_tokens": rng.randrange(1, 40), **sampling}
            lines.append(request(f"chat {i}", "/v1/chat/completions", **body))
        else:
            size = {"prompt": text, "max_tokens": rng.randrange(1, 40), "n": rng.choice([1, 1, 3])}
            lines.append(request(f"text {i}", **size, **sampling))
    return lines
