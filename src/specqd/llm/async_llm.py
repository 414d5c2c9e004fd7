"""The Python API for asyncio: an `LLM` whose engine runs on a thread."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from specqd.engine.engine import Engine
from specqd.engine.generation import GenerationRequest
from specqd.engine.reports import Stats
from specqd.engine.thread import EngineThread, Job
from specqd.engine.updates import Update
from specqd.errors import RequestError
from specqd.llm.chats import Chat
from specqd.llm.inputs import Messages, Prompt, params_of, prompts_of
from specqd.llm.llm import LLM
from specqd.llm.results import Completion, Result
from specqd.llm.stream import Finished, unchanged
from specqd.sampling import SamplingParams

# Returns the prompt, what makes the result of it, and whether the text is a chat's answer.
Encode = Callable[[], tuple[list[int], Finished, bool]]


@dataclass(frozen=True, slots=True)
class _Running:
    """A request in the engine."""

    thread: EngineThread
    job: Job
    engine: Engine
    before: Stats

    async def stats(self) -> Stats:
        """The engine's work since the request arrived."""
        return (await self.thread.ask(lambda: Stats.of(self.engine))).since(self.before)


class AsyncStream:
    """An async iterator over pieces of text; sets `result` at the end.

    Leaving a loop over it early cancels the request before the next round, and so does dropping it;
    `result` stays None.
    """

    def __init__(
        self,
        llm: "AsyncLLM",
        encode: Encode,
        params: SamplingParams,
    ) -> None:
        self._llm = llm
        self._encode = encode
        self._params = replace(params, n=1)
        self._begun: AsyncIterator[str] | None = None  # by `anext`
        self._results: list[Result] = []  # of its iterators, which do not refer to the stream

    @property
    def result(self) -> Result | None:
        return self._results[-1] if self._results else None

    def __repr__(self) -> str:
        return f"AsyncStream({self._params!r}, result={self.result!r})"

    def __aiter__(self) -> AsyncIterator[str]:
        """Iterates over the rest of a request that `anext` began, or over a new request."""
        begun, self._begun = self._begun, None
        return begun or self._pieces()

    async def __anext__(self) -> str:
        self._begun = self._begun or self._pieces()
        return await anext(self._begun)

    def _pieces(self) -> AsyncIterator[str]:
        return _pieces(self._llm, self._encode, self._params, self._results)


async def _pieces(
    llm: "AsyncLLM",
    encode: Encode,
    params: SamplingParams,
    results: list[Result],
) -> AsyncIterator[str]:
    """The pieces of a request, whose result is added to `results` at the end."""
    prompt, finished, is_answer = await asyncio.to_thread(encode)
    parts: list[Update] = []
    request = GenerationRequest([prompt], params, is_answer=is_answer)
    async with llm._running(request, is_streamed=True) as running:
        while not running.job.is_over:
            for update in await running.job.updates():
                parts.append(update)
                if update.text:
                    yield update.text
        [result] = llm._results(request, parts, await running.stats())
        results.append(finished(result))


class AsyncLLM:
    """An `LLM` whose calls are awaited; requests that run at once are one batch.

        async with AsyncLLM("./my-model") as llm:
            result = await llm.chat([{"role": "user", "content": "Hello"}])
            async for piece in llm.stream("Once upon a time"):
                print(piece, end="")

    It belongs to one event loop until that loop is closed or `close` is called. Tokens, text and
    log-probabilities are those of the LLM, which other threads may use at the same time.

    model: an LLM, or the first argument of one. Loading blocks the event loop, so pass an LLM that
        was made before the loop runs.
    """

    def __init__(self, model: LLM | str | Path | None = None) -> None:
        self.llm = model if isinstance(model, LLM) else LLM(model)
        self._thread: EngineThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: finalize[[], AsyncLLM] | None = None

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self.llm!r}"

    async def close(self) -> None:
        """Cancels all requests and ends the thread. The LLM stays; a later call starts anew."""
        if self._thread is not None:
            thread = self._started()
            thread.give_up("the AsyncLLM was closed; call again")
            self._forget()
            await thread.stop()

    async def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        sampling_params: SamplingParams | None = None,
    ) -> list[Result]:
        """Completes one prompt or several. The results are in the order of the prompts."""
        params, many = params_of(sampling_params, self.llm.defaults), prompts_of(prompts)
        encoded = await asyncio.to_thread(lambda: [self.llm.encode(each) for each in many])
        return await self._whole(GenerationRequest(encoded, params))

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        is_answer: bool = False,
    ) -> AsyncStream:
        """Completes one prompt piece by piece, with the arguments of `LLM.stream`."""
        params = params_of(sampling_params, self.llm.defaults)
        return AsyncStream(self, lambda: (self.llm.encode(prompt), unchanged, is_answer), params)

    async def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **template_variables: Any,
    ) -> Result:
        """Answers a conversation, with the arguments of `LLM.chat`."""
        params = params_of(sampling_params, self.llm.defaults)
        chat = await asyncio.to_thread(
            Chat.of, self.llm.tokenizer, messages, chat_template_kwargs, template_variables
        )
        request = GenerationRequest([chat.prompt], params, is_answer=chat.is_answer)
        [result] = await self._whole(request)
        return chat.replied(result)

    def stream_chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **template_variables: Any,
    ) -> AsyncStream:
        """Answers a conversation piece by piece, with the arguments of `LLM.chat`."""
        params, tokenizer = params_of(sampling_params, self.llm.defaults), self.llm.tokenizer

        def encode() -> tuple[list[int], Finished, bool]:
            chat = Chat.of(tokenizer, messages, chat_template_kwargs, template_variables)
            return chat.prompt, chat.replied, chat.is_answer

        return AsyncStream(self, encode, params)

    async def embed(
        self,
        texts: Prompt | SequenceOf[Prompt],
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
    ) -> NDArray[np.float32]:
        """The vectors of one text or several, with the arguments of `LLM.embed`."""
        embedder = self.llm.embedder()
        dimensions, many = embedder.check_dimensions(dimensions), prompts_of(texts, "texts")
        encoded = await asyncio.to_thread(
            lambda: [embedder.encode(each, prompt_name) for each in many]
        )
        thread = self._started()
        run = await thread.ask(lambda: embedder.begin(encoded))
        while not run.is_done:
            await thread.forward(run.step)
        return embedder.vectors(run, dimensions)

    async def _whole(self, request: GenerationRequest) -> list[Result]:
        updates: list[Update] = []
        async with self._running(request, is_streamed=False) as running:
            while not running.job.is_over:
                updates += await running.job.updates()
            return self._results(request, updates, await running.stats())

    @asynccontextmanager
    async def _running(
        self, request: GenerationRequest, *, is_streamed: bool
    ) -> AsyncIterator[_Running]:
        """A request in the engine, which is closed at the end."""
        thread, engine = self._started(), self.llm.engine
        rules = self.llm.rules
        make_grammar = await asyncio.to_thread(rules.of, request.params, request.prompts)
        job = Job(replace(request, make_grammar=make_grammar), is_streamed=is_streamed)
        try:
            before = await thread.ask(lambda: Stats.of(engine))
            await thread.submit(job)
            yield _Running(thread, job, engine, before)
        finally:
            thread.close(job)

    def _results(
        self,
        request: GenerationRequest,
        updates: SequenceOf[Update],
        stats: Stats,
    ) -> list[Result]:
        """The results of a request, from all its updates."""
        params, tokenizer = request.params, self.llm.tokenizer
        samples = [[u for u in updates if u.sample == i] for i in range(request.num_samples)]
        results = []
        for i, prompt in enumerate(map(list, request.prompts)):
            parts = samples[i * params.n : (i + 1) * params.n]
            scored = parts[0][0].prompt_logprobs if params.prompt_logprobs is not None else None
            completions = [Completion.of_updates(p, params.logprobs is not None) for p in parts]
            is_answer = request.is_answer
            results.append(Result(prompt, completions, stats, scored, tokenizer, is_answer))
        return results

    def _started(self) -> EngineThread:
        """The thread of this event loop. Raises RequestError within another loop."""
        loop = asyncio.get_running_loop()
        if self._thread is not None and self._loop is not None and self._loop.is_closed():
            thread = self._thread
            self._forget()
            thread.end()
        if self._thread is None:
            self._thread = EngineThread(self.llm.engine, turns=self.llm.turns)
            self._thread.start()
            self._loop = loop
            # Also at exit: a daemon thread would keep native objects alive.
            self._end = finalize(self, self._thread.end)
        if self._loop is not loop:
            raise RequestError(
                "this AsyncLLM belongs to another event loop; close it there, or make another one"
            )
        return self._thread

    def _forget(self) -> None:
        if self._end is not None:
            self._end.detach()
        self._thread = self._loop = self._end = None
