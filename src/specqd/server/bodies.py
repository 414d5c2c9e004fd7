"""Reads JSON bodies, and checks requests to vLLM's paths /tokenize and /detokenize."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specqd.config.fields import Fields, LenientObject
from specqd.errors import FieldError
from specqd.openai.requests import ChatRequest, messages_of
from specqd.sampling import SamplingParams
from specqd.server.problems import refused
from specqd.text.json_text import check_characters, place_of, read_json
from specqd.text.tokenizer import Tokenizer

_LOG = logging.getLogger("specqd.server")
_INDEX = re.compile(r"\[\d+\]")
_MOST_LOGGED = 100  # names; clients choose them, so there could be any number


class IgnoredFields:
    """Makes JSON objects lenient, and logs the name of each ignored field once."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def lenient(self, members: dict[str, Any]) -> LenientObject:
        return LenientObject(members, self.log)

    def log(self, name: str) -> None:
        name = _INDEX.sub("[]", name)
        if name not in self._names and len(self._names) < _MOST_LOGGED:
            self._names.add(name)
            _LOG.warning("ignored an unknown field of a request: %s", name)


def json_of(body: bytes, ignored: IgnoredFields | None = None) -> object:
    """Parses a body. Raises ProblemError if it is not JSON, RequestError for a lone surrogate.

    ignored: makes the body's objects lenient.
    """
    try:
        value = read_json(body, ignored.lenient if ignored is not None else None)
        check_characters(value, body)
        return value
    except (ValueError, RecursionError) as error:
        raise refused(f"the body is not valid JSON in UTF-8{place_of(error)}") from error


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """A request to /tokenize for the token ids of a prompt or of a chat."""

    model: str | None
    content: str | tuple[Mapping[str, Any], ...]
    add_special_tokens: bool
    add_generation_prompt: bool

    def encoded(self, tokenizer: Tokenizer) -> list[int]:
        """Returns the token ids. Raises RequestError or TokenizerError."""
        if isinstance(self.content, str):
            return tokenizer.encode(self.content, add_special_tokens=self.add_special_tokens)
        variables = {"add_generation_prompt": self.add_generation_prompt}
        chat = ChatRequest(self.content, SamplingParams(), template_variables=variables)
        [ids] = chat.encoded(tokenizer)
        return ids


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    """A request to /detokenize for the text of token ids."""

    model: str | None
    tokens: tuple[int, ...]

    def check(self, vocabulary: int) -> None:
        """Raises FieldError for ids beyond the model's. vocabulary: number of token ids."""
        if any(not 0 <= token < vocabulary for token in self.tokens):
            raise FieldError("tokens", f"ids must be from 0 to {vocabulary - 1}")


def tokenize_request(body: object) -> TokenizeRequest:
    """Reads a body of /tokenize. Raises FieldError."""
    known = ("model", "prompt", "messages", "add_special_tokens", "add_generation_prompt")
    fields = Fields.of(body, known)
    prompt, has_messages = fields.text("prompt"), fields.get("messages") is not None
    if (prompt is None) != has_messages:
        raise FieldError("prompt", "give either a prompt or messages")
    return TokenizeRequest(
        fields.text("model"),
        messages_of(fields) if prompt is None else prompt,
        fields.flag("add_special_tokens", True),
        fields.flag("add_generation_prompt", True),
    )


def detokenize_request(body: object) -> DetokenizeRequest:
    """Reads a body of /detokenize. Raises FieldError."""
    fields = Fields.of(body, ("model", "tokens"))
    if fields.get("tokens") is None:
        raise fields.wrong("tokens", "a list of token ids")
    return DetokenizeRequest(fields.text("model"), fields.token_ids("tokens"))
