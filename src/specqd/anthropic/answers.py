"""Writes Anthropic's JSON of messages, whole or as events of a stream.

Knows updates and blocks of text. Knows nothing of the engine or of transport.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specqd.engine.updates import Update
from specqd.openai.answers import Event, Usage
from specqd.openai.extras import Json
from specqd.openai.parts import Block, BlockReader, id_of
from specqd.openai.speculation import DraftMetrics
from specqd.text.json_text import read_json

_KINDS = {"server_error": "api_error"}  # error types whose names differ: OpenAI's -> Anthropic's


@dataclass(slots=True)
class MessagesAnswer:
    """A Reply for one sample."""

    model: str
    usage: Usage
    key: str  # of the ids
    blocks: BlockReader
    metrics: DraftMetrics
    most_tokens: int  # max_tokens of the request
    _content: list[Json] = field(default_factory=list)
    _last: Update | None = None

    def opening(self, num_samples: int) -> Iterator[Event]:
        yield _event("message_start", message=self._described())

    def events_of(self, update: Update) -> Iterator[Event]:
        self._last = update
        self.metrics.note(update)
        for step, block, text in self.blocks.read(update):
            if step == "begin":
                begun = self._block(block)
                yield _event("content_block_start", index=block.index, content_block=begun)
            elif step == "more":
                yield _event("content_block_delta", index=block.index, delta=_delta(block, text))
            else:
                self._content.append(self._block(block))
                yield _event("content_block_stop", index=block.index)

    def ending(self) -> Iterator[Event]:
        yield _event("message_delta", delta=self._stop(), **self._counts())
        yield _event("message_stop")

    def failure(self, error: Json) -> Iterator[Event]:
        kind, message = error["error"]["type"], error["error"]["message"]
        yield _event("error", error={"type": _KINDS.get(kind, kind), "message": message})

    def whole(self, samples: Sequence[Update]) -> Json:
        for update in samples:
            for _ in self.events_of(update):
                pass
        return self._described() | self._counts()

    def _described(self) -> Json:
        message: Json = {"id": f"msg_{self.key}", "type": "message", "role": "assistant"}
        message |= {"model": self.model, "content": list(self._content)}
        return message | self._stop() | {"usage": self._usage()}

    def _stop(self) -> Json:
        """Returns why the text ended; null while it has not."""
        last = self._last
        if last is None or last.finish_reason is None:
            return {"stop_reason": None, "stop_sequence": None}
        if last.finish_reason != "stop":
            is_cut = self.usage.completion_tokens >= self.most_tokens
            reason = "max_tokens" if is_cut else "model_context_window_exceeded"
            return {"stop_reason": reason, "stop_sequence": None}
        if last.stop_text is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_text}
        reason = "tool_use" if self.blocks.has_calls else "end_turn"
        return {"stop_reason": reason, "stop_sequence": None}

    def _counts(self) -> Json:
        """Returns the members with counts. Call it after the last update."""
        return {"usage": self._usage()} | self.metrics.described()

    def _usage(self) -> Json:
        cached = self.usage.cached_prompt_tokens or 0
        return {
            "input_tokens": self.usage.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self.usage.completion_tokens,
        }

    def _block(self, block: Block) -> Json:
        if block.kind == "thought":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        if block.kind == "text":
            return {"type": "text", "text": block.text, "citations": None}
        tool_id = id_of("toolu_", self.key, block.index)
        return {"type": "tool_use", "id": tool_id, "name": block.name, "input": _input(block.text)}


def _event(kind: str, **members: object) -> Event:
    return Event({"type": kind, **members}, kind)


def _delta(block: Block, text: str) -> Json:
    if block.kind == "thought":
        return {"type": "thinking_delta", "thinking": text}
    if block.kind == "text":
        return {"type": "text_delta", "text": text}
    return {"type": "input_json_delta", "partial_json": text}


def _input(arguments: str) -> Json:
    """Returns a call's arguments as an object.

    Text that is not a JSON object, for example because it was cut off, becomes Anthropic's form for
    invalid input.
    """
    if not arguments:
        return {}
    try:
        value = read_json(arguments)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be sent
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}
