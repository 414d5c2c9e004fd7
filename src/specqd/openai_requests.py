"""Bodies of OpenAI's completion and chat requests, checked. Knows no models and no transport.

A field that is null counts as absent. A field that is not known is refused by name: nothing that
was asked for is silently left out. Beside OpenAI's fields those of vLLM are known that
SamplingParams has: top_k, min_p, repetition_penalty, ignore_eos, stop_token_ids. Where a field is
absent, temperature and its like are as the model's authors recommend, not 1 as at OpenAI.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specqd.errors import RequestError, shown
from specqd.sampling import SamplingParams

_COMPLETION_TOKENS = 16  # OpenAI's default for completions; chats run to the context's end
_MOST_LOGPROBS = 5  # of a completion's token
_MOST_TOP_LOGPROBS = 20  # of a chat's token

# Fields that mean the same in both kinds of request and bear SamplingParams' names.
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n",
)
_SHARED = (*_SAMPLING, "logit_bias", "stop", "stop_token_ids", "ignore_eos")
_ABOUT = ("model", "stream", "user")  # of who asks whom, and how the answer comes
_COMPLETION = (*_ABOUT, *_SHARED, "prompt", "max_tokens", "logprobs")
_CHAT = (
    *(*_ABOUT, *_SHARED, "messages", "max_tokens", "max_completion_tokens"),
    *("logprobs", "top_logprobs"),
)

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What /v1/completions asks for: `params.n` continuations of each prompt."""

    prompts: tuple[str | tuple[int, ...], ...]  # texts or token ids
    params: SamplingParams
    model: str | None = None
    is_streamed: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What /v1/chat/completions asks for: `params.n` answers to one conversation."""

    messages: tuple[Mapping[str, Any], ...]
    params: SamplingParams
    model: str | None = None
    is_streamed: bool = False


def completion_request(body: object) -> CompletionRequest:
    """The request in a body of /v1/completions; raises RequestError that begins with the field."""
    fields = _known(body, _COMPLETION)
    most = fields.get("max_tokens", _COMPLETION_TOKENS)
    logprobs = fields.get("logprobs")
    if logprobs is not None and (type(logprobs) is not int or not 0 <= logprobs <= _MOST_LOGPROBS):
        raise _wrong("logprobs", logprobs, f"a whole number from 0 to {_MOST_LOGPROBS}")
    return CompletionRequest(
        _prompts(fields),
        _params(fields, most, logprobs),
        _text(fields, "model"),
        _flag(fields, "stream"),
    )


def chat_request(body: object) -> ChatRequest:
    """The request in a body of /v1/chat/completions; RequestError as `completion_request`."""
    fields = _known(body, _CHAT)
    if "max_tokens" in fields and "max_completion_tokens" in fields:
        raise RequestError("max_tokens: max_completion_tokens says the same; give one of them")
    most = fields.get("max_completion_tokens", fields.get("max_tokens"))
    top = fields.get("top_logprobs")
    has_logprobs = _flag(fields, "logprobs")
    if top is not None and not has_logprobs:
        raise RequestError("top_logprobs: needs logprobs to be true")
    if top is not None and (type(top) is not int or not 0 <= top <= _MOST_TOP_LOGPROBS):
        raise _wrong("top_logprobs", top, f"a whole number from 0 to {_MOST_TOP_LOGPROBS}")
    return ChatRequest(
        _messages(fields),
        _params(fields, most, (top or 0) if has_logprobs else None),
        _text(fields, "model"),
        _flag(fields, "stream"),
    )


def _known(body: object, names: tuple[str, ...]) -> Fields:
    if not isinstance(body, Mapping):
        raise RequestError(f"body: {shown(body)} is not an object with the request's fields")
    fields = {name: value for name, value in body.items() if value is not None}
    for name in fields:
        if name not in names:
            known = ", ".join(sorted(names))
            raise RequestError(f"{_name(name)}: is not a field that is supported; known: {known}")
    _text(fields, "user")
    return fields


def _params(fields: Fields, most: object, logprobs: int | None) -> SamplingParams:
    sampling: dict[str, Any] = {name: fields[name] for name in _SAMPLING if name in fields}
    if sampling.get("n", 1) == 0:
        raise _wrong("n", 0, "a whole number from 1")
    return SamplingParams(
        **sampling,
        max_tokens=most,  # type: ignore[arg-type]  # SamplingParams checks what it is given
        logit_bias=_bias(fields),
        stop=_stop(fields),
        stop_token_ids=_ids("stop_token_ids", fields.get("stop_token_ids", [])),
        ignore_eos=_flag(fields, "ignore_eos"),
        logprobs=logprobs,
    )


def _prompts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    """A text, a list of texts, a list of token ids or a list of such lists."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, list) or not prompt:
        raise _wrong("prompt", prompt, "a text, a list of token ids, or a list of either")
    if type(prompt[0]) is int:
        return (_ids("prompt", prompt),)
    return tuple(
        each if isinstance(each, str) else _ids(f"prompt[{i}]", each)
        for i, each in enumerate(prompt)
    )


def _ids(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise _wrong(name, value, "a list of token ids")
    return tuple(value)


def _messages(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", messages, "a list of at least one message")
    return tuple(_message(f"messages[{i}]", message) for i, message in enumerate(messages))


def _message(name: str, message: object) -> Mapping[str, Any]:
    """A message whose content is a text: templates are written for that."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise _wrong(name, message, "an object with a role")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    if not isinstance(content, list):
        raise _wrong(f"{name}.content", content, "a text or a list of texts' parts")
    texts = []
    for i, part in enumerate(content):
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            raise _wrong(f"{name}.content[{i}]", part, 'a part {"type": "text", "text": ...}')
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}


def _bias(fields: Fields) -> dict[int, Any]:
    """JSON's keys are texts; the ids in them are decimal."""
    given = fields.get("logit_bias", {})
    if not isinstance(given, dict):
        raise _wrong("logit_bias", given, "an object of token ids and numbers")
    for token in given:
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            raise _wrong("logit_bias", token, "a token id")
    return {int(token): bias for token, bias in given.items() if bias is not None}


def _stop(fields: Fields) -> str | tuple[str, ...]:
    stop = fields.get("stop", [])
    if isinstance(stop, str):
        return stop
    if not isinstance(stop, list):
        raise _wrong("stop", stop, "a text or a list of texts")
    return tuple(stop)


def _flag(fields: Fields, name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def _text(fields: Fields, name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(name, value, "a text")
    return value


def _wrong(name: str, value: object, expected: str) -> RequestError:
    found = "is missing" if value is None else f"is {shown(value)}"
    return RequestError(f"{name}: {found}; {expected} is needed")


def _name(value: object) -> str:
    return value if isinstance(value, str) and value.isidentifier() else shown(value)
