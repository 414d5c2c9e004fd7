"""Engines that a test steps itself, and samples that no engine runs."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specqd.engine.engine import Engine
from specqd.engine.generation import Generation
from specqd.sampling import SamplingParams

_KEYS = count()


def run_to_end(engine: Engine) -> None:
    while not engine.is_idle:
        engine.step()


def preempt_at_random(
    engine: Engine, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejects three of ten requests for pages, so that sequences are preempted at any time."""
    scheduler, has_pages = engine.scheduler, engine.scheduler.has_pages
    monkeypatch.setattr(
        scheduler, "has_pages", lambda ahead: rng.random() < 0.7 and has_pages(ahead)
    )


def fake_generation(tokens: int, *, new: int = 0, n: int = 1, **fields: Any) -> Generation:
    """One of n samples, with so many tokens in its prompt and new ones after it."""
    sequence: Any = SimpleNamespace(
        key=next(_KEYS), tokens=[1] * (tokens + new), prompt_length=tokens
    )
    params = SamplingParams(n=n, prompt_logprobs=fields.pop("prompt_logprobs", None))
    stream: Any = None
    return Generation(sequence, params, 0, 0, fields.pop("most_tokens", 1000), stream, **fields)
