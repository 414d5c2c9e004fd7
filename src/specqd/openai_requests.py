"""Bodies of OpenAI's completion and chat requests, checked. Knows no models and no transport.

Beside OpenAI's fields some of vLLM's are known: those that SamplingParams has, return_token_ids and
chat_template_kwargs. Where a field is absent, temperature and its like are as the model's authors
recommend, not 1 as at OpenAI. What is refused is refused by its field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specqd.body_fields import BodyFields, token_ids
from specqd.errors import FieldError, shown
from specqd.sampling import SamplingParams
from specqd.tokenizer import Tokenizer

MOST_PROMPTS = 256
MOST_SAMPLES = 128  # n of one prompt, as OpenAI has it
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1024
MOST_BIASES = 1024
MOST_LOGPROBS = 20

_COMPLETION_TOKENS = 16  # OpenAI's default for completions; chats run to the context's end
_MOST_INT32 = 2**31 - 1

# Fields that bear SamplingParams' names and need no other check than its own.
_SAMPLING = (
    *("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed"),
)
_WITHOUT_EFFECT = ("user", "service_tier", "safety_identifier", "prompt_cache_key")  # texts
_SHARED = (
    *_SAMPLING,
    *("top_k", "n", "max_tokens", "logprobs", "logit_bias", "stop", "stop_token_ids", "ignore_eos"),
    *("model", "stream", "stream_options", "response_format", "return_token_ids"),
    *(*_WITHOUT_EFFECT, "metadata", "store"),
)
_COMPLETION = frozenset((*_SHARED, "prompt", "echo", "best_of", "suffix"))
_CHAT = frozenset(
    (*_SHARED, "messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs")
)
_SET_BY_US = ("add_generation_prompt", "documents", "messages", "self", "tools")  # in templates

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """What both kinds of request may say beside prompts and sampling."""

    model: str | None = None
    is_streamed: bool = False
    has_usage_chunk: bool = False  # at the stream's end
    has_token_ids: bool = False
    schema: dict[str, Any] | None = None  # that the text must follow, as JSON


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What /v1/completions asks for: `params.n` continuations of each prompt."""

    prompts: tuple[str | tuple[int, ...], ...]  # texts or token ids
    params: SamplingParams
    options: Options = field(default_factory=Options)
    has_echo: bool = False  # the prompt stands before the text

    def encoded(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The prompts' ids, of which the model may still refuse some."""
        return [
            tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            for prompt in self.prompts
        ]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What /v1/chat/completions asks for: `params.n` answers to one conversation."""

    messages: tuple[Message, ...]
    params: SamplingParams
    options: Options = field(default_factory=Options)
    template_variables: Mapping[str, Any] = field(default_factory=dict)

    def encoded(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The one prompt's ids. Runs the model's template; raises TokenizerError where it fails."""
        return [tokenizer.chat(self.messages, **self.template_variables)]


Request = CompletionRequest | ChatRequest


def completion_request(body: object) -> CompletionRequest:
    """The request in a body of /v1/completions; raises FieldError."""
    fields = BodyFields.of(body, _COMPLETION)
    logprobs = fields.whole("logprobs", 0, MOST_LOGPROBS)
    most = fields.values.get("max_tokens", _COMPLETION_TOKENS)
    request = CompletionRequest(
        _prompts(fields),
        _params(fields, most, logprobs),
        _options(fields),
        fields.flag("echo"),
    )
    if fields.text("suffix"):
        raise FieldError("suffix", "nothing can be inserted before a text; leave it out")
    if fields.whole("best_of", 1, MOST_SAMPLES) not in (None, request.params.n):
        raise FieldError("best_of", "must equal n; samples are not ranked")
    if request.has_echo and logprobs is not None:
        raise FieldError("echo", "log-probabilities of prompts are not given; drop one")
    return request


def chat_request(body: object) -> ChatRequest:
    """The request in a body of /v1/chat/completions; raises FieldError."""
    fields = BodyFields.of(body, _CHAT)
    most = fields.whole("max_completion_tokens", 1, _MOST_INT32)
    if most is not None and fields.get("max_tokens") is not None:
        raise FieldError("max_tokens", "max_completion_tokens says the same; give one of them")
    has_logprobs = fields.flag("logprobs")
    top = fields.whole("top_logprobs", 0, MOST_LOGPROBS)
    if top is not None and not has_logprobs:
        raise FieldError("top_logprobs", "goes with logprobs: true")
    variables = fields.object("chat_template_kwargs") or {}
    if taken := set(_SET_BY_US) & set(variables):
        raise FieldError("chat_template_kwargs", f"{min(taken)} cannot be set here")
    return ChatRequest(
        messages_of(fields),
        _params(fields, most or fields.get("max_tokens"), (top or 0) if has_logprobs else None),
        _options(fields),
        variables,
    )


def _params(fields: BodyFields, most: object, logprobs: int | None) -> SamplingParams:
    sampling: dict[str, Any] = {
        name: fields.values[name] for name in _SAMPLING if name in fields.values
    }
    top_k: Any = fields.get("top_k")
    return SamplingParams(
        **sampling,
        max_tokens=most,  # type: ignore[arg-type]  # SamplingParams checks what it is given
        top_k=0 if top_k == -1 else top_k,  # vLLM's way to say all
        n=fields.whole("n", 1, MOST_SAMPLES) or 1,
        logit_bias=_biases(fields),
        stop=_stops(fields),
        stop_token_ids=fields.token_ids("stop_token_ids", MOST_STOPS),
        ignore_eos=fields.flag("ignore_eos"),
        logprobs=logprobs,
    )


def _options(fields: BodyFields) -> Options:
    for name in _WITHOUT_EFFECT:
        fields.text(name)
    fields.object("metadata")
    fields.flag("store")
    is_streamed = fields.flag("stream")
    of_stream = fields.nested("stream_options", ("include_usage", "include_obfuscation"))
    if of_stream is not None:
        of_stream.flag("include_obfuscation")  # none is ever added
        if not is_streamed:
            raise FieldError("stream_options", "goes with stream: true")
    schema = _schema(fields)
    if schema is not None and fields.flag("ignore_eos"):
        raise FieldError("ignore_eos", "what follows a schema has an end")
    return Options(
        fields.text("model"),
        is_streamed,
        of_stream is not None and of_stream.flag("include_usage"),
        fields.flag("return_token_ids"),
        schema,
    )


def _schema(fields: BodyFields) -> dict[str, Any] | None:
    """It is followed to the letter, whatever `strict` says."""
    form = fields.nested("response_format", ("type", "json_schema"))
    if form is None:
        return None
    kind = form.text("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise form.wrong("type", "text, json_object or json_schema")
    named = form.nested("json_schema", ("name", "description", "schema", "strict"))
    if (named is not None) != (kind == "json_schema"):
        raise form.error("json_schema", "goes with the type json_schema, and that with it")
    if named is None:
        return {"type": "object"} if kind == "json_object" else None
    named.text("description")
    named.flag("strict")
    if named.text("name") is None:
        raise named.wrong("name", "a text")
    schema = named.object("schema")
    if schema is None:
        raise named.wrong("schema", "an object")
    return schema


def _prompts(fields: BodyFields) -> tuple[str | tuple[int, ...], ...]:
    """A text, a list of texts, a list of token ids or a list of such lists."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, list) or not prompt:
        raise fields.wrong("prompt", "a text, a list of token ids, or a list of either")
    if type(prompt[0]) is int:
        return (fields.token_ids("prompt"),)
    if len(prompt) > MOST_PROMPTS:
        raise FieldError("prompt", f"{len(prompt)} prompts; {MOST_PROMPTS} are the most")
    return tuple(
        each if isinstance(each, str) else token_ids(f"prompt[{i}]", each)
        for i, each in enumerate(prompt)
    )


def messages_of(fields: BodyFields) -> tuple[Message, ...]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", "a list of at least one message")
    return tuple(_message(f"messages[{i}]", message) for i, message in enumerate(messages))


def _message(name: str, message: object) -> Message:
    """As templates expect it: a text in one piece, under a role that all of them know. What they
    make of further members is their affair."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise FieldError(name, f"{shown(message)} is not an object with a role")
    role = "system" if message["role"] == "developer" else message["role"]
    content = message.get("content")
    if isinstance(content, list):
        texts = [_part(f"{name}.content[{i}]", part) for i, part in enumerate(content)]
        return {**message, "role": role, "content": "\n".join(texts)}
    if content is not None and not isinstance(content, str):
        raise FieldError(f"{name}.content", f"{shown(content)} is not a text or a list of parts")
    return {**message, "role": role}


def _part(name: str, part: object) -> str:
    fields = BodyFields.of(part, ("type", "text"), name)
    text = fields.text("text")
    if fields.get("type") != "text" or text is None:
        raise FieldError(name, 'a part {"type": "text", "text": ...} is needed')
    return text


def _biases(fields: BodyFields) -> dict[int, Any]:
    """JSON's keys are texts; the ids in them are decimal."""
    given = fields.object("logit_bias") or {}
    if len(given) > MOST_BIASES:
        raise FieldError("logit_bias", f"{len(given)} tokens; {MOST_BIASES} are the most")
    for token in given:
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            raise FieldError("logit_bias", f"{shown(token)} is not a token id")
    return {int(token): bias for token, bias in given.items() if bias is not None}


def _stops(fields: BodyFields) -> tuple[str, ...]:
    given = fields.values.get("stop", [])
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise fields.wrong("stop", "a text or a list of texts")
    if len(stops) > MOST_STOPS or any(len(stop) > MOST_STOP_CHARACTERS for stop in stops):
        most = f"{MOST_STOPS} texts of {MOST_STOP_CHARACTERS} characters"
        raise FieldError("stop", f"{most} are the most")
    return tuple(stops)
