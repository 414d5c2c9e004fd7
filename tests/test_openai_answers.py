"""Answers in OpenAI's form: spelling and text offsets of tokens, whole or in pieces."""

import random
from pathlib import Path

import pytest

from specqd.engine.generation import TokenLogprob
from specqd.engine.updates import Update
from specqd.openai.answers import Form, form_of
from specqd.openai.requests import Prepared, chat_request, completion_request
from specqd.text.token_texts import spelled
from specqd.text.tokenizer import Tokenizer
from specqd.text.tool_calls import CallForm
from support.small_tokenizers import BUILT

TEXT = "aé€b"  # characters of one, two, three and one token


@pytest.fixture(scope="module")
def tokenizer(small_model: Path) -> Tokenizer:
    return Tokenizer.open(small_model)


def form_with(logprobs: int, tokenizer: Tokenizer) -> Form:
    request = completion_request({"prompt": "x", "logprobs": logprobs})
    return form_of(Prepared.of(request, tokenizer), tokenizer, "key")


def test_tokens_have_their_spelling_and_text_offset(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    ids = tokenizer.encode(TEXT)
    assert len(ids) == 7
    form = form_with(0, tokenizer)
    cut = rng.randrange(len(ids))
    found: list[tuple[str, int]] = []
    for tokens in (ids[:cut], ids[cut:]):
        logprobs = [TokenLogprob(token, -1.0) for token in tokens]
        written = form.chunks(Update(0, "", tokens, logprobs, None, None))[0]["logprobs"]
        found += zip(written["tokens"], written["text_offset"], strict=True)
    assert found == [
        ("a", 0),
        ("bytes:\\xc3", 1),
        ("bytes:\\xa9", 1),
        ("bytes:\\xe2", 2),
        ("bytes:\\x82", 2),
        ("bytes:\\xac", 2),
        ("b", 3),
    ]


@pytest.mark.parametrize("times", [1, 9000])
def test_tokens_of_an_echo_begin_in_the_text_that_spells_out_special_ones(times: int) -> None:
    tokenizer = BUILT["byte_level"]
    prompt = "a</s>é" * times
    body = {"prompt": prompt, "echo": True, "logprobs": 0}
    prepared = Prepared.of(completion_request(body), tokenizer)
    [[_, *ids]], form = prepared.prompts, form_of(prepared, tokenizer, "key")
    known = [TokenLogprob(token, -1.0) for token in ids]
    new = tokenizer.encode("b", add_special_tokens=False)
    logprobs = [TokenLogprob(token, -1.0) for token in new]
    update = Update(0, "b", new, logprobs, "length", None, prompt_logprobs=known)
    choice = form.whole(update)
    assert choice["text"] == f"{prompt}b"
    begin, *offsets, end = choice["logprobs"]["text_offset"]
    assert (begin, end) == (0, len(prompt))
    assert offsets[-4:] == [len(prompt) - 6, len(prompt) - 5, *(len(prompt) - 1,) * 2]


def test_an_infinite_logprob_is_written_as_minus_9999_like_openais(tokenizer: Tokenizer) -> None:
    form = form_with(1, tokenizer)
    [token] = tokenizer.encode("a")
    logprobs = [TokenLogprob(token, float("-inf"), ((token + 1, -0.5),))]
    written = form.whole(Update(0, "a", [token], logprobs, "length", None, 3))
    assert written["seed"] == 3
    assert written["logprobs"]["token_logprobs"] == [-9999.0]
    top = {"a": -9999.0, spelled(tokenizer, token + 1): -0.5}
    assert written["logprobs"]["top_logprobs"] == [top]


def test_the_finish_reason_comes_in_a_chunk_after_the_call(tokenizer: Tokenizer) -> None:
    """OpenAI's client does not report finished arguments if both come in one chunk."""
    body = {
        "messages": [{"role": "user", "content": "Stop."}],
        "tools": [{"type": "function", "function": {"name": "stop"}}],
    }
    request = chat_request(body)
    tagged = CallForm("", "", "", is_tagged=True, special_ids={})
    prepared = Prepared(request, [[1]], request.params, call_form=tagged)
    text = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    update = Update(0, text, [], [], "stop", None)
    called, ended = form_of(prepared, tokenizer, "key").chunks(update)
    assert called["delta"]["tool_calls"][0]["function"] == {"name": "stop", "arguments": "{}"}
    assert called["finish_reason"] is None
    assert ended == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}
