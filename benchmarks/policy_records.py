"""What models say at each position of a text: the records that `policy.py` replays."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from specqd import SamplingParams
from specqd._native import Rows
from specqd.bench.agreement import new_sequence
from specqd.model.model import Model


@dataclass(frozen=True, slots=True)
class Text:
    """A text of the target: its tokens, and by position what each model says and how confidently;
    each model's list begins at the first token after the prompt."""

    prompt: list[int]
    said: dict[str, list[tuple[int, float]]]

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *(token for token, _ in self.said["exact"])]


@dataclass(frozen=True, slots=True)
class Record:
    """Texts of a model at a temperature; and of each model the bytes and the multiply-adds of a
    row, relative to the exact target's."""

    model: str
    temperature: float
    bytes: dict[str, float]
    operations: dict[str, float]
    texts: list[Text]


def recorded(
    target: Model, small: Model | None, name: str, prompts: list[list[int]], params: SamplingParams
) -> Record:
    """Decodes prompts; every model says its token after each prefix, with the target's noise."""
    models = {"fp4": target.as_draft()} | ({"small": small} if small else {}) | {"exact": target}
    texts = []
    for start in range(0, len(prompts), 16):
        sequences = [
            new_sequence(prompt, params, start + i, frozenset())
            for i, prompt in enumerate(prompts[start : start + 16])
        ]
        said: list[dict[str, list[tuple[int, float]]]] = [
            {m: [] for m in models} for _ in sequences
        ]
        for model in models.values():
            for each in sequences:
                model.forward([Rows(model.context(each), 0, each.tokens[:-1], 0)])
        for _ in range(params.max_tokens or 0):
            for model_name, model in models.items():  # the target last: it shares fp4's cache
                model.forward(
                    [
                        Rows(model.context(each), len(each.tokens) - 1, [each.tokens[-1]], 1)
                        for each in sequences
                    ]
                )
                for row, each in enumerate(sequences):
                    tokens, confidences = model.verify(row, [], each)
                    said[row][model_name].append((tokens[0], round(confidences[0], 4)))
            for row, each in enumerate(sequences):
                each.tokens.append(said[row]["exact"][-1][0])
        rng = random.Random(start)
        for prompt, models_said in zip(prompts[start : start + 16], said, strict=True):
            models_said["useless"] = [
                (0, round(rng.random(), 4)) for _ in range(params.max_tokens or 0)
            ]
            texts.append(Text(prompt, models_said))
        for each in sequences:
            for model in models.values():
                model.release(each)
    exact = target.bytes_per_forward
    bf16 = target.bf16_bytes_per_forward
    read = {each: model.bytes_per_forward / exact for each, model in models.items()}
    operations = {each: model.bf16_bytes_per_forward / bf16 for each, model in models.items()}
    return Record(
        name,
        params.temperature or 0.0,
        read | {"useless": 0.05},
        operations | {"useless": 0.05},
        texts,
    )


def read_records(path: Path) -> list[Record]:
    return [
        Record(**{**each, "texts": [Text(**text) for text in each["texts"]]})
        for each in json.loads(path.read_text())
    ]
