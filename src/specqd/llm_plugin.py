"""A plugin for Simon Willison's `llm` command (extra `llm`): local models under `specqd/NAME`.

NAME is a model in Hugging Face's cache, a short name, which is fetched at its first use, the
shipped model, or a directory or file that `llm specqd add` has named. A process loads each model
once.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import llm
from llm.parts import ReasoningPart, StreamEvent, TextPart, ToolCallPart, ToolResultPart
from pydantic import Field

from specqd.errors import RequestError, SpecqdError
from specqd.hub import SHIPPED, model_names, resolve
from specqd.llm import LLM, Result
from specqd.llm.async_llm import AsyncLLM
from specqd.openai.parts import reader_of
from specqd.openai.requests import ChatRequest, Prepared
from specqd.sampling import SamplingParams, chat_sampling
from specqd.text.parts import PartReader, Thought
from specqd.text.tool_calls import NO_PARAMETERS, Tool, ToolUse

_LOADING = Lock()


def _loaded(name: str, draft: str) -> LLM:
    """The model; it is loaded once, also if several threads ask for it at the same time."""
    with _LOADING:
        return _opened(name, draft)


@cache
def _opened(name: str, draft: str) -> LLM:
    return LLM(_named_paths().get(name, name), draft.split())


class _Options(llm.Options):
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


class SpecqdModel(llm.Model):
    """One model. `execute` streams its answer. Drafts do not change it."""

    can_stream = supports_schema = supports_tools = True
    Options = _Options

    def __init__(self, name: str) -> None:
        self.model_id = f"specqd/{name}"
        self._name = name

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[Any]:
        with _as_model_error():
            asked = _Asked.of(self._name, prompt)
            answer = asked.model.stream(asked.prompt, asked.params, is_answer=asked.is_chat)
            for piece in answer:
                yield from asked.read(piece)
            yield from asked.finish(answer.result, response)


class AsyncSpecqdModel(llm.AsyncModel):
    """The same for asyncio. Requests that run at once are one batch."""

    can_stream = supports_schema = supports_tools = True
    Options = _Options

    def __init__(self, name: str) -> None:
        self.model_id = f"specqd/{name}"
        self._name = name

    async def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any
    ) -> AsyncIterator[Any]:
        with _as_model_error():
            asked = await asyncio.to_thread(_Asked.of, self._name, prompt)
            async with AsyncLLM(asked.model) as model:
                answer = model.stream(asked.prompt, asked.params, is_answer=asked.is_chat)
                async for piece in answer:
                    for event in asked.read(piece):
                        yield event
                for event in asked.finish(answer.result, response):
                    yield event


@contextmanager
def _as_model_error() -> Iterator[None]:
    try:
        yield
    except SpecqdError as error:
        raise llm.ModelError(str(error)) from error


@dataclass
class _Asked:
    """One request: its prompt, and how its answer is read."""

    model: LLM
    prompt: list[int]
    params: SamplingParams
    reader: PartReader | None = None  # None: the text is the answer
    calls: list[tuple[str, list[str]]] = field(default_factory=list)  # names, parts of arguments

    @classmethod
    def of(cls, name: str, prompt: Any) -> "_Asked":
        """A model without a chat template continues its text, by 128 tokens unless the options
        state a number."""
        options = prompt.options.model_dump()
        model = _loaded(name, options.pop("draft"))
        params = SamplingParams(**options, schema=prompt.schema)
        params = chat_sampling(params, model.defaults)
        messages = [each for message in prompt.messages for each in _messages(message)]
        tools = tuple(map(_tool, prompt.tools))
        if tools and params.has_rules:
            raise RequestError("a schema cannot be combined with tools; give one of them")
        if not tools and not model.tokenizer.has_chat_template:
            text = "".join(str(message["content"]) for message in messages)
            params = replace(params, max_tokens=params.max_tokens or 128)
            return cls(model, model.encode(text), params)
        use = ToolUse(tools) if tools else None
        prepared = Prepared.of(ChatRequest(tuple(messages), params, tool_use=use), model.tokenizer)
        return cls(model, prepared.prompts[0], prepared.params, reader_of(prepared))

    @property
    def is_chat(self) -> bool:
        return self.reader is not None

    def read(self, text: str, *, is_last: bool = False) -> Iterator[Any]:
        """Yields new text of the answer and of the reasoning; keeps calls."""
        if self.reader is None:
            yield text
            return
        for part in self.reader.read(text, is_last=is_last):
            if isinstance(part, str):
                yield part
            elif isinstance(part, Thought):
                yield StreamEvent(type="reasoning", chunk=part.text)
            else:
                if part.index == len(self.calls):
                    self.calls.append((part.name or "", []))
                self.calls[part.index][1].append(part.arguments)

    def finish(self, result: Result | None, response: Any) -> Iterator[Any]:
        """Yields the last text; adds calls and usage to the response."""
        yield from self.read("", is_last=True)
        for name, written in self.calls:
            response.add_tool_call(llm.ToolCall(name, _arguments("".join(written))))
        if result is not None:
            [completion] = result.completions
            response.set_usage(input=len(result.prompt_tokens), output=len(completion.tokens))


def _tool(tool: Any) -> Tool:
    return Tool(tool.name, tool.input_schema or NO_PARAMETERS, False, tool.description)


def _arguments(text: str) -> dict[str, Any]:
    """The arguments of a call. Raises RequestError for JSON that the model did not finish."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"the model wrote a call whose arguments are not JSON ({error}); ask again"
        ) from error
    return arguments if isinstance(arguments, dict) else {}


def _messages(message: Any) -> Iterator[dict[str, Any]]:
    """A message as chat templates expect it; each result of a tool is a message of its own. `llm`
    passes other parts only to models that declare support for them."""
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    thoughts = [part.text for part in message.parts if isinstance(part, ReasoningPart)]
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    for each in results:
        origin = {"tool_call_id": each.tool_call_id, "name": each.name}
        yield {"role": "tool", "content": each.exception or each.output, **origin}
    if results and not texts:
        return
    plain: dict[str, Any] = {"role": message.role, "content": "".join(texts)}
    if thoughts:
        plain["reasoning_content"] = "".join(thoughts)
    if calls:
        plain["tool_calls"] = [
            {
                "id": each.tool_call_id,
                "type": "function",
                "function": {"name": each.name, "arguments": each.arguments},
            }
            for each in calls
        ]
    yield plain


# --- Names -------------------------------------------------------------------------------------


def _names_file() -> Path:
    return Path(llm.user_dir()) / "specqd-models.json"


def _named_paths() -> Mapping[str, str]:
    """The directories and files that `llm specqd add` has named."""
    try:
        named = json.loads(_names_file().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        problem = f"{_names_file()}: cannot be read ({error}); mend or delete it"
        raise llm.ModelError(problem) from error
    return named if isinstance(named, dict) else {}


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Registers all models that have a name. Fetches nothing."""
    for name in dict.fromkeys([SHIPPED, *_named_paths(), *model_names()]):
        register(SpecqdModel(name), AsyncSpecqdModel(name))


@llm.hookimpl
def register_commands(cli: Any) -> None:
    """Adds `llm specqd add PATH`, which names a local model."""
    import click

    @cli.group()
    def specqd() -> None:
        """Local models of SpecQD."""

    @specqd.command()
    @click.argument("path", type=click.Path(exists=True, path_type=Path))
    @click.option("--name", help="Its name after specqd/. Default: that of the directory or file.")
    def add(path: Path, name: str | None) -> None:
        """Let `llm -m specqd/NAME` run the model in PATH, a directory or a .gguf file."""
        try:
            found = resolve(path.resolve())
        except SpecqdError as error:
            raise click.ClickException(str(error)) from error
        name = name or (found.name if found.is_dir() else found.stem)
        named = {**_named_paths(), name: str(found)}
        _names_file().write_text(json.dumps(named, indent=1) + "\n", encoding="utf-8")
        click.echo(f"llm -m specqd/{name} runs {found}")
