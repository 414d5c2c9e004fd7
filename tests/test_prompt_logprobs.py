"""Log-probabilities of prompts equal those of LLM.logprobs, in parts, in batches and preempted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.engine.engine import Engine
from specqd.engine.generation import GenerationRequest, TokenLogprob
from support.batches import answered, line
from support.engines import preempt_at_random, run_to_end
from support.fixtures import a_server, an_llm
from support.openai_client import COMPLETIONS
from support.random_models import BOS, EOS

LENGTHS = (1, 2, 64, 65, 200, 400)


llm = an_llm("chat_model", "fp4")
served = a_server("chat_model", "--max-batch", "4")


def check_logprobs(llm: LLM, prompt: list[int], found: list[TokenLogprob], top: int) -> None:
    assert len(found) == len(prompt) - 1
    rows = llm.logprobs(prompt[:-1]) if found else ()
    for row, each, token in zip(rows, found, prompt[1:], strict=True):
        assert each.token == token
        assert each.logprob == row[token]
        best = sorted(range(len(row)), key=lambda i: (-row[i], i))[:top]
        assert each.top == tuple((i, row[i]) for i in best)


@pytest.mark.parametrize("prompt_tokens", [None, 1, 50, 128])
def test_prompt_logprobs_are_exact_in_parts_of_any_size(
    llm: LLM, rng: np.random.Generator, prompt_tokens: int | None
) -> None:
    engine = Engine(
        llm.engine.level,
        llm.tokenizer,
        eos_token_ids=[EOS],
        max_batch=4,
        prompt_tokens=prompt_tokens,
    )
    prompts = [rng.integers(0, 256, length).tolist() for length in LENGTHS]
    prompts += [prompts[-1][:300], prompts[-1]]  # these share pages
    asks = [int(rng.choice([0, 3])) for _ in prompts]
    scored, plain = [], []
    for prompt, top in zip(prompts, asks, strict=True):
        params = SamplingParams(max_tokens=5, seed=1, n=int(rng.integers(1, 3)))
        asked = replace(params, prompt_logprobs=top)
        plain.append(engine.submit(GenerationRequest([prompt], params.resolved(llm.defaults))))
        scored.append(engine.submit(GenerationRequest([prompt], asked.resolved(llm.defaults))))
    run_to_end(engine)
    for prompt, top, samples, others in zip(prompts, asks, scored, plain, strict=True):
        for sample, other in zip(samples, others, strict=True):
            check_logprobs(llm, prompt, sample.prompt_logprobs, top)
            assert sample.tokens == other.tokens
            assert other.prompt_logprobs == []
    cache = llm.model.cache
    assert cache.free_pages == cache.total_pages


@pytest.mark.parametrize(("others", "draft"), [(15, "fp4:k=24"), (600, "none")])
def test_scored_prompts_and_proposals_fit_into_a_forward(
    chat_model: Path, rng: np.random.Generator, others: int, draft: str
) -> None:
    """All of their rows have logits, so they cannot be divided."""
    llm = LLM(chat_model, draft, threads=1, cache_positions=(others + 10) * 64)
    engine = Engine(llm.engine.level, llm.tokenizer, eos_token_ids=[], max_batch=512)
    params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True).resolved(llm.defaults)
    prompt = rng.integers(0, 256, 400).tolist()
    running = engine.submit(GenerationRequest([[token % 256] for token in range(others)], params))
    while not any(each.count for each in running):
        engine.step()
    asked = replace(params, max_tokens=1, prompt_logprobs=0)
    [scored] = engine.submit(GenerationRequest([prompt], asked))
    run_to_end(engine)
    check_logprobs(llm, prompt, scored.prompt_logprobs, 0)
    assert all(each.count == 40 for each in running)


def test_cancelling_one_sample_leaves_the_others_logprobs_exact(
    llm: LLM, rng: np.random.Generator
) -> None:
    engine = Engine(llm.engine.level, llm.tokenizer, eos_token_ids=[EOS], prompt_tokens=50)
    prompt = rng.integers(0, 256, 200).tolist()
    params = SamplingParams(max_tokens=3, n=2, prompt_logprobs=2).resolved(llm.defaults)
    first, second = engine.submit(GenerationRequest([prompt], params))
    engine.step()
    engine.cancel(first)
    run_to_end(engine)
    check_logprobs(llm, prompt, second.prompt_logprobs, 2)


def test_prompt_logprobs_are_exact_after_preemption_at_any_time(
    llm: LLM, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(llm.engine.level, llm.tokenizer, eos_token_ids=[EOS], prompt_tokens=30)
    preempt_at_random(engine, rng, monkeypatch)
    prompts = [rng.integers(0, 256, length).tolist() for length in (150, 100, 1, 200)]
    params = SamplingParams(max_tokens=20, prompt_logprobs=1, n=2).resolved(llm.defaults)
    submitted = [engine.submit(GenerationRequest([prompt], params)) for prompt in prompts]
    run_to_end(engine)
    assert engine.scheduler.preemptions > 0
    for prompt, samples in zip(prompts, submitted, strict=True):
        for sample in samples:
            check_logprobs(llm, prompt, sample.prompt_logprobs, 1)


def test_the_python_api_returns_prompt_logprobs(llm: LLM, rng: np.random.Generator) -> None:
    prompt = rng.integers(0, 256, 100).tolist()
    params = SamplingParams(max_tokens=2, prompt_logprobs=1)
    for result in llm.generate([prompt, prompt], params):
        assert result.prompt_logprobs is not None
        check_logprobs(llm, prompt, result.prompt_logprobs, 1)
    assert llm.generate([prompt], SamplingParams(max_tokens=2))[0].prompt_logprobs is None


# --- Through OpenAI's client ----------------------------------------------------------------------


def check_echo(llm: LLM, prompt: list[int], choice: Any, new: int) -> None:
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(prompt) + new
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    rows = llm.logprobs(prompt[:-1])
    expected = [float(row[token]) for row, token in zip(rows, prompt[1:], strict=True)]
    assert logprobs.token_logprobs[1 : len(prompt)] == expected
    for row, token, top in zip(rows, prompt[1:], logprobs.top_logprobs[1:], strict=False):
        assert set(top.values()) == {float(p) for p in [*sorted(row)[-2:], row[token]]}
    assert logprobs.text_offset == sorted(logprobs.text_offset)


@pytest.mark.parametrize("most", [0, 1, 9])
def test_an_echo_has_logprobs_of_prompt_and_completion(
    client: Any, llm: LLM, rng: np.random.Generator, most: int
) -> None:
    prompts = [[BOS, *rng.integers(97, 123, length).tolist()] for length in (1, 5, 300)]
    asked = {"model": "small", "prompt": prompts, "max_tokens": most, "temperature": 0, "n": 2}
    scored = client.completions.create(**asked, echo=True, logprobs=2)
    assert scored.usage.completion_tokens == 6 * most
    plain = [""] * 6
    if most:
        plain = [c.text for c in client.completions.create(**asked).choices]
    for i, choice in enumerate(scored.choices):
        prompt = prompts[i // 2]
        check_echo(llm, prompt, choice, most)
        assert choice.text == llm.tokenizer.decode(prompt) + plain[i]
        assert choice.finish_reason == "length"
        at = choice.logprobs.text_offset[1 : len(prompt)]
        assert at == list(range(len(prompt) - 1))


def test_a_streamed_echo_joins_to_the_whole_one(client: Any, rng: np.random.Generator) -> None:
    for most, logprobs in ((0, 1), (7, 1), (0, None), (7, None)):
        asked = {"model": "small", "prompt": "".join(map(chr, rng.integers(97, 123, 200)))}
        asked |= {"max_tokens": most, "temperature": 0, "echo": True, "logprobs": logprobs}
        [whole] = client.completions.create(**asked).choices
        text, reason, found = "", None, list[Any]()
        for chunk in client.completions.create(**asked, stream=True):
            [choice] = chunk.choices
            text += choice.text
            reason = choice.finish_reason or reason
            if choice.logprobs is not None:
                found += zip(
                    choice.logprobs.tokens,
                    choice.logprobs.token_logprobs,
                    choice.logprobs.text_offset,
                    strict=True,
                )
        assert (text, reason) == (whole.text, whole.finish_reason)
        if logprobs is not None:
            told = whole.logprobs
            expected = zip(told.tokens, told.token_logprobs, told.text_offset, strict=True)
            assert found == list(expected)


def test_a_completion_of_no_tokens_only_reads_the_prompt(client: Any, llm: LLM) -> None:
    asked = {"model": "small", "prompt": "k" * 150, "max_tokens": 0}
    whole = client.completions.create(**asked)
    [choice] = whole.choices
    assert (choice.text, choice.finish_reason) == ("", "length")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (
        len(llm.encode(asked["prompt"])),
        0,
    )
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert [(each.text, each.finish_reason) for each in chunks] == [("", "length")]
    again = client.completions.create(**asked)
    assert again.usage.prompt_tokens_details.cached_tokens >= 128


def test_a_batch_file_scores_prompts(llm: LLM, tmp_path: Path, rng: np.random.Generator) -> None:
    prompt = rng.integers(0, 256, 70).tolist()
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 0}
    [written] = answered(llm, tmp_path, [line("a", COMPLETIONS, body)])
    answer = written["response"]["body"]
    rows = llm.logprobs(prompt[:-1])
    expected = [float(row[token]) for row, token in zip(rows, prompt[1:], strict=True)]
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [None, *expected]
    assert answer["usage"]["completion_tokens"] == 0
