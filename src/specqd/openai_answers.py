"""Answers to completion and chat requests in OpenAI's form. Knows no transport.

Beside OpenAI's members each choice holds the `seed` that repeats it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specqd.engine import Generation, TokenLogprob
from specqd.errors import SpecqdError
from specqd.tokenizer import Tokenizer

_LEAST_LOGPROB = -9999.0  # JSON has no infinity

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above every answer."""

    id: str
    created: int  # seconds since 1970
    model: str


def completion_answer(
    heading: Heading, prompts: Sequence[Sequence[Generation]], tokenizer: Tokenizer
) -> Answer:
    """What /v1/completions answers: the finished samples of each prompt, one after the other."""
    samples = [sample for each in prompts for sample in each]
    choices = [
        {
            "index": index,
            "text": sample.text,
            "logprobs": _completion_logprobs(sample, tokenizer),
            "finish_reason": sample.finish_reason,
            "seed": sample.seed,
        }
        for index, sample in enumerate(samples)
    ]
    return _answer(heading, "text_completion", choices, prompts)


def chat_answer(heading: Heading, samples: Sequence[Generation], tokenizer: Tokenizer) -> Answer:
    """What /v1/chat/completions answers: the finished samples of one conversation."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": sample.text, "refusal": None},
            "logprobs": _chat_logprobs(sample, tokenizer),
            "finish_reason": sample.finish_reason,
            "seed": sample.seed,
        }
        for index, sample in enumerate(samples)
    ]
    return _answer(heading, "chat.completion", choices, [samples])


def refusal(error: SpecqdError) -> Answer:
    """What answers a request that cannot be run."""
    kind = "invalid_request_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": None}}


def _answer(
    heading: Heading, kind: str, choices: list[Answer], prompts: Sequence[Sequence[Generation]]
) -> Answer:
    prompt_tokens = sum(samples[0].sequence.prompt_length for samples in prompts)
    completion_tokens = sum(sample.count for samples in prompts for sample in samples)
    return {
        "id": heading.id,
        "object": kind,
        "created": heading.created,
        "model": heading.model,
        "choices": choices,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


def _completion_logprobs(sample: Generation, tokenizer: Tokenizer) -> Answer | None:
    if sample.params.logprobs is None:
        return None
    texts = [token_text(each.token, tokenizer) for each in sample.logprobs]
    stream, offsets, length = tokenizer.stream(), [], 0
    for each in sample.logprobs:
        offsets.append(length)
        length += len(stream.feed(each.token))
    return {
        "tokens": texts,
        "token_logprobs": [_finite(each.logprob) for each in sample.logprobs],
        "top_logprobs": [_likeliest(each, tokenizer) for each in sample.logprobs],
        "text_offset": offsets,
    }


def _likeliest(each: TokenLogprob, tokenizer: Tokenizer) -> dict[str, float]:
    """By text; of tokens with one text, such as halves of characters, the likeliest counts."""
    found: dict[str, float] = {}
    for token, logprob in each.top:
        found.setdefault(token_text(token, tokenizer), _finite(logprob))
    return found


def _chat_logprobs(sample: Generation, tokenizer: Tokenizer) -> Answer | None:
    if sample.params.logprobs is None:
        return None
    content = [
        _entry(each.token, each.logprob, tokenizer)
        | {"top_logprobs": [_entry(token, logprob, tokenizer) for token, logprob in each.top]}
        for each in sample.logprobs
    ]
    return {"content": content, "refusal": None}


def _entry(token: int, logprob: float, tokenizer: Tokenizer) -> Answer:
    text = token_text(token, tokenizer)
    is_whole = "\N{REPLACEMENT CHARACTER}" not in text
    return {
        "token": text,
        "logprob": _finite(logprob),
        "bytes": list(text.encode()) if is_whole else None,
    }


def token_text(token: int, tokenizer: Tokenizer) -> str:
    """What a token adds to a text: after itself, for some decoders strip a text's first space."""
    once = tokenizer.decode([token], skip_special_tokens=False)
    twice = tokenizer.decode([token, token], skip_special_tokens=False)
    return twice[len(once) :] if twice.startswith(once) and len(twice) > len(once) else once


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
