"""The Python API, with the shipped model where text matters and a small random one elsewhere."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from signal import SIGINT, raise_signal

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd._native import DraftRequest
from specqd.engine.engine import Engine
from specqd.engine.prompts import Reading
from specqd.errors import RequestError
from specqd.model.model import Precision

PROMPT = "import os\n\n\ndef read_lines(path):\n"
GREEDY = SamplingParams(max_tokens=40, temperature=0)


@pytest.fixture(scope="module")
def llm() -> LLM:
    """The shipped model."""
    return LLM(threads=1)


@pytest.fixture(scope="module")
def small(chat_model: Path) -> LLM:
    return LLM(chat_model, threads=1)


@pytest.fixture(autouse=True)
def pages_are_returned(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no generation is left and all pages are free."""
    yield
    for name in {"llm", "small"} & set(request.fixturenames):
        llm = request.getfixturevalue(name)
        cache = llm.model.cache
        assert llm.engine.is_idle
        assert cache.free_pages == cache.total_pages


def text_of(llm: LLM, tokens: list[int]) -> str:
    stream = llm.tokenizer.stream()
    return "".join([*(stream.feed([token]) for token in tokens), stream.finish()])


def test_one_prompt_gives_one_result(llm: LLM) -> None:
    [result] = llm.generate(PROMPT, GREEDY)
    assert result.prompt_tokens == llm.encode(PROMPT)
    assert len(result.tokens) == 40
    assert result.text == text_of(llm, result.tokens)
    assert result.completions[0].finish_reason == "length"
    assert result.completions[0].logprobs is None


def test_a_prompt_may_be_token_ids(llm: LLM) -> None:
    ids = llm.encode(PROMPT)
    by_text, by_ids = llm.generate(PROMPT, GREEDY)[0], llm.generate(ids, GREEDY)[0]
    by_array = llm.generate(np.asarray(ids), GREEDY)[0]
    assert by_text.tokens == by_ids.tokens == by_array.tokens


def test_results_are_in_the_order_of_prompts_and_equal_each_alone(llm: LLM) -> None:
    prompts = [PROMPT, "class Stack:\n", llm.encode("x = [1, 2"), "#"]
    together = llm.generate(prompts, GREEDY)
    for prompt, result in zip(prompts, together, strict=True):
        alone = llm.generate([prompt], GREEDY)[0]
        assert result.tokens == alone.tokens
        assert result.text == alone.text


def test_no_prompts_give_no_results(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []


def test_samples_differ_and_each_equals_itself_alone(llm: LLM, seed: int) -> None:
    sampled = SamplingParams(max_tokens=32, temperature=0.8, seed=seed)
    four = llm.generate(PROMPT, SamplingParams(max_tokens=32, temperature=0.8, seed=seed, n=4))[0]
    one = llm.generate(PROMPT, sampled)[0]
    assert len({tuple(c.tokens) for c in four.completions}) > 1
    assert four.completions[0].tokens == one.tokens
    assert {c.seed for c in four.completions} == {seed}
    two = llm.generate(PROMPT, SamplingParams(max_tokens=32, temperature=0.8, seed=seed, n=2))[0]
    assert [c.tokens for c in two.completions] == [c.tokens for c in four.completions[:2]]


def test_a_returned_seed_is_exact_as_a_double(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specqd.engine.engine.randbits", lambda bits: (1 << bits) - 1)
    [result] = llm.generate(PROMPT, SamplingParams(max_tokens=1))
    [completion] = result.completions
    assert completion.seed > 1 << 50
    assert int(float(completion.seed)) == completion.seed


def test_a_seed_is_returned_and_repeats_the_text(llm: LLM) -> None:
    params = SamplingParams(max_tokens=24, temperature=0.8)
    first, second = (llm.generate(PROMPT, params)[0].completions[0] for _ in range(2))
    assert first.seed != second.seed
    again = SamplingParams(max_tokens=24, temperature=0.8, seed=first.seed)
    assert llm.generate(PROMPT, again)[0].tokens == first.tokens


def test_with_draft_shares_the_model(llm: LLM) -> None:
    other = llm.with_draft("none")
    assert other.model is llm.model
    assert [level.name for level in other.generate("x", GREEDY)[0].stats.levels] == ["bf16"]
    assert [level.name for level in llm.generate("x", GREEDY)[0].stats.levels] == ["bf16", "fp4"]


def test_a_stream_is_the_generated_text_in_pieces(llm: LLM, seed: int) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=seed)
    stream = llm.stream(PROMPT, params)
    pieces = list(stream)
    whole = llm.generate(PROMPT, params)[0]
    assert len(pieces) > 1
    assert "".join(pieces) == whole.text
    assert stream.result is not None
    assert stream.result.completions == whole.completions


def test_leaving_a_stream_early_cancels_it(llm: LLM) -> None:
    stream = llm.stream(PROMPT, SamplingParams(max_tokens=400, temperature=0, ignore_eos=True))
    for _ in stream:
        break
    assert llm.engine.is_idle
    assert stream.result is not None
    assert stream.result.completions[0].finish_reason == "cancelled"
    assert len(stream.result.tokens) < 400


def test_a_loop_over_a_stream_goes_on_after_the_pieces_that_next_gave(llm: LLM) -> None:
    stream = llm.stream(PROMPT, GREEDY)
    text = next(stream) + next(stream)
    assert text + "".join(stream) == llm.generate(PROMPT, GREEDY)[0].text
    assert stream.result is not None
    other = llm.stream(PROMPT, replace(GREEDY, max_tokens=1))
    assert next(other)
    assert [next(other, None), next(other, None)] == [None, None]


def test_a_stream_shows_its_parameters_and_its_result(llm: LLM) -> None:
    stream = llm.stream(PROMPT, GREEDY)
    assert repr(stream).startswith("Stream(SamplingParams(max_tokens=40, temperature=0")
    assert repr(stream).endswith("), result=None)")
    list(stream)
    assert repr(stream).endswith(f"), result={stream.result!r})")


def test_help_shows_only_what_users_call() -> None:
    members = {name for name in dir(LLM) if not name.startswith("_")}
    calls = {"generate", "stream", "chat", "stream_chat", "logprobs", "embed", "encode", "decode"}
    assert members == calls | {"close", "with_draft", "model", "engine", "embedder"}
    assert all(getattr(LLM, name).__doc__ for name in members)


def test_streams_may_be_read_in_turns_and_around_other_calls(llm: LLM) -> None:
    prompts = [PROMPT, "class Stack:\n"]
    expected = [result.text for result in llm.generate(prompts, GREEDY)]
    texts = ["", ""]
    for pieces in zip_longest(*(llm.stream(prompt, GREEDY) for prompt in prompts), fillvalue=""):
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        llm.generate("x = ", SamplingParams(max_tokens=2, temperature=0))
    assert texts == expected


def test_a_stop_string_cuts_the_text(llm: LLM) -> None:
    whole = llm.generate(PROMPT, GREEDY)[0]
    for length in (1, 3, 9):  # within one token, and over several
        at = len(whole.text) // 2
        stop = whole.text[at : at + length]
        cut = llm.generate(PROMPT, SamplingParams(max_tokens=40, temperature=0, stop=[stop]))[0]
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert cut.completions[0].finish_reason == "stop"
        assert cut.tokens == whole.tokens[: len(cut.tokens)]


def test_the_first_of_several_stop_strings_cuts(llm: LLM) -> None:
    text = llm.generate(PROMPT, GREEDY)[0].text
    stops = [text[20:24], text[8:11], text[30:31]]
    params = SamplingParams(max_tokens=40, temperature=0, stop=stops)
    assert llm.generate(PROMPT, params)[0].text == text[: min(text.index(s) for s in stops)]


def test_text_that_may_begin_a_stop_string_is_held_back_then_released(llm: LLM) -> None:
    text = llm.generate(PROMPT, GREEDY)[0].text
    almost = text[10:16] + "\x01"  # begins like the text, and never occurs
    params = SamplingParams(max_tokens=40, temperature=0, stop=[almost])
    seen = ""
    for piece in llm.stream(PROMPT, params):
        seen += piece
        assert not any(seen.endswith(almost[:k]) for k in range(2, 7)) or seen == text
    assert seen == text
    at_the_end = SamplingParams(max_tokens=40, temperature=0, stop=[text[-3:] + "\x01"])
    assert llm.generate(PROMPT, at_the_end)[0].text == text


def test_a_stop_id_ends_the_text_and_is_its_last_token(small: LLM) -> None:
    params = SamplingParams(max_tokens=30, temperature=0)
    whole = small.generate([[65, 66, 67]], params)[0].tokens
    stop = whole[12]
    stopped = small.generate(
        [[65, 66, 67]], SamplingParams(max_tokens=30, temperature=0, stop_token_ids=[stop])
    )[0]
    assert stopped.tokens == whole[: whole.index(stop) + 1]
    assert stopped.text == text_of(small, stopped.tokens[:-1])
    assert stopped.completions[0].finish_reason == "stop"


def test_the_end_of_text_token_ends_the_text_unless_ignored(small: LLM) -> None:
    eos = small.model.config.eos_token_ids[0]
    bias = {eos: 100.0}
    ended = small.generate([[65]], SamplingParams(max_tokens=9, temperature=0, logit_bias=bias))[0]
    assert ended.tokens == [eos]
    assert ended.text == ""
    assert ended.completions[0].finish_reason == "stop"
    params = SamplingParams(max_tokens=9, temperature=0, logit_bias=bias, ignore_eos=True)
    went_on = small.generate([[65]], params)[0]
    assert went_on.tokens == [eos] * 9
    assert went_on.completions[0].finish_reason == "length"


def test_reported_logprobs_have_the_bits_of_llm_logprobs(llm: LLM, seed: int) -> None:
    params = SamplingParams(max_tokens=32, temperature=0.8, seed=seed, logprobs=3)
    result = llm.generate(PROMPT, params)[0]
    prompt, completion = result.prompt_tokens, result.completions[0]
    rows = llm.logprobs([*prompt, *completion.tokens])[len(prompt) - 1 : -1]
    assert rows.dtype == np.float32
    assert completion.logprobs is not None
    for row, token, reported in zip(rows, completion.tokens, completion.logprobs, strict=True):
        assert reported.token == token
        assert reported.logprob == float(row[token])
        likeliest = np.argsort(-row, kind="stable")[:3]
        assert reported.top == tuple((int(i), float(row[i])) for i in likeliest)


def test_logprobs_of_zero_report_the_token_alone(small: LLM) -> None:
    params = SamplingParams(max_tokens=4, temperature=0, logprobs=0)
    [completion] = small.generate([[65]], params)[0].completions
    assert completion.logprobs is not None
    assert [each.top for each in completion.logprobs] == [()] * 4


def test_more_logprobs_than_tokens_report_every_token(small: LLM) -> None:
    params = SamplingParams(max_tokens=2, temperature=0, logprobs=1000)
    [completion] = small.generate([[65]], params)[0].completions
    assert completion.logprobs is not None
    for each in completion.logprobs:
        assert sorted(token for token, _ in each.top) == list(range(320))


def test_no_limit_runs_to_the_end_of_the_context(small: LLM) -> None:
    params = SamplingParams(max_tokens=None, temperature=0, ignore_eos=True)
    result = small.generate([[65] * 450], params)[0]
    assert len(result.tokens) == 512 - 450
    assert result.completions[0].finish_reason == "length"


def test_more_requests_than_the_batch_holds_equal_each_alone(small: LLM) -> None:
    params = SamplingParams(max_tokens=20, temperature=0)
    prompts = [[65 + i, 66, 67 + i % 5] for i in range(37)]
    together = small.generate(prompts, params)
    for prompt, result in zip(prompts, together, strict=True):
        assert result.tokens == small.generate([prompt], params)[0].tokens


def test_more_samples_than_the_batch_holds_all_end(small: LLM, seed: int) -> None:
    params = SamplingParams(max_tokens=8, temperature=1, seed=seed, n=21)
    result = small.generate([[65, 66]], params)[0]
    assert len(result.completions) == 21
    assert {len(completion.tokens) for completion in result.completions} == {8}


def test_statistics_count_this_call_alone(small: LLM) -> None:
    params = SamplingParams(max_tokens=20, temperature=0)
    for _ in range(2):
        stats = small.generate([[65, 66, 67], [68, 69]], params)[0].stats
        assert stats.prompt_tokens == 5
        assert stats.new_tokens == 40
        assert stats.prefill_s > 0
        assert stats.decode_s > 0
        outer, inner = stats.levels
        assert outer.accepted <= outer.drafted
        assert inner.accepted <= inner.drafted
        assert outer.rows >= outer.drafted
        assert outer.gb_per_s > 0


def test_a_chat_is_rendered_by_the_template(small: LLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    params = SamplingParams(max_tokens=8, temperature=0)
    answer = small.chat(messages, params)
    assert answer.prompt_tokens == small.encode("[user]Hi\n[assistant]")
    assert answer.tokens == small.generate("[user]Hi\n[assistant]", params)[0].tokens


def test_one_bad_prompt_leaves_nothing_behind(small: LLM) -> None:
    with pytest.raises(RequestError, match="shorten the prompt"):
        small.generate([[65, 66], [65] * 600], GREEDY)
    assert small.engine.is_idle
    assert len(small.generate([[65, 66]], GREEDY)[0].tokens) == 40


def test_an_unknown_token_id_is_refused(small: LLM) -> None:
    with pytest.raises(RequestError, match="token id 320 is outside"):
        small.generate([[65, 320]], GREEDY)


def test_the_fp4_precision_can_generate_alone(chat_model: Path) -> None:
    llm = LLM(chat_model, threads=1, precision=Precision.FP4)
    result = llm.generate([[65, 66]], SamplingParams(max_tokens=10, temperature=0))[0]
    assert [level.name for level in result.stats.levels] == ["fp4"]
    assert len(result.tokens) == 10


def test_an_interrupt_while_a_prompt_is_read_leaves_a_usable_model(
    small: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 400 tokens, two parts of 50 are read before Ctrl-C."""
    engine = Engine(small.engine.level, small.tokenizer, prompt_tokens=50)
    monkeypatch.setattr(small, "_engine", engine)
    prompt = [1 + i % 200 for i in range(400)]
    advance, parts = engine._requests, []

    def interrupted(readings: list[Reading]) -> list[DraftRequest]:
        parts.append(readings)
        if len(parts) == 3:
            raise_signal(SIGINT)
        return advance(readings)

    monkeypatch.setattr(engine, "_requests", interrupted)
    for begin in (small.generate, lambda *arguments: list(small.stream(*arguments))):
        parts.clear()
        with pytest.raises(KeyboardInterrupt):
            begin(prompt, GREEDY)
        assert len(parts) == 3
        assert engine.is_idle
    [expected] = small.with_draft("none").generate(prompt, GREEDY)
    [found] = small.generate(prompt, GREEDY)
    assert found.tokens == expected.tokens


@pytest.mark.parametrize(("given", "pages"), [(3.5, 3), (9.0, 9), (1e6, 36)])
def test_a_cache_has_at_most_the_given_bytes_unless_its_positions_are_stated(
    small: LLM, chat_model: Path, given: float, pages: int
) -> None:
    most = int(given * small.model.cache.page_bytes)
    with LLM(chat_model, "none", threads=1, cache_bytes=most) as llm:
        assert llm.model.cache.total_pages == pages
    with LLM(chat_model, "none", threads=1, cache_bytes=most, cache_positions=300) as llm:
        assert llm.model.cache_positions == 320
