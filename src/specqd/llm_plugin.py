"""A plugin for Simon Willison's `llm` command (extra `llm`): local models under `specqd/NAME`.

NAME is a model in Hugging Face's cache, a short name, which is fetched at its first use, or the
shipped model. A process loads each model once.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import llm
from llm.parts import TextPart
from pydantic import Field

from specqd.errors import SpecqdError
from specqd.hub import SHIPPED, SHORT_NAMES, cached_models
from specqd.llm import LLM, Stream
from specqd.sampling import SamplingParams, chat_sampling
from specqd.text.channels import ChannelReader, has_channels


@cache
def _loaded(name: str, draft: str) -> LLM:
    return LLM(name, draft.split())


class SpecqdModel(llm.Model):
    """One model. `execute` streams its answer. Drafts do not change it."""

    can_stream = True

    class Options(llm.Options):
        """Options of `-o`; by default as in `specqd chat`."""

        max_tokens: int | None = Field(None, description="Maximum of new tokens.")
        temperature: float | None = Field(None, description="Sampling temperature; 0: greedy.")
        top_p: float | None = Field(
            None, description="Nucleus sampling: cumulative probability to keep."
        )
        top_k: int | None = Field(None, description="Sample from the K likeliest tokens; 0: all.")
        min_p: float | None = Field(
            None, description="Least probability, relative to the likeliest token's."
        )
        repetition_penalty: float | None = Field(None, description="1: off.")
        seed: int | None = Field(None, description="Makes sampling repeatable.")
        draft: str = Field("auto", description="Drafts, outermost first, separated by spaces.")

    def __init__(self, name: str) -> None:
        self.model_id = f"specqd/{name}"
        self._name = name

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        options = prompt.options.model_dump()
        try:
            model = _loaded(self._name, options.pop("draft"))
            params = chat_sampling(SamplingParams(**options), model.defaults)
            answer = _answer(model, [_message(each) for each in prompt.messages], params)
            yield from _final(answer) if has_channels(model.tokenizer) else answer
        except SpecqdError as error:
            raise llm.ModelError(str(error)) from error
        if answer.result is not None:
            [completion] = answer.result.completions
            response.set_usage(
                input=len(answer.result.prompt_tokens), output=len(completion.tokens)
            )


def _answer(model: LLM, messages: list[dict[str, str]], params: SamplingParams) -> Stream:
    """The answer to a conversation. A model without a chat template continues its text, by 128
    tokens unless the options state a number."""
    if model.tokenizer.has_chat_template:
        is_plain = not has_channels(model.tokenizer)  # special tokens say which channel follows
        return model.stream_chat(messages, replace(params, skip_special_tokens=is_plain))
    text = "".join(message["content"] for message in messages)
    return model.stream(text, replace(params, max_tokens=params.max_tokens or 128))


def _final(pieces: Iterable[str]) -> Iterator[str]:
    """The channel of the answer, without the thoughts that precede it."""
    reader = ChannelReader()
    for piece in pieces:
        yield reader.split(piece, is_last=False)[0]
    yield reader.split("", is_last=True)[0]


def _message(message: Any) -> dict[str, str]:
    """A message as chat templates expect it; `llm` passes other parts only to models that declare
    support for them."""
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    return {"role": message.role, "content": "".join(texts)}


@llm.hookimpl
def register_models(register: Callable[[llm.Model], None]) -> None:
    """Registers all models that have a name. Fetches nothing."""
    cached = [model.name for model in cached_models()]
    for name in dict.fromkeys([SHIPPED, *cached, *SHORT_NAMES]):
        register(SpecqdModel(name))
