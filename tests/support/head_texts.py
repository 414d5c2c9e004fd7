"""Texts under trained heads: forwarded by hand, and generated in batches."""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd import LLM, SamplingParams
from specqd._native import Rows, Sequence
from specqd.engine.generation import GenerationRequest
from specqd.model.heads import Head
from specqd.model.model import Model
from specqd.sampling import SamplingParams as Sampling
from support.engines import run_to_end
from support.reference import rms_error


class Text:
    """A text under a model and its head, forwarded by hand."""

    def __init__(self, model: Model, head: Head, tokens: SequenceOf[int]) -> None:
        self.model, self.head = model, head
        self.sequence = Sequence(list(tokens), Sampling().sampler(0, 0), len(tokens))

    def read(self, count: int | None = None) -> None:
        """The model forwards all tokens but the last, or `count` of those that are missing."""
        context = self.model.context(self.sequence)
        end = len(self.sequence.tokens) - 1
        end = end if count is None else min(end, context.length + count)
        part = self.sequence.tokens[context.length : end]
        self.model.forward([Rows(context, context.length, part, 0)])

    def rows(self) -> Rows:
        """The pairs that the head lacks, all with logits."""
        context = self.head.context(self.sequence)
        tokens = self.sequence.tokens[context.length :]
        return Rows(context, context.length, tokens, len(tokens))

    def forward(self) -> NDArray[np.float32]:
        self.head.forward([self.rows()])
        return self.head.logits()

    def guess(self, token: int) -> NDArray[np.float32]:
        self.sequence.guess([token])
        return self.forward()


PROMPT = 24  # of the goldens


def check_golden(model: Model, head: Head, golden: Mapping[str, NDArray[Any]]) -> None:
    """Asserts that the head's logits err no more than torch's in BF16: after the prompt, after
    guesses that read recycled rows, and after the true text that replaces them."""
    tokens, guesses = golden["tokens"].tolist(), golden["guesses"].tolist()
    text = Text(model, head, tokens[:PROMPT])
    text.read()
    found = [text.forward()]
    found += [text.guess(token) for token in guesses]
    text.sequence.forget_guesses(len(guesses))
    text.sequence.tokens.extend(tokens[PROMPT:])
    context = model.context(text.sequence)
    model.forward([Rows(context, PROMPT - 1, tokens[PROMPT - 1 : -1], 1)])
    assert head.context(text.sequence).length == PROMPT
    logits, wanted = np.concatenate([*found, text.forward()]), golden["logits"]
    known = np.isfinite(wanted[0])
    assert np.array_equal(np.isfinite(logits), np.isfinite(wanted))
    for part in (slice(PROMPT - 1), slice(PROMPT - 1, PROMPT + 3), slice(PROMPT + 3, None)):
        assert rms_error(logits[part, known], wanted[part, known]) <= golden["bf16_error"]


def random_text(rng: np.random.Generator, vocab: int, count: int) -> list[int]:
    return [int(token) for token in rng.integers(0, vocab, count)]


def texts(llm: LLM, rng: np.random.Generator, vocab: int, temperature: float) -> list[str]:
    """Texts of a batch of prompts with several samples each, while requests come and go."""
    prompts = [random_text(rng, vocab, count) for count in (70, 3, 130)]
    params = SamplingParams(
        temperature=temperature, seed=5, max_tokens=40, n=2, ignore_eos=True, repetition_penalty=1.1
    )
    engine = llm.engine
    first = engine.submit(GenerationRequest(prompts, params))
    for _ in range(5):
        engine.step()
    later = engine.submit(GenerationRequest([prompts[2]], params))  # its prefix is cached
    run_to_end(engine)
    return [",".join(map(str, each.tokens)) for each in (*first, *later)]
