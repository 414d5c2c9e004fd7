"""Scores of continuations are sums of the log-softmax of the logits."""

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.errors import RequestError
from specqd.model.model import Model
from specqd.model.scoring import score


@pytest.mark.parametrize("lengths", [(1, 1), (1, 300), (63, 2), (64, 1), (65, 3), (400, 113)])
def test_a_score_is_the_sum_of_log_probabilities(
    llm: LLM, rng: np.random.Generator, lengths: tuple[int, int]
) -> None:
    tokens = rng.integers(0, llm.model.vocabulary, sum(lengths)).tolist()
    context, continuation = tokens[: lengths[0]], tokens[lengths[0] :]
    rows = llm.logprobs(tokens[:-1])[lengths[0] - 1 :]
    expected = [float(row[token]) for row, token in zip(rows, continuation, strict=True)]
    for _ in range(2):  # the second time shares the context's pages
        scored = score(llm.model, context, continuation)
        assert scored.logprob == sum(expected)
        assert scored.is_greedy == (rows.argmax(1).tolist() == continuation)
    assert llm.model.cache.free_pages == llm.model.cache.total_pages


@pytest.mark.parametrize("length", [1, 16, 17, 100])
def test_the_rows_of_a_forward_change_no_bit(
    llm: LLM, rng: np.random.Generator, length: int
) -> None:
    narrow = Model.open(llm.directory, machine=llm.model.machine, max_rows=16)
    tokens = rng.integers(0, llm.model.vocabulary, length).tolist()
    assert np.array_equal(narrow.logits(tokens), llm.model.logits(tokens))
    for cut in {1, length // 2, length - 1} - {0, length}:
        parts = tokens[:cut], tokens[cut:]
        assert score(narrow, *parts) == score(llm.model, *parts)


def test_a_greedy_completion_is_scored_as_greedy(llm: LLM, rng: np.random.Generator) -> None:
    context = rng.integers(0, 256, 20).tolist()
    written = llm.generate([context], SamplingParams(max_tokens=30, temperature=0))[0].tokens
    assert score(llm.model, context, written).is_greedy
    other = [*written[:-1], (written[-1] + 1) % 256]
    assert not score(llm.model, context, other).is_greedy


@pytest.mark.parametrize(
    ("context", "continuation"),
    [([], [1]), ([1], []), ([1] * 500, [1] * 14), ([1], [320]), ([-1], [1])],
)
def test_empty_too_long_and_unknown_tokens_are_refused(
    llm: LLM, context: list[int], continuation: list[int]
) -> None:
    with pytest.raises(RequestError):
        score(llm.model, context, continuation)
    assert llm.model.cache.free_pages == llm.model.cache.total_pages


def test_the_last_token_of_a_continuation_needs_no_position(llm: LLM) -> None:
    assert score(llm.model, [1] * 500, [1] * 13).logprob < 0
