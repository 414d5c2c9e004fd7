"""Log-probabilities of prompts are those of LLM.logprobs, however and beside whom they are read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.engine.engine import Engine
from specqd.engine.generation import Generation, GenerationRequest, TokenLogprob
from specqd.openai.batch import answer_batch, open_answers, read_batch
from support.random_models import BOS, EOS, Shape, make_model
from support.served import Served, serving

SHAPE = Shape(is_peaked=True, context=512)
LENGTHS = (1, 2, 64, 65, 200, 400)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "small", SHAPE, seed)


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return LLM(directory, "mxfp4", threads=2)


@pytest.fixture(scope="module")
def served(directory: Path) -> Iterator[Served]:
    with serving(str(directory), "--max-batch", "4") as served:
        yield served


def check_logprobs(llm: LLM, prompt: list[int], found: list[TokenLogprob], top: int) -> None:
    assert len(found) == len(prompt) - 1
    rows = llm.logprobs(prompt[:-1]) if found else ()
    for row, each, token in zip(rows, found, prompt[1:], strict=True):
        assert each.token == token
        assert each.logprob == row[token]
        best = sorted(range(len(row)), key=lambda i: (-row[i], i))[:top]
        assert each.top == tuple((i, row[i]) for i in best)


def run(engine: Engine, generations: list[Generation]) -> None:
    while any(generation.finish_reason is None for generation in generations):
        engine.step()


@pytest.mark.parametrize("prompt_rows", [None, 1, 50, 128])
def test_they_are_exact_however_a_prompt_is_cut(
    llm: LLM, rng: np.random.Generator, prompt_rows: int | None
) -> None:
    engine = Engine(
        llm.engine.level, llm.tokenizer, eos_token_ids=[EOS], max_batch=4, prompt_rows=prompt_rows
    )
    prompts = [rng.integers(0, 256, length).tolist() for length in LENGTHS]
    prompts += [prompts[-1][:300], prompts[-1]]  # whose pages are shared
    asks = [int(rng.choice([0, 3])) for _ in prompts]
    scored, plain, running = [], [], list[Generation]()
    for prompt, top in zip(prompts, asks, strict=True):
        params = SamplingParams(max_tokens=5, seed=1, n=int(rng.integers(1, 3)))
        asked = SamplingParams(**fields_of(params), prompt_logprobs=top)
        plain.append(engine.submit(GenerationRequest([prompt], params.resolved(llm.defaults))))
        scored.append(engine.submit(GenerationRequest([prompt], asked.resolved(llm.defaults))))
        running += plain[-1] + scored[-1]
    run(engine, running)
    for prompt, top, samples, others in zip(prompts, asks, scored, plain, strict=True):
        for sample, other in zip(samples, others, strict=True):
            check_logprobs(llm, prompt, sample.prompt_logprobs, top)
            assert sample.tokens == other.tokens
            assert other.prompt_logprobs == []
    cache = llm.model.cache
    assert cache.free_pages == cache.total_pages


def fields_of(params: SamplingParams) -> dict[str, Any]:
    return {"max_tokens": params.max_tokens, "seed": params.seed, "n": params.n}


def test_a_prompt_that_is_left_half_read_leaves_its_samples_right(
    llm: LLM, rng: np.random.Generator
) -> None:
    engine = Engine(llm.engine.level, llm.tokenizer, eos_token_ids=[EOS], prompt_rows=50)
    prompt = rng.integers(0, 256, 200).tolist()
    params = SamplingParams(max_tokens=3, n=2, prompt_logprobs=2).resolved(llm.defaults)
    first, second = engine.submit(GenerationRequest([prompt], params))
    engine.step()
    engine.cancel(first)
    run(engine, [second])
    check_logprobs(llm, prompt, second.prompt_logprobs, 2)


def test_they_are_exact_where_sequences_are_preempted_at_any_time(
    llm: LLM, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(llm.engine.level, llm.tokenizer, eos_token_ids=[EOS], prompt_rows=30)
    scheduler, has_pages = engine.scheduler, engine.scheduler.has_pages
    monkeypatch.setattr(
        scheduler, "has_pages", lambda ahead: rng.random() < 0.7 and has_pages(ahead)
    )
    prompts = [rng.integers(0, 256, length).tolist() for length in (150, 100, 1, 200)]
    params = SamplingParams(max_tokens=20, prompt_logprobs=1, n=2).resolved(llm.defaults)
    submitted = [engine.submit(GenerationRequest([prompt], params)) for prompt in prompts]
    run(engine, [generation for samples in submitted for generation in samples])
    assert engine.scheduler.preemptions > 0
    for prompt, samples in zip(prompts, submitted, strict=True):
        for sample in samples:
            check_logprobs(llm, prompt, sample.prompt_logprobs, 1)


def test_the_python_api_gives_them(llm: LLM, rng: np.random.Generator) -> None:
    prompt = rng.integers(0, 256, 100).tolist()
    params = SamplingParams(max_tokens=2, prompt_logprobs=1)
    for result in llm.generate([prompt, prompt], params):
        assert result.prompt_logprobs is not None
        check_logprobs(llm, prompt, result.prompt_logprobs, 1)
    assert llm.generate([prompt], SamplingParams(max_tokens=2))[0].prompt_logprobs is None


# --- Through OpenAI's client ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(served: Served) -> Any:
    pytest.importorskip("fastapi", reason="needs specqd[serve]")
    openai = pytest.importorskip("openai", reason="needs OpenAI's client")
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)


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
def test_an_echo_has_the_prompts_logprobs_and_then_the_texts(
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


def test_streams_of_echoes_are_their_wholes(client: Any, rng: np.random.Generator) -> None:
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


def test_a_batch_scores_prompts_too(llm: LLM, tmp_path: Path, rng: np.random.Generator) -> None:
    prompt = rng.integers(0, 256, 70).tolist()
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 0}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    requests = tmp_path / "in.jsonl"
    requests.write_text(json.dumps(line) + "\n")
    batch = read_batch(requests, "small")
    with open_answers(tmp_path / "out.jsonl", batch) as answers:
        assert answer_batch(llm, batch, answers, lambda *_: None) == 0
    answer = json.loads((tmp_path / "out.jsonl").read_text())["response"]["body"]
    rows = llm.logprobs(prompt[:-1])
    expected = [float(row[token]) for row, token in zip(rows, prompt[1:], strict=True)]
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [None, *expected]
    assert answer["usage"]["completion_tokens"] == 0
