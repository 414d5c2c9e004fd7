"""Writes OpenAI's JSON of completions and chats, whole or in chunks.

Each choice of a whole answer also has the `seed` that reproduces it. Knows updates and the texts of
tokens. Knows nothing of the engine or of transport.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from specqd.engine.generation import TokenLogprob
from specqd.engine.updates import Update
from specqd.openai.extras import Extras, Json, prompt_member
from specqd.openai.parts import id_of, reader_of
from specqd.openai.requests import ChatRequest, CompletionRequest, Prepared
from specqd.openai.speculation import DraftMetrics
from specqd.text.parts import PartReader, Thought
from specqd.text.token_texts import Places, bytes_of, spelled
from specqd.text.tokenizer import Tokenizer

_LEAST_LOGPROB = -9999.0  # OpenAI's value for minus infinity, which JSON cannot express


@dataclass(slots=True)
class Usage:
    """The counts of tokens in an answer."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_prompt_tokens: int | None = None  # None: omitted from the answer
    is_only_prompt: bool = False  # the new text is omitted, so its tokens do not count

    @classmethod
    def of(cls, prepared: Prepared, *, cached_prompt_tokens: int | None = None) -> "Usage":
        """Returns the usage before the first new token."""
        request = prepared.request
        return cls(
            sum(map(len, prepared.prompts)),
            cached_prompt_tokens=cached_prompt_tokens,
            is_only_prompt=isinstance(request, CompletionRequest) and request.is_only_prompt,
        )

    def described(self) -> Json:
        """Returns OpenAI's `usage` object."""
        completion_tokens = 0 if self.is_only_prompt else self.completion_tokens
        usage: Json = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
        }
        if self.cached_prompt_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_prompt_tokens}
        return usage


class Event(NamedTuple):
    """A server-sent event of a streamed answer."""

    content: Json | str  # a string is sent as it is
    name: str | None = None


class Reply(Protocol):
    """An answer in progress, in the JSON of one API."""

    usage: Usage

    def opening(self, num_samples: int) -> Iterator[Event]:
        """Yields the events before the first update."""
        ...

    def events_of(self, update: Update) -> Iterator[Event]:
        """Yields the events of an update."""
        ...

    def ending(self) -> Iterator[Event]:
        """Yields the events after the last update."""
        ...

    def failure(self, error: Json) -> Iterator[Event]:
        """Yields the events that end a stream with `error`, the result of `refusal`."""
        ...

    def whole(self, samples: Sequence[Update]) -> Json:
        """Returns the answer that is not streamed. samples: one update per sample."""
        ...


class Form(Protocol):
    """Writes the choices of one kind of answer."""

    prefix: str  # of the answer's id
    kind: str  # `object` of a whole answer
    chunk_kind: str  # `object` of a chunk

    def opening(self, sample: int) -> list[Json]:
        """Returns the choices of the chunks before a sample's first token."""
        ...

    def chunks(self, update: Update) -> list[Json]:
        """Returns the choices of the chunks for an update."""
        ...

    def nothing(self, sample: int) -> Json:
        """Returns the choice of a chunk without text."""
        ...

    def whole(self, update: Update) -> Json:
        """Returns the choice of a whole answer."""
        ...


@dataclass(slots=True)
class Answer:
    """A Reply for completions and chats. The form writes the choices."""

    form: Form
    model: str
    usage: Usage
    key: str  # of the id
    created: int  # seconds since 1970
    has_usage_chunk: bool = False
    has_running_usage: bool = False
    metrics: DraftMetrics | None = None  # None: omitted from the answer

    def opening(self, num_samples: int) -> Iterator[Event]:
        for sample in range(num_samples):
            yield from (self._chunk(choice) for choice in self.form.opening(sample))

    def events_of(self, update: Update) -> Iterator[Event]:
        if update.prompt_progress is not None:
            choice = self.form.nothing(update.sample)
            yield self._chunk(choice, prompt_member(update.prompt_progress))
            return
        self._note(update)
        yield from (self._chunk(choice) for choice in self.form.chunks(update))

    def ending(self) -> Iterator[Event]:
        if self.has_usage_chunk:
            chunk = self._envelope(self.form.chunk_kind, [])
            yield Event(chunk | {"usage": self.usage.described()} | self._metrics())
        yield Event("[DONE]")

    def failure(self, error: Json) -> Iterator[Event]:
        yield Event(error)

    def _chunk(self, choice: Json, members: Json | None = None) -> Event:
        """members: further ones, beside the choices."""
        chunk = self._envelope(self.form.chunk_kind, [choice]) | (members or {})
        if not self.has_usage_chunk:
            return Event(chunk)
        usage = self.usage.described() if self.has_running_usage else None
        return Event(chunk | {"usage": usage})

    def whole(self, samples: Sequence[Update]) -> Json:
        for update in samples:
            self._note(update)
        choices = [self.form.whole(update) for update in samples]
        whole = self._envelope(self.form.kind, choices) | {"usage": self.usage.described()}
        return whole | self._metrics()

    def _note(self, update: Update) -> None:
        if self.metrics is not None:
            self.metrics.note(update)

    def _metrics(self) -> Json:
        return {} if self.metrics is None else self.metrics.described()

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.form.prefix + self.key,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def form_of(prepared: Prepared, tokenizer: Tokenizer, key: str, chain: Sequence[str] = ()) -> Form:
    """Returns the form of the answer to a request.

    key: makes the ids of the answer and its tool calls. chain: the names of the levels.
    """
    request, extras = prepared.request, Extras(prepared, tokenizer, chain)
    if isinstance(request, CompletionRequest):
        return CompletionForm(request, prepared.prompts, tokenizer, extras)
    return ChatForm(request, prepared, tokenizer, extras, key)


@dataclass
class CompletionForm:
    """The choices of completions."""

    prefix = "cmpl-"
    kind = chunk_kind = "text_completion"

    _request: CompletionRequest
    _prompts: Sequence[Sequence[int]]
    _tokenizer: Tokenizer
    _extras: Extras
    _places: dict[int, Places] = field(default_factory=dict)  # by sample

    def opening(self, sample: int) -> list[Json]:
        if not self._request.has_echo or self._request.is_prompt_scored:
            return []
        return [_choice(sample, text=self._echo(sample))]

    def chunks(self, update: Update) -> list[Json]:
        return [self._choice(update)]

    def nothing(self, sample: int) -> Json:
        return {"index": sample, "text": "", "logprobs": None, "finish_reason": None}

    def whole(self, update: Update) -> Json:
        choice = self._choice(update)
        if self._request.has_echo and not self._request.is_prompt_scored:
            choice["text"] = self._echo(update.sample) + choice["text"]
        prompt = self._prompts[self._prompt_of(update.sample)]
        return choice | self._extras.of_whole(update, prompt)

    def _choice(self, update: Update) -> Json:
        if self._request.is_only_prompt:
            nothing = replace(update, text="", tokens=[], logprobs=[], origins=[])
            update = replace(nothing, finish_reason="length")
        text = update.text
        if self._request.is_prompt_scored and update.sample not in self._places:
            text = self._echo(update.sample) + text
        has_logprobs = self._request.params.logprobs is not None
        logprobs = self._logprobs(update) if has_logprobs else None
        choice = _choice(update.sample, logprobs, update.finish_reason, text=text)
        return choice | self._extras.of(update)

    def _prompt_of(self, sample: int) -> int:
        return sample // self._request.params.n

    def _echo(self, sample: int) -> str:
        prompt = self._request.prompts[self._prompt_of(sample)]
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)

    def _logprobs(self, update: Update) -> Json:
        """Returns log-probabilities of the new tokens.

        If those of the prompt are requested too, they come first, in a sample's first chunk. The
        prompt's first token has none.
        """
        written: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if update.sample not in self._places:
            length, prompt = 0, self._prompt_of(update.sample)
            if self._request.is_prompt_scored:
                written["tokens"].append(spelled(self._tokenizer, self._prompts[prompt][0]))
                written["token_logprobs"].append(None)
                written["top_logprobs"].append(None)
                self._write(written, update.prompt_logprobs)
                written["text_offset"] += self._places_in_echo(prompt)
                length = len(self._echo(update.sample))
            stream = self._tokenizer.stream(after=self._prompts[prompt])
            self._places[update.sample] = Places(stream, length)
        self._write(written, update.logprobs)
        places = self._places[update.sample]
        written["text_offset"] += [places.next(each.token) for each in update.logprobs]
        return written

    def _write(self, written: Json, logprobs: Sequence[TokenLogprob]) -> None:
        for each in logprobs:
            written["tokens"].append(spelled(self._tokenizer, each.token))
            written["token_logprobs"].append(_finite(each.logprob))
            written["top_logprobs"].append(self._top(each))

    def _places_in_echo(self, prompt: int) -> list[int]:
        """Returns where the tokens of a prompt begin: in its text, which may spell out special
        tokens, or in that of its ids, which omits them."""
        given = self._request.prompts[prompt]
        if isinstance(given, str):
            return self._tokenizer.places(given)
        places = Places(self._tokenizer.stream())
        return [places.next(token) for token in given]

    def _top(self, each: TokenLogprob) -> dict[str, float]:
        """Returns the most likely tokens and, as OpenAI does, the token itself."""
        of_all = [*each.top, (each.token, each.logprob)]
        return {spelled(self._tokenizer, token): _finite(logprob) for token, logprob in of_all}


@dataclass
class ChatForm:
    """The choices of chats."""

    prefix = "chatcmpl-"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    _request: ChatRequest
    _prepared: Prepared
    _tokenizer: Tokenizer
    _extras: Extras
    _key: str
    _readers: dict[int, PartReader] = field(default_factory=dict)  # by sample

    def opening(self, sample: int) -> list[Json]:
        return [_choice(sample, delta={"role": "assistant", "content": ""})]

    def chunks(self, update: Update) -> list[Json]:
        thought, content, calls = self._parts(update)
        delta: Json = {"reasoning_content": thought} if thought else {}
        if content:
            delta["content"] = content
        if calls:
            delta["tool_calls"] = [{"index": index} | call for index, call in calls.items()]
        choice = self._choice(update) | {"delta": delta}
        if not calls or update.finish_reason is None:
            return [choice]
        # OpenAI's client considers arguments complete only if a later chunk has the finish_reason.
        end = _choice(update.sample, None, choice["finish_reason"], delta={})
        return [choice | {"finish_reason": None}, end]

    def nothing(self, sample: int) -> Json:
        return {"index": sample, "delta": {}, "logprobs": None, "finish_reason": None}

    def whole(self, update: Update) -> Json:
        thought, content, calls = self._parts(update)
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message |= {"content": content or None, "tool_calls": list(calls.values())}
        choice = self._choice(update) | {"message": message}
        return choice | self._extras.of_whole(update, self._prepared.prompts[0])

    def _parts(self, update: Update) -> tuple[str, str, dict[int, Json]]:
        """Returns new text of the reasoning and the content, and new parts of calls by index."""
        sample, thought, content, calls = update.sample, "", "", dict[int, Json]()
        if sample not in self._readers:
            self._readers[sample] = reader_of(self._prepared)
        is_last = update.finish_reason is not None
        for part in self._readers[sample].read(update.text, is_last=is_last):
            if isinstance(part, Thought):
                thought += part.text
            elif isinstance(part, str):
                content += part
            else:
                call = calls.setdefault(part.index, {"function": {"arguments": ""}})
                if part.name is not None:
                    call["id"] = id_of("call_", self._key, sample, part.index)
                    call |= {"type": "function", "function": {"name": part.name, "arguments": ""}}
                call["function"]["arguments"] += part.arguments
        return thought, content, calls

    def _choice(self, update: Update) -> Json:
        """Returns the shared members. Call `_parts` first, which creates the reader."""
        has_logprobs = self._request.params.logprobs is not None
        has_called = update.finish_reason == "stop" and self._readers[update.sample].has_calls
        logprobs = self._logprobs(update) if has_logprobs else None
        reason = "tool_calls" if has_called else update.finish_reason
        return _choice(update.sample, logprobs, reason) | self._extras.of(update)

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


def _choice(
    sample: int, logprobs: Json | None = None, finish_reason: str | None = None, **members: Any
) -> Json:
    return {"index": sample, **members, "logprobs": logprobs, "finish_reason": finish_reason}


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
