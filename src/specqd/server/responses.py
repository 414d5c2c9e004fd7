"""What clients read: OpenAI's JSON of completions and chats, whole or in chunks.

Knows updates and tokens' texts; knows neither HTTP nor the engine.
"""

import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Protocol

from specqd.engine import TokenLogprob
from specqd.server.engine_thread import Update
from specqd.text_stream import is_byte_token, token_bytes
from specqd.tokenizer import Tokenizer

_LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI's word for it


@dataclass(slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0

    def described(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_prompt_tokens},
        }


class Form(Protocol):
    """How one kind of answer is written."""

    prefix: str  # of its id
    kind: str  # `object`, when whole
    chunk_kind: str  # and of a chunk

    def opening(self, sample: int) -> list[dict[str, Any]]:
        """Choices of chunks that come before a sample's first token."""
        ...

    def chunk(self, update: Update) -> dict[str, Any]: ...

    def whole(self, updates: SequenceOf[Update]) -> dict[str, Any]: ...


@dataclass(slots=True)
class Answer:
    """One answer being given, in one form."""

    form: Form
    model: str
    usage: Usage
    has_usage_chunk: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    key: str = field(default_factory=lambda: token_hex(12))

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.form.prefix + self.key,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = self._envelope(self.form.chunk_kind, [choice])
        return chunk | {"usage": None} if self.has_usage_chunk else chunk

    def usage_chunk(self) -> dict[str, Any]:
        return self._envelope(self.form.chunk_kind, []) | {"usage": self.usage.described()}

    def whole(self, samples: SequenceOf[SequenceOf[Update]]) -> dict[str, Any]:
        choices = [self.form.whole(updates) for updates in samples]
        return self._envelope(self.form.kind, choices) | {"usage": self.usage.described()}


class CompletionForm:
    prefix = "cmpl-"
    kind = chunk_kind = "text_completion"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        has_logprobs: bool,
        has_ids: bool,
        prompts: SequenceOf[SequenceOf[int]],
        echoes: SequenceOf[str],
        samples_each: int,
    ) -> None:
        """echoes: the prompts' texts, where they are to be repeated; else none."""
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._has_ids = has_ids
        self._prompts = prompts
        self._echoes = echoes
        self._each = samples_each
        self._offsets: dict[int, int] = {}  # by sample, characters of the tokens so far

    def opening(self, sample: int) -> list[dict[str, Any]]:
        if not self._echoes:
            return []
        text = self._echoes[sample // self._each]
        return [{"index": sample, "text": text, "logprobs": None, "finish_reason": None}]

    def chunk(self, update: Update) -> dict[str, Any]:
        choice = {
            "index": update.sample,
            "text": update.text,
            "logprobs": self._logprobs(update) if self._has_logprobs else None,
            "finish_reason": update.finish_reason,
        }
        return choice | ({"token_ids": update.tokens} if self._has_ids else {})

    def whole(self, updates: SequenceOf[Update]) -> dict[str, Any]:
        update = joined(updates)
        choice = self.chunk(update)
        if self._echoes:
            choice["text"] = self._echoes[update.sample // self._each] + update.text
        if self._has_ids:
            choice["prompt_token_ids"] = list(self._prompts[update.sample // self._each])
        return choice

    def _logprobs(self, update: Update) -> dict[str, Any]:
        spelled = [self._spelled(each.token) for each in update.logprobs]
        offset = self._offsets.get(update.sample, 0)
        offsets = []
        for text in spelled:
            offsets.append(offset)
            offset += len(text)
        self._offsets[update.sample] = offset
        return {
            "tokens": spelled,
            "token_logprobs": [finite(each.logprob) for each in update.logprobs],
            "top_logprobs": [self._top(each) for each in update.logprobs],
            "text_offset": offsets,
        }

    def _top(self, each: TokenLogprob) -> dict[str, float]:
        """The likeliest, and the token itself, as OpenAI has it."""
        of_all = [*each.top, (each.token, each.logprob)]
        return {self._spelled(token): finite(logprob) for token, logprob in of_all}

    def _spelled(self, token: int) -> str:
        return spelled(self._tokenizer, token)


class ChatForm:
    prefix = "chatcmpl-"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(
        self, tokenizer: Tokenizer, *, has_logprobs: bool, has_ids: bool, prompt: SequenceOf[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._has_ids = has_ids
        self._prompt = prompt

    def opening(self, sample: int) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [{"index": sample, "delta": delta, "logprobs": None, "finish_reason": None}]

    def chunk(self, update: Update) -> dict[str, Any]:
        delta = {"content": update.text} if update.text else {}
        return self._choice(update) | {"delta": delta}

    def whole(self, updates: SequenceOf[Update]) -> dict[str, Any]:
        update = joined(updates)
        message = {"role": "assistant", "content": update.text, "refusal": None}
        choice = self._choice(update) | {"message": message}
        return choice | ({"prompt_token_ids": list(self._prompt)} if self._has_ids else {})

    def _choice(self, update: Update) -> dict[str, Any]:
        choice = {
            "index": update.sample,
            "logprobs": self._logprobs(update) if self._has_logprobs else None,
            "finish_reason": update.finish_reason,
        }
        return choice | ({"token_ids": update.tokens} if self._has_ids else {})

    def _logprobs(self, update: Update) -> dict[str, Any]:
        content = []
        for each in update.logprobs:
            top = [self._entry(token, logprob) for token, logprob in each.top]
            content.append(self._entry(each.token, each.logprob) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": spelled(self._tokenizer, token),
            "logprob": finite(logprob),
            "bytes": list(bytes_of(self._tokenizer, token)),
        }


def joined(updates: SequenceOf[Update]) -> Update:
    """All that became of one sample."""
    return Update(
        updates[0].sample,
        "".join(update.text for update in updates),
        [token for update in updates for token in update.tokens],
        [logprob for update in updates for logprob in update.logprobs],
        updates[-1].finish_reason,
        updates[-1].error,
    )


def spelled(tokenizer: Tokenizer, token: int) -> str:
    """A token's text; where that is a part of a character only, `bytes:` and its bytes."""
    text = tokenizer.decode([token], skip_special_tokens=False)
    if "\ufffd" not in text:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in bytes_of(tokenizer, token))


def bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    text = tokenizer.decode([token], skip_special_tokens=False)
    if "\ufffd" not in text:
        return text.encode()
    name = tokenizer.token_text(token)
    return bytes([int(name[3:5], 16)]) if is_byte_token(name) else token_bytes(name)


def finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
