"""Checks the bodies of OpenAI's completion and chat requests. Knows no models and no transport.

Also accepts some of vLLM's fields: those of SamplingParams, min_tokens (only with ignore_eos),
continuous_usage_stats, return_token_ids, cache_salt and chat_template_kwargs; llama.cpp's
return_progress; and two fields of this server: return_origins and draft. For sampling fields that
are absent, the model's recommendation applies, or else the defaults of chats. Errors name the
field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specqd.config.fields import Fields, token_ids
from specqd.engine.generation import GenerationRequest, MakeGrammar
from specqd.errors import FieldError
from specqd.openai import tools as openai_tools
from specqd.openai.options import (
    MOST_INT32,
    MOST_SAMPLES,
    SHARED,
    Options,
    options_of,
    sampling_params,
)
from specqd.sampling import Defaults, SamplingParams, request_sampling
from specqd.text.infill import infill
from specqd.text.messages import Message, read_messages
from specqd.text.reasoning import SWITCHES, Reasoning, answer_begun, reasoning_of
from specqd.text.tokenizer import Tokenizer
from specqd.text.tool_calls import CallForm, ToolUse, call_form

MOST_PROMPTS = 256
MOST_LOGPROBS = 20
MOST_PROMPT_LOGPROBS = 1 << 18  # in one answer; writing them takes 0.25 s

_COMPLETION_TOKENS = 16  # OpenAI's default for completions; chats may fill the context

_COMPLETION = SHARED | {"prompt", "echo", "best_of", "suffix"}
_CHAT = SHARED | set(openai_tools.FIELDS)
_CHAT |= {"messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs"}
BUDGET = "thinking_token_budget"  # vLLM's name
_CHAT |= {"reasoning_effort", BUDGET, "add_generation_prompt", "continue_final_message"}
# Template variables that requests cannot set.
_RESERVED = ("add_generation_prompt", "documents", "messages", "self", "tools")


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for `params.n` continuations of each prompt."""

    prompts: tuple[str | tuple[int, ...], ...]  # texts or token ids
    params: SamplingParams
    options: Options = field(default_factory=Options)
    has_echo: bool = False  # the answer's text begins with the prompt
    is_only_prompt: bool = False  # max_tokens is 0: the one token that the engine makes is omitted
    suffix: str | None = None  # the text that follows the middle, which is to be filled

    @property
    def is_prompt_scored(self) -> bool:
        """Whether the answer has log-probabilities of the prompt's tokens."""
        return self.params.prompt_logprobs is not None

    @property
    def has_rules(self) -> bool:
        """Whether a grammar restricts the text."""
        return self.options.has_rules

    def encoded(self, tokenizer: Tokenizer) -> list[list[int]]:
        """Returns the token ids of the prompts. Does not check whether the model accepts them."""
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
    answer: str | None = None  # the answer's beginning, which the texts continue

    @property
    def has_rules(self) -> bool:
        """Whether a grammar restricts the text."""
        return self.has_answer_rules or self.params.thinking_token_budget is not None

    @property
    def has_answer_rules(self) -> bool:
        """Whether a grammar restricts the answer, and not only the reasoning's length."""
        has_tool_rules = self.tool_use is not None and self.tool_use.has_rules
        return has_tool_rules or self.options.has_rules

    def check_rules(self) -> None:
        """Raises FieldError if no text could follow all rules at once."""
        if self.tool_use is None or not self.options.has_rules:
            return
        field = self.options.rules_field
        if self.tool_use.must_call:
            raise FieldError(field, "conflicts with tool_choice, which requires a call; remove one")
        if self.options.pattern is not None:
            raise FieldError(field, "cannot be combined with tools; remove one")

    def encoded(self, tokenizer: Tokenizer, form: CallForm | None = None) -> list[list[int]]:
        """Renders the one prompt with the model's template, and returns its token ids.

        form: of this tokenizer's calls, if it is known already. Raises RequestError if the template
        rejects it, TokenizerError if it fails.
        """
        if self.tool_use is None and not any(map(_has_call, self.messages)):
            text = tokenizer.render_chat(self.messages, **self.template_variables)
        else:
            tools = [tool.described() for tool in self.tool_use.tools] if self.tool_use else None
            form = form or call_form(tokenizer)
            text = form.rendered(tokenizer, self.messages, tools, self.template_variables)
        if self.answer is not None:
            text = answer_begun(tokenizer, text, self.answer)
        return [tokenizer.encode(text, add_special_tokens=False)]


Request = CompletionRequest | ChatRequest


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with its prompts as one model's tokens."""

    request: Request
    prompts: list[list[int]]
    params: SamplingParams
    call_form: CallForm | None = None  # None: no tools
    reasoning: Reasoning | None = None  # how the text marks its reasoning

    @classmethod
    def of(cls, request: Request, tokenizer: Tokenizer) -> "Prepared":
        """Tokenizes the prompts.

        Raises RequestError if this model cannot run the request, TokenizerError if its chat
        template fails.
        """
        form, params = None, request.params
        reasoning = None
        if isinstance(request, ChatRequest):
            form = call_form(tokenizer) if request.tool_use is not None else None
            prompts = request.encoded(tokenizer, form)
            reasoning = reasoning_of(tokenizer, prompts[0])
            if reasoning is not None and reasoning.marks is None and request.has_answer_rules:
                reasoning = None  # rules leave no room for channels
            if reasoning is not None and request.answer is not None and not reasoning.is_open:
                reasoning = None  # it would precede what the client has written
        elif request.suffix is not None:
            prompts, params = _infilled(tokenizer, request, request.suffix)
        else:
            prompts = request.encoded(tokenizer)
        has_marks = reasoning is not None and reasoning.has_special_marks
        if has_marks or (form is not None and form.has_hidden_tags):
            params = replace(params, skip_special_tokens=False)
        if params.prompt_logprobs is not None:
            count = sum(map(len, prompts)) * params.n * (1 + params.prompt_logprobs)
            if count > MOST_PROMPT_LOGPROBS:
                raise FieldError(
                    "echo",
                    f"requests {count} log-probabilities of prompts, but at most "
                    f"{MOST_PROMPT_LOGPROBS} are allowed; lower logprobs, or send fewer prompts",
                )
        return cls(request, prompts, params, form, reasoning)

    def for_engine(
        self, defaults: Defaults, make_grammar: MakeGrammar | None, cache_salt: str
    ) -> GenerationRequest:
        """Returns the engine's request. defaults: applied to fields that the request omits."""
        options = self.request.options
        return GenerationRequest(
            self.prompts,
            request_sampling(self.params, defaults),
            make_grammar,
            cache_salt,
            options.is_plain,
            is_answer=self.is_answer,
        )

    @property
    def is_answer(self) -> bool:
        """Whether the texts are texts of their own, not continuations."""
        return isinstance(self.request, ChatRequest) and not self.request.answer

    def continued(self, sample: int) -> Sequence[int]:
        """Returns the tokens that the text of a sample continues, none for an answer."""
        return () if self.is_answer else self.prompts[sample // self.params.n]

    @property
    def has_rules(self) -> bool:
        return self.request.has_rules

    @property
    def tool_use(self) -> ToolUse | None:
        return self.request.tool_use if isinstance(self.request, ChatRequest) else None


def _infilled(
    tokenizer: Tokenizer, request: CompletionRequest, suffix: str
) -> tuple[list[list[int]], SamplingParams]:
    """Returns prompts for the middles before the suffix, and the parameters that end them."""
    params = request.params
    prompts = []
    for prefix in request.prompts:
        found = infill(tokenizer, str(prefix), suffix)
        if found is None:
            problem = "this model has no tokens for the middle between two texts; leave it out"
            raise FieldError("suffix", problem)
        prompts.append(found.prompt)
        stops = (*request.params.stop_token_ids, *found.stop_token_ids)
        params = replace(request.params, stop_token_ids=stops)
    return prompts, params


def _has_call(message: Message) -> bool:
    return message["role"] == "tool" or bool(message.get("tool_calls"))


def completion_request(body: object) -> CompletionRequest:
    """Reads a body of /v1/completions. Raises RequestError, mostly FieldError."""
    fields = Fields.of(body, _COMPLETION)
    logprobs = fields.whole("logprobs", 0, MOST_LOGPROBS)
    has_echo = fields.flag("echo")
    most = _most_tokens(fields, 0)
    params = sampling_params(fields, _COMPLETION_TOKENS if most is None else max(most, 1), logprobs)
    options = options_of(fields)
    if has_echo:
        params = replace(params, prompt_logprobs=logprobs)
    suffix = fields.text("suffix") or None
    prompts = _prompts(fields)
    if suffix is not None and (has_echo or not all(isinstance(each, str) for each in prompts)):
        raise FieldError("suffix", "needs prompts that are texts, and no echo")
    request = CompletionRequest(prompts, params, options, has_echo, most == 0, suffix)
    if fields.whole("best_of", 1, MOST_SAMPLES) not in (None, request.params.n):
        raise FieldError("best_of", "must equal n, because samples are not ranked")
    return request


def chat_request(body: object) -> ChatRequest:
    """Reads a body of /v1/chat/completions. Raises RequestError, mostly FieldError."""
    fields = Fields.of(body, _CHAT)
    completion, most = fields.whole("max_completion_tokens", 1, MOST_INT32), _most_tokens(fields)
    if completion is not None and most is not None:
        raise FieldError("max_tokens", "means the same as max_completion_tokens; give one of them")
    most = completion or most
    has_logprobs = fields.flag("logprobs")
    top = fields.whole("top_logprobs", 0, MOST_LOGPROBS)
    if top is not None and not has_logprobs:
        raise FieldError("top_logprobs", "needs logprobs: true")
    tool_use, options = openai_tools.tool_use(fields), options_of(fields)
    if tool_use is not None and tool_use.has_rules and fields.flag("ignore_eos"):
        raise FieldError("ignore_eos", "restricted text ends by itself; leave it out")
    params = sampling_params(fields, most, (top or 0) if has_logprobs else None)
    messages, answer = _continued(fields, messages_of(fields))
    request = ChatRequest(
        messages,
        replace(params, thinking_token_budget=fields.whole(BUDGET, 0, MOST_INT32)),
        options,
        effort_variable(fields) | template_variables(fields),
        tool_use,
        answer,
    )
    request.check_rules()
    return request


def _continued(
    fields: Fields, messages: tuple[Message, ...]
) -> tuple[tuple[Message, ...], str | None]:
    """Reads continue_final_message: splits off the answer's beginning, the last message."""
    has_prompt = fields.flag("add_generation_prompt", True)
    if not fields.flag("continue_final_message"):
        if not has_prompt:
            problem = "false needs continue_final_message: true; leave it out"
            raise FieldError("add_generation_prompt", problem)
        return messages, None
    if has_prompt and fields.get("add_generation_prompt") is not None:
        problem = "cannot be combined with add_generation_prompt: true; leave that out"
        raise FieldError("continue_final_message", problem)
    return answer_split_off(messages, "continue_final_message")


def answer_split_off(messages: Sequence[Message], field: str) -> tuple[tuple[Message, ...], str]:
    """Returns the messages before the last one, and that one's text, which texts are to continue.

    Raises FieldError, which names `field`, if it is no text of the assistant's.
    """
    *before, last = messages
    if last["role"] != "assistant" or last.get("tool_calls") or not before:
        problem = "the last message is not a text of the assistant's after other messages; add one"
        raise FieldError(field, problem)
    return tuple(before), last.get("content") or ""


def template_variables(fields: Fields) -> dict[str, Any]:
    """Reads chat_template_kwargs, variables for the chat template by name. Raises FieldError."""
    variables = fields.object("chat_template_kwargs") or {}
    if reserved := set(_RESERVED) & set(variables):
        raise FieldError("chat_template_kwargs", f"{min(reserved)} cannot be set; leave it out")
    return variables


def effort_variable(fields: Fields, name: str = "reasoning_effort") -> dict[str, Any]:
    """Reads the effort as variables of templates: gpt-oss's, and the switches of others, which
    "none" turns off. Templates ignore the variables that they do not know."""
    effort = fields.text(name)
    if effort is None:
        return {}
    own = {} if effort == "none" else {"reasoning_effort": effort}
    return own | thinking_variables(effort != "none")


def thinking_variables(thinks: bool) -> dict[str, Any]:
    """Returns the variables with which templates let a model reason, or not."""
    return dict.fromkeys(SWITCHES, thinks)


def _most_tokens(fields: Fields, least: int = 1) -> int | None:
    return fields.whole("max_tokens", least, MOST_INT32)


def _prompts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    """Reads a string, a list of strings, a list of token ids or a list of such lists."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return (prompt,)
    if not isinstance(prompt, list) or not prompt:
        raise fields.wrong("prompt", "a string, a list of token ids, or a list of either")
    if type(prompt[0]) is int:
        return (fields.token_ids("prompt"),)
    if len(prompt) > MOST_PROMPTS:
        raise FieldError("prompt", f"has {len(prompt)} prompts; give at most {MOST_PROMPTS}")
    return tuple(
        each if isinstance(each, str) else token_ids(f"prompt[{i}]", each)
        for i, each in enumerate(prompt)
    )


def messages_of(fields: Fields) -> tuple[Message, ...]:
    """Reads the messages of a chat, in the form that chat templates expect. Raises FieldError."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise fields.wrong("messages", "a list of at least one message")
    return read_messages(messages)
