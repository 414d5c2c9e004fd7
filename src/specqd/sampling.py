"""The sampling parameters of a request, checked. Knows nothing of models, drafts or text."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Protocol, TypeVar

from specqd import _native
from specqd.errors import FieldError, shown

T = TypeVar("T")

_LEAST_TEMPERATURE = 1e-6  # smaller ones would make differences of logits overflow
_MOST_TEMPERATURE = 100
_MOST_INT32 = 2**31 - 1
SEED_BITS = 53  # of seeds that nobody gave: JavaScript and others read numbers as doubles
# Fields that may be None, with their least and greatest values.
_OPEN_WHOLE = {
    "max_tokens": (1, _MOST_INT32),
    "top_k": (0, _MOST_INT32),
    "seed": (0, 2**64 - 1),
    "logprobs": (0, 1000),
    "prompt_logprobs": (0, 1000),
    "thinking_token_budget": (0, _MOST_INT32),
}
_OPEN_REAL = {"top_p": (1e-6, 1), "min_p": (0, 1), "repetition_penalty": (0.01, 100)}
# For chats with a model whose authors recommend no sampling: greedy answers of small models repeat
# themselves.
CHAT_TEMPERATURE = 0.7
CHAT_REPETITION_PENALTY = 1.05


def seed_of(digest: str) -> int:
    """A seed for a request that states none but must always be answered alike, from hexadecimal
    digits."""
    return int(digest, 16) & ((1 << SEED_BITS) - 1)


class Defaults(Protocol):
    """The settings that a model's authors recommend; None for those that they do not state."""

    @property
    def is_stated(self) -> bool:
        """Whether they say how to sample."""

    @property
    def do_sample(self) -> bool | None: ...
    @property
    def effective_temperature(self) -> float: ...
    @property
    def top_p(self) -> float | None: ...
    @property
    def top_k(self) -> int | None: ...
    @property
    def min_p(self) -> float | None: ...
    @property
    def repetition_penalty(self) -> float | None: ...


@dataclass(frozen=True, slots=True, repr=False)
class SamplingParams:
    """How to sample tokens, and when to stop. Raises FieldError for a value out of range.

    max_tokens is an upper bound: a text also ends, with the finish_reason "length", at the end of
    the context or of the room that the KV cache has for one sequence. So it does over HTTP.

    None means the model's default for temperature, top_p, top_k, min_p and repetition_penalty; no
    bound of its own for max_tokens; a random seed for seed; and no log-probabilities for
    logprobs and prompt_logprobs (0 gives those of the sequence's own tokens). Temperature 0 is
    greedy. The repetition penalty counts tokens of the prompt and the output, the other two
    penalties those of the output.

    schema: the text must be JSON that follows this JSON schema, given as a dict, as JSON or as a
        Pydantic model.
    pattern: the whole text must match this regular expression, in Rust's syntax without
        look-around. Schema and pattern need the extra `structured`. FieldError says, when the text
        begins, what cannot be enforced. A text that reaches max_tokens is cut.
    thinking_token_budget: most tokens of the reasoning before an answer; then its closing mark is
        forced. Has no effect on a model whose chat template marks no reasoning, and on gpt-oss.
    """

    max_tokens: int | None = 128
    temperature: float | None = None
    top_p: float | None = None  # nucleus sampling: cumulative probability to keep
    top_k: int | None = None  # 0: all
    min_p: float | None = None  # relative to the likeliest token's probability
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    stop: Sequence[str] = ()  # or one string
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True  # from the text, in which stop strings are searched too
    schema: Any = None  # kept as a dict
    pattern: str | None = None
    thinking_token_budget: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        self._check_types()
        for name, (least, most) in _OPEN_WHOLE.items():
            if (value := getattr(self, name)) is not None:
                _check_int(name, value, least, most)
        for name, ends in _OPEN_REAL.items():
            if (value := getattr(self, name)) is not None:
                _check_real(name, value, *ends)
        if self.temperature is not None and self.temperature != 0:
            ends = _LEAST_TEMPERATURE, _MOST_TEMPERATURE
            _check_real("temperature", self.temperature, *ends, also="0 or ")
        _check_real("presence_penalty", self.presence_penalty, -2, 2)
        _check_real("frequency_penalty", self.frequency_penalty, -2, 2)
        for token, bias in self.logit_bias.items():
            _check_int("logit_bias", token, 0, _MOST_INT32)
            _check_real("logit_bias", bias, -100, 100)
        _check_int("n", self.n, 1, 1024)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise FieldError("stop", f"{shown(text)} is not a string of at least one character")
        for token in self.stop_token_ids:
            _check_int("stop_token_ids", token, 0, _MOST_INT32)
        self._check_rules()

    def _check_types(self) -> None:
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            if not isinstance(value, Iterable) or isinstance(value, bytes | str | Mapping):
                raise FieldError(name, f"{shown(value)} is not a list")
            object.__setattr__(self, name, tuple(value))  # an iterator can be read only once
        if not isinstance(self.logit_bias, Mapping):
            raise FieldError("logit_bias", f"{shown(self.logit_bias)} is not a dict by token id")
        for name in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(value := getattr(self, name), bool):
                raise FieldError(name, f"{shown(value)} is not True or False")

    def _check_rules(self) -> None:
        if self.schema is not None:
            object.__setattr__(self, "schema", _schema_of(self.schema))
        if self.pattern is not None and not isinstance(self.pattern, str):
            raise FieldError("pattern", f"{shown(self.pattern)} is not a regular expression")
        if self.schema is not None and self.pattern is not None:
            raise FieldError("pattern", "cannot be combined with schema; give one of them")
        if self.has_rules and self.ignore_eos:
            raise FieldError("ignore_eos", "restricted text ends by itself; leave it out")

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        plain = {each.name: each.default for each in fields(self)} | {"logit_bias": {}}
        words = [
            f"{name}={value!r}" for name, value in given.items() if repr(value) != repr(plain[name])
        ]
        return f"SamplingParams({', '.join(words)})"

    def resolved(self, defaults: Defaults) -> "SamplingParams":
        """These parameters, completed with the model's defaults, as far as those are possible."""
        usual = defaults.effective_temperature
        usual = min(usual, _MOST_TEMPERATURE) if usual >= _LEAST_TEMPERATURE else 0.0
        return replace(
            self,
            temperature=_first(self.temperature, usual),
            top_p=_first(self.top_p, _possible("top_p", defaults.top_p), 1.0),
            top_k=_first(self.top_k, defaults.top_k, 0),
            min_p=_first(self.min_p, defaults.min_p, 0.0),
            repetition_penalty=_first(
                self.repetition_penalty,
                _possible("repetition_penalty", defaults.repetition_penalty),
                1.0,
            ),
        )

    def check_vocabulary(self, size: int) -> None:
        """Raise FieldError if a token id is not below `size`."""
        for token in (*self.logit_bias, *self.stop_token_ids):
            if token >= size:
                name = "logit_bias" if token in self.logit_bias else "stop_token_ids"
                raise FieldError(name, f"token {token} is not in the vocabulary of {size}")

    @property
    def has_rules(self) -> bool:
        """Whether the text must follow a schema or match a pattern."""
        return self.schema is not None or self.pattern is not None

    @property
    def needs_history(self) -> bool:
        """Whether sampling depends on earlier tokens."""
        return (
            (self.repetition_penalty or 1.0) != 1.0
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    def sampler(self, seed: int, sample: int) -> _native.Sampler:
        """The native sampler of one of the n samples. None means no effect."""
        return _native.Sampler(
            temperature=self.temperature or 0.0,
            top_p=_first(self.top_p, 1.0),
            min_p=self.min_p or 0.0,
            repetition_penalty=_first(self.repetition_penalty, 1.0),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            top_k=self.top_k or 0,
            seed=seed,
            sample=sample,
            bias_ids=[int(token) for token in self.logit_bias],
            bias=[float(bias) for bias in self.logit_bias.values()],
        )


def _possible(name: str, value: float | None) -> float | None:
    """The nearest value that the parameter may have."""
    least, most = _OPEN_REAL[name]
    return None if value is None else min(max(value, least), most)


def _first(*values: T | None) -> T:
    return next(value for value in values if value is not None)


def chat_sampling(params: SamplingParams, defaults: Defaults) -> SamplingParams:
    """The parameters with defaults for chats: the model's own sampling or, if it has none, ours,
    which repeats itself less than greedy decoding. A given temperature is kept."""
    if defaults.do_sample or params.temperature is not None:
        return params
    penalty = params.repetition_penalty or defaults.repetition_penalty or CHAT_REPETITION_PENALTY
    return replace(params, temperature=CHAT_TEMPERATURE, repetition_penalty=penalty)


def request_sampling(params: SamplingParams, defaults: Defaults) -> SamplingParams:
    """The complete parameters of a request to a server or in a batch file: what it omits comes from
    the model's own sampling or, if it states none, from that of chats."""
    return (params if defaults.is_stated else chat_sampling(params, defaults)).resolved(defaults)


def _schema_of(value: Any) -> dict[str, Any]:
    """The dict of a JSON schema, given as a dict, as JSON or as a Pydantic model."""
    try:
        if isinstance(value, type) and hasattr(value, "model_json_schema"):
            value = value.model_json_schema()
        value = json.loads(value if isinstance(value, str) else json.dumps(value))
    except (TypeError, ValueError, RecursionError, RuntimeError) as error:  # Pydantic's are some
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        problem = f"is not a JSON schema ({cause[:200]}); give a dict, JSON or a Pydantic model"
        raise FieldError("schema", problem) from error
    if not isinstance(value, dict):
        raise FieldError("schema", f"{shown(value)} is not a JSON schema; give an object")
    return value


def _check_int(name: str, value: object, least: int, most: int) -> None:
    if not _is_whole(value, least, most):
        raise FieldError(name, f"{shown(value)} is not a whole number from {least} to {most}")


def _check_real(name: str, value: object, least: float, most: float, also: str = "") -> None:
    if not _is_real(value, least, most):
        raise FieldError(name, f"{shown(value)} is not {also}a number from {least:g} to {most:g}")


def _is_whole(value: object, least: int, most: int) -> bool:
    return (
        isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most
    )


def _is_real(value: object, least: float, most: float) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return least <= float(value) <= most  # false for NaN
    except OverflowError:  # JSON's integers have any size
        return False
