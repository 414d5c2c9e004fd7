"""Bodies of OpenAI's completion and chat requests, checked. Knows no models and no transport.

Beside OpenAI's fields some of vLLM's are known: those that SamplingParams has, min_tokens where it
holds anyway, continuous_usage_stats, return_token_ids, cache_salt and chat_template_kwargs; and
some of our own: return_origins, return_progress and draft.
Where a field is absent, temperature and its like are as the model's authors recommend, not 1 as at
OpenAI. What is refused is refused by its field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specqd.config.fields import Fields, token_ids
from specqd.errors import FieldError, shown
from specqd.openai import tools as openai_tools
from specqd.openai.tool_calls import CallForm, ToolUse, call_form
from specqd.sampling import SamplingParams
from specqd.text.channels import has_channels
from specqd.text.tokenizer import Tokenizer

MOST_PROMPTS = 256
MOST_SAMPLES = 128  # n of one prompt, as OpenAI has it
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1024
MOST_BIASES = 1024
MOST_LOGPROBS = 20
MOST_PROMPT_LOGPROBS = 1 << 18  # in one answer: to write them takes a quarter of a second

_COMPLETION_TOKENS = 16  # OpenAI's default for completions; chats run to the context's end
_MOST_INT32 = 2**31 - 1

# Fields that bear SamplingParams' names and need no other check than its own.
_SAMPLING = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
_WITHOUT_EFFECT = ("user", "service_tier", "safety_identifier", "prompt_cache_key")  # texts
_ENDS = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos")
_TOLD = ("stream", "stream_options", "logprobs", "return_token_ids", "return_origins")
_OTHERS = ("model", "n", "top_k", "logit_bias", "response_format", "cache_salt", "draft")
_SHARED = {*_SAMPLING, *_WITHOUT_EFFECT, *_ENDS, *_TOLD, *_OTHERS}
_SHARED |= {"return_progress", "metadata", "store"}
_COMPLETION = _SHARED | {"prompt", "echo", "best_of", "suffix"}
_CHAT = _SHARED | set(openai_tools.FIELDS)
_CHAT |= {"messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs"}
_SET_BY_US = ("add_generation_prompt", "documents", "messages", "self", "tools")  # in templates

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """What both kinds of request may say beside prompts and sampling."""

    model: str | None = None
    is_streamed: bool = False
    has_usage_chunk: bool = False  # at the stream's end
    has_running_usage: bool = False  # in its other chunks too
    has_token_ids: bool = False
    schema: dict[str, Any] | None = None  # that the text must follow, as JSON
    cache_salt: str = ""  # cached prompts are shared among requests of the same one
    has_origins: bool = False  # each token's text, and who said it first
    has_progress: bool = False  # with each chunk, what the levels did so far
    is_plain: bool = False  # without drafts; the text is the same
    asked_tokens: int = 1  # new ones for which there must be room; without max_tokens, one


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What /v1/completions asks for: `params.n` continuations of each prompt."""

    prompts: tuple[str | tuple[int, ...], ...]  # texts or token ids
    params: SamplingParams
    options: Options = field(default_factory=Options)
    has_echo: bool = False  # the prompt stands before the text
    is_only_echo: bool = False  # and the text is left out: no engine ends before its first token

    @property
    def is_prompt_scored(self) -> bool:
        """Whether log-probabilities are given of the prompt's tokens too."""
        return self.params.prompt_logprobs is not None

    @property
    def has_rules(self) -> bool:
        """Whether a grammar says what may come next."""
        return self.options.schema is not None

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
    tool_use: ToolUse | None = None

    @property
    def has_rules(self) -> bool:
        """Whether a grammar says what may come next."""
        is_held = self.tool_use is not None and self.tool_use.has_rules
        return is_held or self.options.schema is not None

    def encoded(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The one prompt's ids. Runs the model's template; raises TokenizerError where it fails."""
        tools = [tool.described() for tool in self.tool_use.tools] if self.tool_use else None
        return [tokenizer.chat(self.messages, tools=tools, **self.template_variables)]


Request = CompletionRequest | ChatRequest


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as one model takes it."""

    request: Request
    prompts: list[list[int]]
    params: SamplingParams
    call_form: CallForm | None = None  # where tools may be called
    has_channels: bool = False  # its texts say which part is thought and which the answer

    @classmethod
    def of(cls, request: Request, tokenizer: Tokenizer) -> "Prepared":
        """Raises RequestError for what this model cannot do, TokenizerError where its template
        fails."""
        form, params = None, request.params
        is_free_chat = isinstance(request, ChatRequest) and not request.has_rules
        is_channeled = is_free_chat and has_channels(tokenizer)
        if isinstance(request, ChatRequest) and request.tool_use is not None:
            form = call_form(tokenizer)
        if is_channeled or (form is not None and form.special_ids):
            params = replace(params, skip_special_tokens=False)
        prompts = request.encoded(tokenizer)
        if params.prompt_logprobs is not None:
            told = sum(map(len, prompts)) * params.n * (1 + params.prompt_logprobs)
            if told > MOST_PROMPT_LOGPROBS:
                most = f"of prompts {told} log-probabilities; {MOST_PROMPT_LOGPROBS} are the most"
                raise FieldError("echo", f"asks for {most}; lower logprobs, or send fewer prompts")
        return cls(request, prompts, params, form, is_channeled)

    @property
    def has_rules(self) -> bool:
        return self.request.has_rules

    @property
    def tool_use(self) -> ToolUse | None:
        return self.request.tool_use if isinstance(self.request, ChatRequest) else None


def completion_request(body: object) -> CompletionRequest:
    """The request in a body of /v1/completions; raises FieldError."""
    fields = Fields.of(body, _COMPLETION)
    logprobs = fields.whole("logprobs", 0, MOST_LOGPROBS)
    has_echo = fields.flag("echo")
    most = _most_tokens(fields, 0 if has_echo else 1)
    params = _params(fields, _COMPLETION_TOKENS if most is None else max(most, 1), logprobs)
    options = _options(fields, most)
    if has_echo:
        params = replace(params, prompt_logprobs=logprobs)
    request = CompletionRequest(_prompts(fields), params, options, has_echo, most == 0)
    if fields.text("suffix"):
        raise FieldError("suffix", "nothing can be inserted before a text; leave it out")
    if fields.whole("best_of", 1, MOST_SAMPLES) not in (None, request.params.n):
        raise FieldError("best_of", "must equal n; samples are not ranked")
    return request


def chat_request(body: object) -> ChatRequest:
    """The request in a body of /v1/chat/completions; raises FieldError."""
    fields = Fields.of(body, _CHAT)
    completion, most = fields.whole("max_completion_tokens", 1, _MOST_INT32), _most_tokens(fields)
    if completion is not None and most is not None:
        raise FieldError("max_tokens", "max_completion_tokens says the same; give one of them")
    most = completion or most
    has_logprobs = fields.flag("logprobs")
    top = fields.whole("top_logprobs", 0, MOST_LOGPROBS)
    if top is not None and not has_logprobs:
        raise FieldError("top_logprobs", "goes with logprobs: true")
    variables = fields.object("chat_template_kwargs") or {}
    if taken := set(_SET_BY_US) & set(variables):
        raise FieldError("chat_template_kwargs", f"{min(taken)} cannot be set here")
    tool_use, options = openai_tools.tool_use(fields), _options(fields, most)
    if tool_use is not None and tool_use.has_rules and fields.flag("ignore_eos"):
        raise FieldError("ignore_eos", "what follows a schema has an end")
    if tool_use is not None and tool_use.must_call and options.schema is not None:
        raise FieldError("response_format", "a text that must call a tool has no other form")
    return ChatRequest(
        messages_of(fields),
        _params(fields, most, (top or 0) if has_logprobs else None),
        options,
        variables,
        tool_use,
    )


def _most_tokens(fields: Fields, least: int = 1) -> int | None:
    return fields.whole("max_tokens", least, _MOST_INT32)


def _params(fields: Fields, most: int | None, logprobs: int | None) -> SamplingParams:
    sampling: dict[str, Any] = {
        name: fields.values[name] for name in _SAMPLING if name in fields.values
    }
    top_k: Any = fields.get("top_k")
    params = SamplingParams(
        **sampling,
        max_tokens=most,
        top_k=0 if top_k == -1 else top_k,  # vLLM's way to say all
        n=fields.whole("n", 1, MOST_SAMPLES) or 1,
        logit_bias=_biases(fields),
        stop=_stops(fields),
        stop_token_ids=fields.token_ids("stop_token_ids", MOST_STOPS),
        ignore_eos=fields.flag("ignore_eos"),
        logprobs=logprobs,
    )
    least = fields.whole("min_tokens", 0, _MOST_INT32)
    is_free_to_end = not params.ignore_eos or params.stop or params.stop_token_ids
    if least and (is_free_to_end or (most is not None and least > most)):
        raise FieldError("min_tokens", "goes with ignore_eos: true, no stops, and max_tokens above")
    return params


def _options(fields: Fields, most: int | None) -> Options:
    for name in _WITHOUT_EFFECT:
        fields.text(name)
    fields.object("metadata")
    fields.flag("store")
    is_streamed = fields.flag("stream")
    has_usage_chunk, has_running_usage = _usage_options(fields)
    if fields.text("cache_salt") == "":
        raise fields.wrong("cache_salt", "a text that is not empty")
    has_progress = fields.flag("return_progress")
    if has_progress and not is_streamed:
        raise FieldError("return_progress", "goes with stream: true")
    if fields.text("draft") not in (None, "none"):
        raise fields.wrong("draft", "none, or no such field,")
    schema = _schema(fields)
    if schema is not None and fields.flag("ignore_eos"):
        raise FieldError("ignore_eos", "what follows a schema has an end")
    return Options(
        fields.text("model"),
        is_streamed,
        has_usage_chunk,
        has_running_usage,
        fields.flag("return_token_ids"),
        schema,
        cache_salt=fields.text("cache_salt") or "",
        has_origins=fields.flag("return_origins"),
        has_progress=has_progress,
        is_plain=fields.text("draft") == "none",
        asked_tokens=most or 1,
    )


def _usage_options(fields: Fields) -> tuple[bool, bool]:
    """Whether a stream ends with its usage, and whether each chunk has that so far."""
    options = fields.nested(
        "stream_options", ("include_usage", "continuous_usage_stats", "include_obfuscation")
    )
    if options is None:
        return False, False
    options.flag("include_obfuscation")  # none is ever added
    if not fields.flag("stream"):
        raise FieldError("stream_options", "goes with stream: true")
    at_end, is_running = options.flag("include_usage"), options.flag("continuous_usage_stats")
    if is_running and not at_end:
        raise options.error("continuous_usage_stats", "goes with include_usage: true")
    return at_end, is_running


def _schema(fields: Fields) -> dict[str, Any] | None:
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


def _prompts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
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


def messages_of(fields: Fields) -> tuple[Message, ...]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", "a list of at least one message")
    checked = [_message(f"messages[{i}]", message) for i, message in enumerate(messages)]
    return openai_tools.with_names(checked)


def _message(name: str, message: object) -> Message:
    """As templates expect it: a text in one piece, under a role that all of them know. What they
    make of further members is their affair."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise FieldError(name, f"{shown(message)} is not an object with a role")
    role = "system" if message["role"] == "developer" else message["role"]
    if message.get("tool_calls") is not None:
        calls = openai_tools.calls_of(f"{name}.tool_calls", message["tool_calls"])
        message = {**message, "tool_calls": calls}
    content = message.get("content")
    if isinstance(content, list):
        texts = [_part(f"{name}.content[{i}]", part) for i, part in enumerate(content)]
        return {**message, "role": role, "content": "\n".join(texts)}
    if content is not None and not isinstance(content, str):
        raise FieldError(f"{name}.content", f"{shown(content)} is not a text or a list of parts")
    return {**message, "role": role}


def _part(name: str, part: object) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else part
        raise FieldError(name, f'is {shown(kind)}; only {{"type": "text", "text": ...}} is read')
    fields = Fields.of(part, ("type", "text"), name)
    text = fields.text("text")
    if text is None:
        raise fields.wrong("text", "a text")
    return text


def _biases(fields: Fields) -> dict[int, Any]:
    """JSON's keys are texts; the ids in them are decimal."""
    given = fields.object("logit_bias") or {}
    if len(given) > MOST_BIASES:
        raise FieldError("logit_bias", f"{len(given)} tokens; {MOST_BIASES} are the most")
    for token in given:
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            raise FieldError("logit_bias", f"{shown(token)} is not a token id")
    return {int(token): bias for token, bias in given.items() if bias is not None}


def _stops(fields: Fields) -> tuple[str, ...]:
    given = fields.values.get("stop", [])
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise fields.wrong("stop", "a text or a list of texts")
    if len(stops) > MOST_STOPS or any(len(stop) > MOST_STOP_CHARACTERS for stop in stops):
        most = f"{MOST_STOPS} texts of {MOST_STOP_CHARACTERS} characters"
        raise FieldError("stop", f"{most} are the most")
    return tuple(stops)
