"""Checks the fields that all generating requests share: sampling, stops and what answers show.

Knows nothing of prompts. Errors name the field.
"""

from dataclasses import dataclass
from typing import Any

from specqd.config.fields import Fields
from specqd.errors import FieldError, shown
from specqd.openai import restrictions
from specqd.openai.restrictions import Restriction
from specqd.sampling import SamplingParams

MOST_SAMPLES = 128  # `n` of one prompt; OpenAI's limit
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1024
MOST_BIASES = 1024
MOST_INT32 = 2**31 - 1

# Fields that SamplingParams has under the same names, and checks.
SAMPLING = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
WITHOUT_EFFECT = ("user", "service_tier", "safety_identifier", "prompt_cache_key")  # strings
_ENDS = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos")
_SHOWN = ("stream", "stream_options", "logprobs", "return_token_ids", "return_origins")
_OTHERS = ("model", "n", "top_k", "logit_bias", "response_format", "cache_salt", "draft")
SHARED = {*SAMPLING, *WITHOUT_EFFECT, *_ENDS, *_SHOWN, *_OTHERS}
SHARED |= {"return_progress", "metadata", "store"} | restrictions.FIELDS


@dataclass(frozen=True, slots=True)
class Options:
    """The shared options of a request, without prompts and sampling."""

    model: str | None = None
    is_streamed: bool = False
    has_usage_chunk: bool = False  # at the end of the stream
    has_running_usage: bool = False  # in the other chunks too
    has_token_ids: bool = False
    schema: dict[str, Any] | None = None  # the text must be JSON that follows this schema
    pattern: str | None = None  # the whole text must match this regular expression
    rules_field: str = "response_format"  # the field that gave the schema or pattern
    cache_salt: str = ""  # only requests with equal salts share cached prompts
    has_origins: bool = False  # show each token's text and the level that first proposed it
    has_progress: bool = False  # show how far the prompt is read, then the levels' work so far
    is_plain: bool = False  # decode without drafts; the text is the same

    @property
    def has_rules(self) -> bool:
        """Whether the text must follow a schema or match a pattern."""
        return self.schema is not None or self.pattern is not None


def sampling_params(fields: Fields, most: int | None, logprobs: int | None) -> SamplingParams:
    """Reads the sampling fields. most: new tokens, or None. Raises RequestError."""
    sampling: dict[str, Any] = {
        name: fields.values[name] for name in SAMPLING if name in fields.values
    }
    seed = sampling.get("seed")
    if type(seed) is int and -(2**63) <= seed < 0:  # OpenAI's seeds are signed
        sampling["seed"] = seed + 2**64
    top_k: Any = fields.get("top_k")
    params = SamplingParams(
        **sampling,
        max_tokens=most,
        top_k=0 if top_k == -1 else top_k,  # -1 is vLLM's value for all tokens
        n=fields.whole("n", 1, MOST_SAMPLES) or 1,
        logit_bias=_biases(fields),
        stop=stops_of(fields, "stop"),
        stop_token_ids=fields.token_ids("stop_token_ids", MOST_STOPS),
        ignore_eos=fields.flag("ignore_eos"),
        logprobs=logprobs,
    )
    least = fields.whole("min_tokens", 0, MOST_INT32)
    is_free_to_end = not params.ignore_eos or params.stop or params.stop_token_ids
    if least and (is_free_to_end or (most is not None and least > most)):
        raise FieldError(
            "min_tokens", "needs ignore_eos: true, no stops, and a max_tokens that is not smaller"
        )
    return params


def options_of(fields: Fields) -> Options:
    """Reads the shared options. Raises FieldError."""
    for name in WITHOUT_EFFECT:
        fields.text(name)
    fields.object("metadata")
    fields.flag("store")
    is_streamed = fields.flag("stream")
    has_usage_chunk, has_running_usage = _usage_options(fields)
    if fields.text("cache_salt") == "":
        raise fields.wrong("cache_salt", "a string that is not empty")
    has_progress = fields.flag("return_progress")
    if has_progress and not is_streamed:
        raise FieldError("return_progress", "needs stream: true")
    if fields.text("draft") not in (None, "none"):
        raise fields.wrong("draft", '"none"')
    rules = _rules(fields)
    if rules is not None and fields.flag("ignore_eos"):
        raise FieldError("ignore_eos", "restricted text ends by itself; leave it out")
    return Options(
        fields.text("model"),
        is_streamed,
        has_usage_chunk,
        has_running_usage,
        fields.flag("return_token_ids"),
        rules.schema if rules is not None else None,
        rules.pattern if rules is not None else None,
        rules.field if rules is not None else "response_format",
        cache_salt=fields.text("cache_salt") or "",
        has_origins=fields.flag("return_origins"),
        has_progress=has_progress,
        is_plain=fields.text("draft") == "none",
    )


def _usage_options(fields: Fields) -> tuple[bool, bool]:
    """Returns whether a stream ends with its usage, and whether each chunk has it too."""
    options = fields.nested(
        "stream_options", ("include_usage", "continuous_usage_stats", "include_obfuscation")
    )
    if options is None:
        return False, False
    options.flag("include_obfuscation")  # accepted, but no obfuscation is ever added
    if not fields.flag("stream"):
        raise FieldError("stream_options", "needs stream: true")
    at_end, is_running = options.flag("include_usage"), options.flag("continuous_usage_stats")
    if is_running and not at_end:
        raise options.error("continuous_usage_stats", "needs include_usage: true")
    return at_end, is_running


def _rules(fields: Fields) -> Restriction | None:
    found = restrictions.restrictions_of(fields)
    if (schema := _schema(fields)) is not None:
        found.insert(0, Restriction("response_format", schema))
    if len(found) > 1:
        problem = f"{found[0].field} restricts the text too; give only one of them"
        raise FieldError(found[1].field, problem)
    return found[0] if found else None


def _schema(fields: Fields) -> dict[str, Any] | None:
    """Returns the schema of response_format. It is enforced with and without `strict`."""
    form = fields.nested("response_format", ("type", "json_schema"))
    if form is None:
        return None
    kind = _kind_of(form)
    named = form.nested("json_schema", ("name", "description", "schema", "strict"))
    if (named is not None) != (kind == "json_schema"):
        raise form.error("json_schema", "is needed with the type json_schema, and only with it")
    if named is None:
        return {"type": "object"} if kind == "json_object" else None
    return _named_schema(named)


def flat_schema(form: Fields) -> dict[str, Any] | None:
    """Returns the schema of a format whose schema members are next to its `type`."""
    kind = _kind_of(form)
    if kind == "json_schema":
        return _named_schema(form)
    if given := next((name for name in form.values if name != "type"), None):
        raise form.error(given, "needs the type json_schema")
    return {"type": "object"} if kind == "json_object" else None


def _kind_of(form: Fields) -> str:
    kind = form.text("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise form.wrong("type", "text, json_object or json_schema")
    return kind


def _named_schema(named: Fields) -> dict[str, Any]:
    named.text("description")
    named.flag("strict")
    named.needed_text("name")
    schema = named.object("schema")
    if schema is None:
        raise named.wrong("schema", "an object")
    return schema


def _biases(fields: Fields) -> dict[int, Any]:
    """Reads logit_bias. Its token ids are keys of a JSON object, so they are decimal strings."""
    given = fields.object("logit_bias") or {}
    if len(given) > MOST_BIASES:
        raise FieldError("logit_bias", f"has {len(given)} tokens; give at most {MOST_BIASES}")
    for token in given:
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            raise FieldError("logit_bias", f"{shown(token)} is not a token id")
    return {int(token): bias for token, bias in given.items() if bias is not None}


def stops_of(fields: Fields, name: str) -> tuple[str, ...]:
    """Reads stop strings, one or a list of them. Raises FieldError."""
    given = fields.values.get(name, [])
    stops = [given] if isinstance(given, str) else given
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise fields.wrong(name, "a string or a list of strings")
    if len(stops) > MOST_STOPS or any(len(stop) > MOST_STOP_CHARACTERS for stop in stops):
        most = f"{MOST_STOPS} strings of at most {MOST_STOP_CHARACTERS} characters"
        raise FieldError(name, f"is too long; give at most {most}")
    return tuple(stops)
