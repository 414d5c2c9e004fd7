"""Bodies of OpenAI's completion and chat requests, checked. Knows no models and no transport.

Some of vLLM's fields are known too: those of SamplingParams, min_tokens (only with ignore_eos),
continuous_usage_stats, return_token_ids, cache_salt and chat_template_kwargs; and three of ours:
return_origins, return_progress and draft. Where sampling fields are absent, the model's
recommendation applies, not OpenAI's temperature of 1. Errors name the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specqd.config.fields import Fields, token_ids
from specqd.engine.generation import GenerationRequest, MakeGrammar
from specqd.errors import FieldError, shown
from specqd.openai import tools as openai_tools
from specqd.openai.tool_calls import CallForm, ToolUse, call_form
from specqd.sampling import Defaults, SamplingParams
from specqd.text.channels import has_channels
from specqd.text.tokenizer import Tokenizer

MOST_PROMPTS = 256
MOST_SAMPLES = 128  # n of one prompt, as OpenAI has it
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1024
MOST_BIASES = 1024
MOST_LOGPROBS = 20
MOST_PROMPT_LOGPROBS = 1 << 18  # in one answer: writing them takes 0.25 s

_COMPLETION_TOKENS = 16  # OpenAI's default for completions; chats run to the context's end
_MOST_INT32 = 2**31 - 1

# Fields with SamplingParams' names and checks.
_SAMPLING = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
_WITHOUT_EFFECT = ("user", "service_tier", "safety_identifier", "prompt_cache_key")  # strings
_ENDS = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos")
_SHOWN = ("stream", "stream_options", "logprobs", "return_token_ids", "return_origins")
_OTHERS = ("model", "n", "top_k", "logit_bias", "response_format", "cache_salt", "draft")
_SHARED = {*_SAMPLING, *_WITHOUT_EFFECT, *_ENDS, *_SHOWN, *_OTHERS}
_SHARED |= {"return_progress", "metadata", "store"}
_COMPLETION = _SHARED | {"prompt", "echo", "best_of", "suffix"}
_CHAT = _SHARED | set(openai_tools.FIELDS)
_CHAT |= {"messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs"}
_SET_BY_US = ("add_generation_prompt", "documents", "messages", "self", "tools")  # in templates

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of both kinds of request, without prompts and sampling."""

    model: str | None = None
    is_streamed: bool = False
    has_usage_chunk: bool = False  # at the stream's end
    has_running_usage: bool = False  # in its other chunks too
    has_token_ids: bool = False
    schema: dict[str, Any] | None = None  # the text must be JSON that follows it
    cache_salt: str = ""  # cached prompts are shared among requests of one salt
    has_origins: bool = False  # each token's text, and the level that proposed it first
    has_progress: bool = False  # with each chunk, the levels' work so far
    is_plain: bool = False  # without drafts, with the same text
    new_tokens: int = 1  # for which there must be room; without max_tokens, one


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for `params.n` continuations of each prompt."""

    prompts: tuple[str | tuple[int, ...], ...]  # texts or token ids
    params: SamplingParams
    options: Options = field(default_factory=Options)
    has_echo: bool = False  # the prompt stands before the text
    is_only_echo: bool = False  # max_tokens is 0; the one token that the engine makes is left out

    @property
    def is_prompt_scored(self) -> bool:
        """Whether the answer has log-probabilities of the prompt's tokens."""
        return self.params.prompt_logprobs is not None

    @property
    def has_rules(self) -> bool:
        """Whether a grammar restricts the text."""
        return self.options.schema is not None

    def encoded(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The prompts' ids. The model may still refuse some."""
        return [
            tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
            for prompt in self.prompts
        ]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request for `params.n` answers to one conversation."""

    messages: tuple[Message, ...]
    params: SamplingParams
    options: Options = field(default_factory=Options)
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    tool_use: ToolUse | None = None

    @property
    def has_rules(self) -> bool:
        """Whether a grammar restricts the text."""
        has_tool_rules = self.tool_use is not None and self.tool_use.has_rules
        return has_tool_rules or self.options.schema is not None

    def encoded(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The one prompt's ids. Runs the model's template; raises TokenizerError where it fails."""
        tools = [tool.described() for tool in self.tool_use.tools] if self.tool_use else None
        return [tokenizer.chat(self.messages, tools=tools, **self.template_variables)]


Request = CompletionRequest | ChatRequest


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with its prompts as one model's tokens."""

    request: Request
    prompts: list[list[int]]
    params: SamplingParams
    call_form: CallForm | None = None  # where tools may be called
    has_channels: bool = False  # its texts mark thoughts and answer

    @classmethod
    def of(cls, request: Request, tokenizer: Tokenizer) -> "Prepared":
        """Raises RequestError where this model cannot do it, TokenizerError where its chat
        template fails."""
        form, params = None, request.params
        is_free_chat = isinstance(request, ChatRequest) and not request.has_rules
        is_channeled = is_free_chat and has_channels(tokenizer)
        if isinstance(request, ChatRequest) and request.tool_use is not None:
            form = call_form(tokenizer)
        if is_channeled or (form is not None and form.special_ids):
            params = replace(params, skip_special_tokens=False)
        prompts = request.encoded(tokenizer)
        if params.prompt_logprobs is not None:
            count = sum(map(len, prompts)) * params.n * (1 + params.prompt_logprobs)
            if count > MOST_PROMPT_LOGPROBS:
                most = f"{count} log-probabilities of prompts; {MOST_PROMPT_LOGPROBS} are the most"
                raise FieldError("echo", f"asks for {most}; lower logprobs, or send fewer prompts")
        return cls(request, prompts, params, form, is_channeled)

    def for_engine(
        self, defaults: Defaults, make_grammar: MakeGrammar | None, cache_salt: str
    ) -> GenerationRequest:
        """defaults: the model's own recommendation, for what the request leaves open."""
        options = self.request.options
        return GenerationRequest(
            self.prompts,
            self.params.resolved(defaults),
            make_grammar,
            cache_salt,
            options.is_plain,
            options.new_tokens,
        )

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
        raise FieldError("suffix", "insertion before a suffix is not supported; leave it out")
    if fields.whole("best_of", 1, MOST_SAMPLES) not in (None, request.params.n):
        raise FieldError("best_of", "must equal n; samples are not ranked")
    return request


def chat_request(body: object) -> ChatRequest:
    """The request in a body of /v1/chat/completions; raises FieldError."""
    fields = Fields.of(body, _CHAT)
    completion, most = fields.whole("max_completion_tokens", 1, _MOST_INT32), _most_tokens(fields)
    if completion is not None and most is not None:
        raise FieldError("max_tokens", "max_completion_tokens means the same; give one of them")
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
        raise FieldError("ignore_eos", "text that follows a schema ends by itself; leave it out")
    if tool_use is not None and tool_use.must_call and options.schema is not None:
        raise FieldError(
            "response_format", "tool_choice demands a call, which is no such text; drop one"
        )
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
        raise fields.wrong("draft", '"none"')
    schema = _schema(fields)
    if schema is not None and fields.flag("ignore_eos"):
        raise FieldError("ignore_eos", "text that follows a schema ends by itself; leave it out")
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
        new_tokens=most or 1,
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
    """The schema of response_format; every schema is enforced, with `strict` or without."""
    form = fields.nested("response_format", ("type", "json_schema"))
    if form is None:
        return None
    kind = form.text("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise form.wrong("type", "text, json_object or json_schema")
    named = form.nested("json_schema", ("name", "description", "schema", "strict"))
    if (named is not None) != (kind == "json_schema"):
        raise form.error("json_schema", "the type json_schema needs it, and no other type takes it")
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
    """A message as templates expect it: its text in one piece, a role that all of them know.
    Further members are passed on."""
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
    """The ids are JSON's keys, so they are strings of decimal digits."""
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
