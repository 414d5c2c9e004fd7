"""Writes OpenAI's JSON of responses, whole or as events of a stream.

Knows updates and blocks of text. Knows nothing of the engine or of transport.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from specqd.engine.updates import Update
from specqd.openai.answers import Event, Usage
from specqd.openai.extras import Json
from specqd.openai.parts import Block, BlockReader, Kind, id_of
from specqd.openai.speculation import DraftMetrics
from specqd.text.tokenizer import Tokenizer

_PREFIXES: Mapping[Kind, str] = {"thought": "rs_", "text": "msg_", "call": "fc_"}
_PART_TYPES: Mapping[Kind, str] = {"thought": "reasoning_text", "text": "output_text"}


@dataclass(slots=True)
class ResponsesAnswer:
    """A Reply for one sample."""

    model: str
    usage: Usage
    key: str  # of the ids
    created: int  # seconds since 1970
    echoed: Json  # the members that repeat the request
    blocks: BlockReader
    tokenizer: Tokenizer
    metrics: DraftMetrics | None = None  # None: omitted from the answer
    _output: list[Json] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)
    _last: Update | None = None
    _sent: int = 0  # number of events so far

    def opening(self, num_samples: int) -> Iterator[Event]:
        yield self._event("response.created", response=self._described("in_progress"))
        yield self._event("response.in_progress", response=self._described("in_progress"))

    def events_of(self, update: Update) -> Iterator[Event]:
        self._last = update
        if self.metrics is not None:
            self.metrics.note(update)
        for step, block, text in self.blocks.read(update):
            if step == "begin":
                yield from self._begin(block)
            elif step == "more":
                yield self._more(block, text)
            else:
                yield from self._end(block, "incomplete" if step == "cut" else "completed")

    def ending(self) -> Iterator[Event]:
        status = self._status
        yield self._event(f"response.{status}", response=self._described(status))

    def failure(self, error: Json) -> Iterator[Event]:
        response = self._described("failed")
        response["error"] = {"code": "server_error", "message": error["error"]["message"]}
        yield self._event("response.failed", response=response)

    def whole(self, samples: Sequence[Update]) -> Json:
        for update in samples:
            for _ in self.events_of(update):
                pass
        return self._described(self._status)

    @property
    def _status(self) -> str:
        is_cut = self._last is not None and self._last.finish_reason == "length"
        return "incomplete" if is_cut else "completed"

    # --- Events of one item --------------------------------------------------------------------

    def _begin(self, block: Block) -> Iterator[Event]:
        place, item = {"output_index": block.index}, self._item(block, "in_progress")
        if block.kind != "call":
            item["content"] = []
        yield self._event("response.output_item.added", **place, item=item)
        if block.kind != "call":
            part = _part(block.kind, "")
            yield self._event("response.content_part.added", **self._place(block), part=part)

    def _more(self, block: Block, text: str) -> Event:
        name, place = f"response.{_stem(block.kind)}.delta", self._place(block)
        return self._event(name, **place, delta=text, **_logprobs(block.kind))

    def _end(self, block: Block, status: str) -> Iterator[Event]:
        text, place, stem = block.text, self._place(block), _stem(block.kind)
        if block.kind == "call":
            yield self._event(f"response.{stem}.done", **place, arguments=text)
        else:
            logprobs = _logprobs(block.kind)
            yield self._event(f"response.{stem}.done", **place, text=text, **logprobs)
            part = _part(block.kind, text)
            yield self._event("response.content_part.done", **place, part=part)
        if block.kind == "thought":
            self._thoughts.append(text)
        item = self._item(block, status)
        self._output.append(item)
        yield self._event("response.output_item.done", output_index=block.index, item=item)

    def _place(self, block: Block) -> Json:
        place = {"item_id": self._id(block), "output_index": block.index}
        return place if block.kind == "call" else place | {"content_index": 0}

    def _id(self, block: Block) -> str:
        return id_of(_PREFIXES[block.kind], self.key, block.index)

    def _item(self, block: Block, status: str) -> Json:
        shared: Json = {"id": self._id(block), "status": status}
        if block.kind == "call":
            call_id = id_of("call_", self.key, block.index)
            call: Json = {"type": "function_call", "call_id": call_id, "name": block.name}
            return shared | call | {"arguments": block.text}
        content = [_part(block.kind, block.text)]
        if block.kind == "thought":
            return shared | {"type": "reasoning", "summary": [], "content": content}
        return shared | {"type": "message", "role": "assistant", "content": content}

    # --- The response ---------------------------------------------------------------------------

    def _event(self, kind: str, **members: object) -> Event:
        number, self._sent = self._sent, self._sent + 1
        return Event({"type": kind, "sequence_number": number, **members}, kind)

    def _described(self, status: str) -> Json:
        is_over = status in ("completed", "incomplete")
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        response: Json = {
            "id": f"resp_{self.key}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "model": self.model,
            "output": list(self._output),
            "previous_response_id": None,
            "background": False,
            "store": False,
            "truncation": "disabled",
            "usage": self._usage() if is_over else None,
        }
        response |= self.echoed
        if is_over and self._last is not None:
            response["seed"] = self._last.seed
            response |= {} if self.metrics is None else self.metrics.described()
        return response

    def _usage(self) -> Json:
        usage = self.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cached_prompt_tokens or 0,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._count_thoughts()},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _count_thoughts(self) -> int:
        """Counts the tokens of the reasoning by tokenizing its text again."""
        encode = self.tokenizer.encode
        return sum(len(encode(text, add_special_tokens=False)) for text in self._thoughts)


def _stem(kind: Kind) -> str:
    """Returns the middle part of the names of a block's events."""
    return "function_call_arguments" if kind == "call" else _PART_TYPES[kind]


def _part(kind: Kind, text: str) -> Json:
    part: Json = {"type": _PART_TYPES[kind], "text": text}
    return part | ({"annotations": [], "logprobs": []} if kind == "text" else {})


def _logprobs(kind: Kind) -> Json:
    """Returns the member that clients expect in events of answer text."""
    return {"logprobs": []} if kind == "text" else {}
