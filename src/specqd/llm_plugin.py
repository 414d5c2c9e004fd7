"""A plugin for Simon Willison's `llm` command (extra `llm`): local models under `specqd/NAME`.

NAME is a model of Hugging Face's cache, a short name, which is fetched when first used, or the
shipped model. A process loads a model once.
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
    """One model. `execute` streams its answer, which drafts do not change."""

    can_stream = True

    class Options(llm.Options):
        """Options of `-o`; those that are absent are as in `specqd chat`."""

        max_tokens: int | None = Field(None, description="The most new tokens.")
        temperature: float | None = Field(None, description="0 is greedy.")
        top_p: float | None = Field(None, description="Probability mass to sample from.")
        top_k: int | None = Field(None, description="Sample from so many tokens; 0: from all.")
        min_p: float | None = Field(None, description="As a share of the likeliest token's.")
        repetition_penalty: float | None = Field(None, description="1 is none.")
        seed: int | None = Field(None, description="Equal seeds give equal answers.")
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
    tokens unless the options say more."""
    if model.tokenizer.has_chat_template:
        is_plain = not has_channels(model.tokenizer)  # special tokens say which channel it is
        return model.stream_chat(messages, replace(params, skip_special_tokens=is_plain))
    text = "".join(message["content"] for message in messages)
    return model.stream(text, replace(params, max_tokens=params.max_tokens or 128))


def _final(pieces: Iterable[str]) -> Iterator[str]:
    """The channel of the answer, without the thoughts before it."""
    reader = ChannelReader()
    for piece in pieces:
        yield reader.told_apart(piece, is_last=False)[0]
    yield reader.told_apart("", is_last=True)[0]


def _message(message: Any) -> dict[str, str]:
    """A message in the form of chat templates; `llm` gives other parts only to models that state
    support for them."""
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    return {"role": message.role, "content": "".join(texts)}


@llm.hookimpl
def register_models(register: Callable[[llm.Model], None]) -> None:
    """Registers what can be named without a path. Fetches nothing."""
    cached = [model.name for model in cached_models()]
    for name in dict.fromkeys([SHIPPED, *cached, *SHORT_NAMES]):
        register(SpecqdModel(name))
