"""The bodies of requests: OpenAI's fields with vLLM's extensions, and what they ask of sampling.

Values are taken as they are written: a string is not a number. A field that is not known is
refused, so that none is believed to have had an effect.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specqd.sampling import SamplingParams
from specqd.server.problems import refused

MOST_PROMPTS = 256
MOST_SAMPLES = 128  # n of one prompt, as OpenAI has it
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1024
MOST_BIASES = 1024
MOST_LOGPROBS = 20

Prompt = str | list[int]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool = False  # none is ever added


class TextFormat(Body):
    type: Literal["text"]


class ObjectFormat(Body):
    type: Literal["json_object"]


class NamedSchema(Body):
    """Followed to the letter, whatever `strict` says."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class SchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class SamplingBody(Body):
    """What completions and chats have in common."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] | None = 1
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    response_format: Annotated[
        TextFormat | ObjectFormat | SchemaFormat | None, Field(discriminator="type")
    ] = None
    # vLLM's:
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[int], Field(max_length=MOST_STOPS)] | None = None
    return_token_ids: bool | None = False
    # OpenAI's that change no text:
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def has_usage_chunk(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def num_samples(self) -> int:
        return self.n or 1

    @property
    def schema_to_follow(self) -> dict[str, Any] | None:
        match self.response_format:
            case ObjectFormat():
                return {"type": "object"}
            case SchemaFormat(json_schema=named):
                return named.schema_
        return None

    def sampling(self, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """Raises RequestError for a value out of range, ProblemError for what is too much."""
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options goes with stream: true", "stream_options")
        if self.ignore_eos and self.schema_to_follow is not None:
            raise refused("ignore_eos: what follows a schema has an end", "ignore_eos")
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MOST_STOPS or any(len(stop) > MOST_STOP_CHARACTERS for stop in stops):
            raise refused(
                f"stop: at most {MOST_STOPS} texts of {MOST_STOP_CHARACTERS} characters", "stop"
            )
        top_k = 0 if self.top_k == -1 else self.top_k  # vLLM's way to say all
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=biases_of(self.logit_bias or {}),
            seed=self.seed,
            n=self.num_samples,
            stop=tuple(stops),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
        )


class CompletionBody(SamplingBody):
    prompt: str | list[int] | list[str] | list[list[int]]
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    best_of: int | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[Prompt]:
        many = self.prompt
        if isinstance(many, str):
            return [many]
        if many and isinstance(many[0], int):
            return [[token for token in many if isinstance(token, int)]]
        return [each for each in many if not isinstance(each, int)]

    def params(self) -> SamplingParams:
        if self.suffix:
            raise refused("suffix: nothing can be inserted before a text; leave it out", "suffix")
        if self.best_of not in (None, self.num_samples):
            raise refused("best_of: must equal n; samples are not ranked", "best_of")
        if self.echo and self.logprobs is not None:
            raise refused("echo: log-probabilities of prompts are not given; drop one", "echo")
        if not 1 <= len(self.prompts) <= MOST_PROMPTS:
            raise refused(f"prompt: give 1 to {MOST_PROMPTS} prompts", "prompt")
        return self.sampling(16 if self.max_tokens is None else self.max_tokens, self.logprobs)


class TextPart(Body):
    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """What a template makes of a message's further fields is the template's affair."""

    model_config = ConfigDict(extra="allow", strict=True)
    role: str
    content: str | list[TextPart] | None = None

    def plain(self) -> dict[str, Any]:
        """As templates expect it: texts in one piece, under the roles that all of them know."""
        message = self.model_dump()
        if isinstance(self.content, list):
            message["content"] = "\n".join(part.text for part in self.content)
        if self.role == "developer":
            message["role"] = "system"
        return message


class ChatBody(SamplingBody):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # vLLM's

    def params(self) -> SamplingParams:
        if self.top_logprobs is not None and not self.logprobs:
            raise refused("top_logprobs: goes with logprobs: true", "top_logprobs")
        most = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return self.sampling(most, (self.top_logprobs or 0) if self.logprobs else None)

    def template_variables(self) -> dict[str, Any]:
        variables = self.chat_template_kwargs or {}
        if taken := {"messages", "tools", "documents", "add_generation_prompt"} & set(variables):
            raise refused(f"chat_template_kwargs: {min(taken)} cannot be set here")
        return variables


class TokenizeBody(Body):
    """vLLM's: a prompt, or a chat's messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[int]


def biases_of(written: dict[str, float]) -> dict[int, float]:
    if len(written) > MOST_BIASES:
        raise refused(f"logit_bias: at most {MOST_BIASES} tokens", "logit_bias")
    for token in written:
        if not (token.isascii() and token.isdecimal() and len(token) < 11):
            raise refused("logit_bias: keys are token ids", "logit_bias")
    return {int(token): bias for token, bias in written.items()}
