"""One loaded model as the paths use it: its engine's thread, tokenizer, grammars and metrics."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TypeVar

from fastapi.responses import Response

from specqd.config import GenerationDefaults
from specqd.engine.engine import Engine
from specqd.engine.generation import MakeGrammar
from specqd.engine.reports import Stats, chain_of, longest_proposal, models_of
from specqd.engine.thread import EngineThread, Job
from specqd.engine.turns import Turns
from specqd.errors import RequestError
from specqd.grammars import Grammars
from specqd.llm.embedding import Embedder
from specqd.openai.answers import Answer, Reply, Usage, form_of
from specqd.openai.grammar import request_grammar
from specqd.openai.requests import Prepared
from specqd.openai.requests import Request as ApiRequest
from specqd.openai.speculation import DraftMetrics
from specqd.sampling import SamplingParams, request_sampling
from specqd.server.bandwidth import measure_limits
from specqd.server.metrics import Counts, Metrics
from specqd.server.page import Facts, SamplingDefaults
from specqd.server.problems import ProblemError, refused
from specqd.server.streams import AnswerResponse

T = TypeVar("T")
_LONG_BODY_BYTES = 1 << 18
MakeReply = Callable[[Prepared, str], Reply]  # (prepared request, key of the ids) -> answer


@dataclass(frozen=True, slots=True)
class Serving:
    """The engine to serve, the model's name, and limits."""

    engine: Engine
    model_name: str
    defaults: GenerationDefaults  # for fields that a request omits
    embedder: Callable[[], Embedder]
    most_open_samples: int = 1024


@dataclass(frozen=True, slots=True)
class Shared:
    """What the models of one server take turns at, because each would use the whole machine.

    rounds: of their engines. Without this, threads of two models would wait for each other's cores.
    long_bodies: tokenizing a text takes a hundred times its size in memory.
    """

    rounds: Turns = field(default_factory=Turns)
    long_bodies: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Remains:
    """What stays of a model when it is unloaded, so that it is the same when it is loaded again."""

    metrics: Metrics  # whose counts go on
    bandwidth: Mapping[str, float]  # GB/s by level name
    cache_positions: int
    cache_bytes: int  # of the KV caches of all levels, if they are full
    max_context: int


class Service:
    """The state that the paths share: the engine's thread, metrics, grammars."""

    def __init__(
        self,
        serving: Serving,
        shared: Shared | None = None,
        remains: Remains | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """remains: of this model, if it was loaded before. on_close: frees the model."""
        self._shared = shared or Shared()
        self._on_close = on_close
        self.serving = serving
        self.engine = serving.engine
        self.defaults = serving.defaults
        self.tokenizer = serving.engine.tokenizer
        begun = Stats.of(serving.engine)
        if remains is None:
            with self._shared.rounds.alone():
                self.bandwidth: Mapping[str, float] = measure_limits(serving.engine)
            self.metrics = Metrics(serving.model_name, begun, self.bandwidth)
        else:
            self.bandwidth, self.metrics = remains.bandwidth, remains.metrics
            self.metrics.resume(begun, self.bandwidth)
        self.remains = Remains(
            self.metrics,
            self.bandwidth,
            serving.engine.level.model.cache_positions,
            _cache_bytes(serving.engine),
            serving.engine.max_context,
        )
        self.thread = EngineThread(serving.engine, self.metrics, self._shared.rounds)
        self.grammars = Grammars(
            self.tokenizer,
            serving.engine.level.model.vocabulary,
            sorted(serving.engine.eos_token_ids),
        )
        with suppress(RequestError):  # a model that only embeds needs no grammar
            serving.engine.level.model.check_generates()
            self.grammars.prepare()  # now, because it would hold up the event loop later

    async def in_turn(self, body_size: int, work: Callable[[], T]) -> T:
        """Runs work on a body's text in a worker thread. Long bodies wait for each other."""
        is_long = body_size > _LONG_BODY_BYTES
        async with self._shared.long_bodies if is_long else nullcontext():
            return await asyncio.to_thread(work)

    async def answer(
        self,
        api_request: ApiRequest,
        body_size: int,
        client: str,
        reply_of: MakeReply | None = None,
    ) -> Response:
        """Submits a request. Raises ProblemError or SpecqdError if it cannot be run.

        reply_of: makes the answer. None: OpenAI's answer of a completion or chat.
        """
        prepared = await self.in_turn(body_size, lambda: Prepared.of(api_request, self.tokenizer))
        for prompt in prepared.prompts:  # before the grammar, which may take 1 s
            self.engine.check_length(len(prompt))
        make_grammar = None
        if prepared.has_rules:
            make_grammar = await asyncio.to_thread(request_grammar, self.grammars, prepared)
        answer = (reply_of or self._answer)(prepared, token_hex(12))
        job = self._job(prepared, make_grammar, client)
        self._check_places(job.request.num_samples)
        try:
            await self.thread.submit(job)
        except BaseException:
            self.thread.close(job)
            raise
        return AnswerResponse(self.thread, job, answer, is_stream=api_request.options.is_streamed)

    def _answer(self, prepared: Prepared, key: str) -> Answer:
        options = prepared.request.options
        return Answer(
            form_of(prepared, self.tokenizer, key, chain_of(self.engine.level)),
            self.serving.model_name,
            Usage.of(prepared, cached_prompt_tokens=0),
            key=key,
            created=int(time.time()),
            has_usage_chunk=options.has_usage_chunk,
            has_running_usage=options.has_running_usage,
            metrics=self.draft_metrics(),
        )

    def draft_metrics(self) -> DraftMetrics:
        """Returns new metrics, which one answer fills."""
        return DraftMetrics(longest_proposal(self.engine.level))

    def _job(self, prepared: Prepared, make_grammar: MakeGrammar | None, client: str) -> Job:
        options = prepared.request.options
        salt = f"{client}\n{options.cache_salt}"  # clients share no prompts; keys contain no \n
        return Job(
            prepared.for_engine(self.defaults, make_grammar, salt),
            is_streamed=options.is_streamed,
            has_progress=options.has_progress,
            has_prompt_progress=options.has_progress,
        )

    def facts(self) -> Facts:
        """Returns what the page shows about the model."""
        return Facts(
            self.serving.model_name,
            self.tokenizer.has_chat_template,
            self.engine.max_context,
            SamplingDefaults.of(request_sampling(SamplingParams(), self.defaults)),
            chain_of(self.engine.level),
            self.bandwidth,
        )

    def _check_places(self, samples: int) -> None:
        """Raises ProblemError if there is no room for more samples.

        Await nothing between this call and the submission, which takes the places.
        """
        most = self.serving.most_open_samples
        if samples > most:
            raise refused(f"{samples} samples are more than {most}; request fewer at once")
        if self.thread.num_open_samples + samples > most:
            raise ProblemError(429, f"{most} samples are open already; try again later")

    async def counts(self) -> Counts:
        """Returns the engine's counts between two rounds. Raises StoppedError."""
        return await self.thread.ask(lambda: Counts.of(self.engine))

    async def close(self) -> None:
        """Stops the engine's thread and frees the model. No request may use it any more."""
        await self.thread.stop()
        await asyncio.to_thread(self._on_close)


def _cache_bytes(engine: Engine) -> int:
    """The most bytes that the KV caches of all levels take, with the states that they keep."""
    caches = {id(each.model.cache): each.model.cache for each in models_of(engine.level)}
    return sum(
        cache.total_pages * cache.page_bytes
        + cache.total_states * cache.state_bytes
        + cache.total_slots * cache.slot_bytes
        for cache in caches.values()
    )
