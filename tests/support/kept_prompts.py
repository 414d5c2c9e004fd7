"""Runs requests of an LLM that keeps its prompts in a directory."""

from pathlib import Path
from typing import Any

import numpy as np

from specqd import LLM, SamplingParams
from specqd.engine.generation import Generation, GenerationRequest
from support.engines import run_to_end
from support.random_models import Shape

SHAPE = Shape("llama", vocab=301, context=1024)
VOCABULARY = 250  # of the prompts


def an_llm(directory: Path, kept: Path | None, size: int = 10 << 30, **options: Any) -> LLM:
    """An LLM of its own, as after a restart. It is closed at the end of a `with`."""
    given = {"draft": "none", "threads": 1, "cache_positions": 1 << 12} | options
    return LLM(directory, prompt_cache=kept, prompt_cache_size=size, **given)


def tokens_of(rng: np.random.Generator, count: int) -> list[int]:
    return rng.integers(0, VOCABULARY, count).tolist()


def run(llm: LLM, prompt: list[int], max_tokens: int = 10, salt: str = "") -> Generation:
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.8, seed=3, logprobs=2, ignore_eos=True
    )
    engine = llm.engine
    [generation] = engine.submit(GenerationRequest([prompt], params, cache_salt=salt))
    run_to_end(engine)
    return generation


def same_bits(found: Generation, expected: Generation) -> bool:
    """Whether two requests got the same tokens and log-probabilities."""
    return (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)


def pages(kept: Path) -> list[Path]:
    return sorted(kept.glob("*.page"))


def assert_bits(directory: Path, kept: Path, prompt: list[int], expected: Generation) -> None:
    with an_llm(directory, kept) as llm:
        assert same_bits(run(llm, prompt), expected)
