"""What clients read: OpenAI's JSON of completions, chats and refusals, whole or in chunks.

Knows updates and tokens' texts; knows neither the engine nor how an answer travels. Beside OpenAI's
members each choice of a whole answer holds the `seed` that repeats it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specqd.engine import FinishReason, Generation, TokenLogprob
from specqd.errors import FieldError, RequestError, SpecqdError
from specqd.openai_requests import ChatRequest, CompletionRequest, Request
from specqd.text_stream import TextStream, is_byte_token, token_bytes
from specqd.tokenizer import Tokenizer

_LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI's word for it
_NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Update:
    """What is new of one sample."""

    sample: int  # counted over all prompts of the request
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason | None
    error: RequestError | None
    seed: int | None = None

    @classmethod
    def whole(cls, sample: int, generation: Generation) -> "Update":
        """All of a finished generation."""
        return cls(
            sample,
            generation.text,
            generation.tokens,
            generation.logprobs,
            generation.finish_reason,
            generation.error,
            generation.seed,
        )


@dataclass(slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int = 0
    cached_prompt_tokens: int | None = None  # None: not told

    def described(self) -> Json:
        usage: Json = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        if self.cached_prompt_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_prompt_tokens}
        return usage


class Form(Protocol):
    """How one kind of answer is written."""

    prefix: str  # of its id
    kind: str  # `object`, when whole
    chunk_kind: str  # and of a chunk

    def opening(self, sample: int) -> list[Json]:
        """Choices of chunks that come before a sample's first token."""
        ...

    def chunk(self, update: Update) -> Json: ...

    def whole(self, updates: Sequence[Update]) -> Json: ...


@dataclass(slots=True)
class Answer:
    """One answer being given, in one form."""

    form: Form
    model: str
    usage: Usage
    key: str  # of the id
    created: int  # seconds since 1970
    has_usage_chunk: bool = False

    def chunk(self, choice: Json) -> Json:
        chunk = self._envelope(self.form.chunk_kind, [choice])
        return chunk | {"usage": None} if self.has_usage_chunk else chunk

    def usage_chunk(self) -> Json:
        return self._envelope(self.form.chunk_kind, []) | {"usage": self.usage.described()}

    def whole(self, samples: Sequence[Sequence[Update]]) -> Json:
        choices = [self.form.whole(updates) for updates in samples]
        return self._envelope(self.form.kind, choices) | {"usage": self.usage.described()}

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.form.prefix + self.key,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def form_of(request: Request, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Form:
    """How an answer to the request is written. prompts: as encoded."""
    if isinstance(request, ChatRequest):
        return ChatForm(request, prompts[0], tokenizer)
    return CompletionForm(request, prompts, tokenizer)


class CompletionForm:
    prefix = "cmpl-"
    kind = chunk_kind = "text_completion"

    def __init__(
        self, request: CompletionRequest, prompts: Sequence[Sequence[int]], tokenizer: Tokenizer
    ) -> None:
        self._request = request
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._places: dict[int, _Places] = {}  # by sample

    def opening(self, sample: int) -> list[Json]:
        if not self._request.has_echo:
            return []
        text = self._echo(sample)
        return [{"index": sample, "text": text, "logprobs": None, "finish_reason": None}]

    def chunk(self, update: Update) -> Json:
        has_logprobs = self._request.params.logprobs is not None
        choice = {
            "index": update.sample,
            "text": update.text,
            "logprobs": self._logprobs(update) if has_logprobs else None,
            "finish_reason": update.finish_reason,
        }
        return choice | _ids_of(self._request, update)

    def whole(self, updates: Sequence[Update]) -> Json:
        update = joined(updates)
        choice = self.chunk(update) | {"seed": update.seed}
        if self._request.has_echo:
            choice["text"] = self._echo(update.sample) + update.text
        if self._request.options.has_token_ids:
            choice["prompt_token_ids"] = list(self._prompts[self._prompt_of(update.sample)])
        return choice

    def _prompt_of(self, sample: int) -> int:
        return sample // self._request.params.n

    def _echo(self, sample: int) -> str:
        prompt = self._request.prompts[self._prompt_of(sample)]
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)

    def _logprobs(self, update: Update) -> Json:
        if update.sample not in self._places:
            self._places[update.sample] = _Places(self._tokenizer.stream())
        places = self._places[update.sample]
        return {
            "tokens": [spelled(self._tokenizer, each.token) for each in update.logprobs],
            "token_logprobs": [_finite(each.logprob) for each in update.logprobs],
            "top_logprobs": [self._top(each) for each in update.logprobs],
            "text_offset": [places.next(each.token) for each in update.logprobs],
        }

    def _top(self, each: TokenLogprob) -> dict[str, float]:
        """The likeliest, and the token itself, as OpenAI has it."""
        of_all = [*each.top, (each.token, each.logprob)]
        return {spelled(self._tokenizer, token): _finite(logprob) for token, logprob in of_all}


@dataclass(slots=True)
class _Places:
    """Where in a text its tokens begin, in characters."""

    stream: TextStream
    length: int = 0

    def next(self, token: int) -> int:
        place = self.length
        self.length += len(self.stream.feed(token))
        return place


class ChatForm:
    prefix = "chatcmpl-"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, request: ChatRequest, prompt: Sequence[int], tokenizer: Tokenizer) -> None:
        self._request = request
        self._prompt = prompt
        self._tokenizer = tokenizer

    def opening(self, sample: int) -> list[Json]:
        delta = {"role": "assistant", "content": ""}
        return [{"index": sample, "delta": delta, "logprobs": None, "finish_reason": None}]

    def chunk(self, update: Update) -> Json:
        delta = {"content": update.text} if update.text else {}
        return self._choice(update) | {"delta": delta}

    def whole(self, updates: Sequence[Update]) -> Json:
        update = joined(updates)
        message = {"role": "assistant", "content": update.text, "refusal": None}
        choice = self._choice(update) | {"message": message, "seed": update.seed}
        if self._request.options.has_token_ids:
            choice["prompt_token_ids"] = list(self._prompt)
        return choice

    def _choice(self, update: Update) -> Json:
        has_logprobs = self._request.params.logprobs is not None
        choice = {
            "index": update.sample,
            "logprobs": self._logprobs(update) if has_logprobs else None,
            "finish_reason": update.finish_reason,
        }
        return choice | _ids_of(self._request, update)

    def _logprobs(self, update: Update) -> Json:
        content = []
        for each in update.logprobs:
            top = [self._entry(token, logprob) for token, logprob in each.top]
            content.append(self._entry(each.token, each.logprob) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> Json:
        return {
            "token": spelled(self._tokenizer, token),
            "logprob": _finite(logprob),
            "bytes": list(bytes_of(self._tokenizer, token)),
        }


def refusal(message: str, kind: str, param: str | None = None, code: str | None = None) -> Json:
    """What answers a request that cannot be run."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def param_of(error: SpecqdError) -> str | None:
    """The field that an error is about, if it is known."""
    return error.field if isinstance(error, FieldError) else None


def joined(updates: Sequence[Update]) -> Update:
    """All that became of one sample."""
    return Update(
        updates[0].sample,
        "".join(update.text for update in updates),
        [token for update in updates for token in update.tokens],
        [logprob for update in updates for logprob in update.logprobs],
        updates[-1].finish_reason,
        updates[-1].error,
        updates[-1].seed,
    )


def spelled(tokenizer: Tokenizer, token: int) -> str:
    """What a token adds to a text; where that is a part of a character, `bytes:` and its bytes."""
    text = _text_of(tokenizer, token)
    if _NO_CHARACTER not in text:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in bytes_of(tokenizer, token))


def bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    text = _text_of(tokenizer, token)
    if _NO_CHARACTER not in text:
        return text.encode()
    name = tokenizer.token_text(token)
    return bytes([int(name[3:5], 16)]) if is_byte_token(name) else token_bytes(name)


def _text_of(tokenizer: Tokenizer, token: int) -> str:
    """A token's text after itself, for some decoders strip a text's first space."""
    once = tokenizer.decode([token], skip_special_tokens=False)
    twice = tokenizer.decode([token, token], skip_special_tokens=False)
    return twice[len(once) :] if twice.startswith(once) and len(twice) > len(once) else once


def _ids_of(request: Request, update: Update) -> Json:
    return {"token_ids": update.tokens} if request.options.has_token_ids else {}


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
