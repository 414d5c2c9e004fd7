"""Defines the server's paths. The application is built once, around one engine."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from specqd import __version__
from specqd.anthropic.answers import MessagesAnswer
from specqd.anthropic.requests import count_request, messages_request
from specqd.config import GenerationDefaults
from specqd.engine.engine import Engine
from specqd.engine.generation import MakeGrammar
from specqd.engine.reports import Stats, chain_of, longest_proposal
from specqd.engine.thread import EngineThread, Job
from specqd.errors import SpecqdError, shown
from specqd.grammars import Grammars
from specqd.openai.answers import Answer, Reply, Usage, form_of
from specqd.openai.grammar import request_grammar
from specqd.openai.parts import BlockReader
from specqd.openai.requests import Prepared, chat_request, completion_request
from specqd.openai.requests import Request as ApiRequest
from specqd.openai.responses_answers import ResponsesAnswer
from specqd.openai.responses_requests import responses_request
from specqd.openai.speculation import DraftMetrics
from specqd.sampling import SamplingParams, request_sampling
from specqd.server.bandwidth import measure_limits
from specqd.server.bodies import IgnoredFields, detokenize_request, json_of, tokenize_request
from specqd.server.guard import CLIENT, Access, Guard
from specqd.server.metrics import CONTENT_TYPE, Counts, Metrics
from specqd.server.page import Facts, SamplingDefaults, add_page
from specqd.server.problems import ANTHROPIC, ProblemError, problem_of, refused
from specqd.server.streams import AnswerResponse

T = TypeVar("T")
_LONG_BODY_BYTES = 1 << 18
MakeReply = Callable[[Prepared, str], Reply]  # (prepared request, key of the ids) -> answer
_PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    ANTHROPIC,
    f"{ANTHROPIC}/count_tokens",
    "/v1/models",
    "/version",
    "/tokenize",
    "/detokenize",
)


@dataclass(frozen=True, slots=True)
class Serving:
    """The engine to serve, the model's name, access rules and limits."""

    engine: Engine
    model_name: str
    defaults: GenerationDefaults  # for fields that a request omits
    access: Access
    most_open_samples: int = 1024
    is_lenient: bool = False  # ignore unknown fields of requests instead of rejecting them


class Service:
    """The state that the paths share: the engine's thread, metrics, grammars."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.engine = serving.engine
        self.defaults = serving.defaults
        self.tokenizer = serving.engine.tokenizer
        self.bandwidth = measure_limits(serving.engine)
        self.metrics = Metrics(serving.model_name, Stats.of(serving.engine), self.bandwidth)
        self.thread = EngineThread(serving.engine, self.metrics)
        self.created = int(time.time())
        self.grammars = Grammars(
            self.tokenizer,
            serving.engine.level.model.vocabulary,
            sorted(serving.engine.eos_token_ids),
        )
        self._long_bodies = asyncio.Lock()
        self._ignored = IgnoredFields() if serving.is_lenient else None

    def json_of(self, body: bytes) -> object:
        """Parses a body. Raises ProblemError or RequestError."""
        return json_of(body, self._ignored)

    def check_model(self, name: str | None) -> None:
        """Raises ProblemError (404) for the name of another model."""
        if name is not None and name != self.serving.model_name:
            raise ProblemError(
                404,
                f"there is no model of that name; this server has {self.serving.model_name}",
                "model",
                "model_not_found",
            )

    async def in_turn(self, body_size: int, work: Callable[[], T]) -> T:
        """Runs work on a body's text in a worker thread.

        Long bodies wait for each other: tokenizing a text takes a hundred times its size in memory.
        """
        async with self._long_bodies if body_size > _LONG_BODY_BYTES else nullcontext():
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
        self.check_model(api_request.options.model)
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


def make_app(service: Service) -> ASGIApp:
    """Returns the whole application, with access checks."""
    access = service.serving.access
    guarded = Guard(make_paths(service), access)
    if not access.origins:
        return guarded
    return CORSMiddleware(
        guarded,
        allow_origins=sorted(access.origins),
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
    )


def make_paths(service: Service) -> FastAPI:
    """Returns all paths, without access checks. A request's scope must have its client's key."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.thread.start()
        yield  # listening.py stops the thread

    app = FastAPI(
        title="SpecQD",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,  # FastAPI's documentation pages load scripts from other origins
        redirect_slashes=False,
    )
    add_errors(app)
    add_models(app, service)
    add_texts(app, service)
    add_generation(app, service)
    add_messages(app, service)
    add_page(app, service.facts())
    return app


def add_generation(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await request.body()
        parsed = completion_request(service.json_of(body))
        return await service.answer(parsed, len(body), request.scope[CLIENT])

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = await request.body()
        parsed = chat_request(service.json_of(body))
        return await service.answer(parsed, len(body), request.scope[CLIENT])

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        body = await request.body()
        parsed = responses_request(service.json_of(body))

        def reply_of(prepared: Prepared, key: str) -> Reply:
            return ResponsesAnswer(
                service.serving.model_name,
                Usage.of(prepared, cached_prompt_tokens=0),
                key=key,
                created=int(time.time()),
                echoed=parsed.echoed(service.defaults),
                blocks=BlockReader(prepared),
                metrics=service.draft_metrics(),
                tokenizer=service.tokenizer,
            )

        return await service.answer(parsed.chat, len(body), request.scope[CLIENT], reply_of)


def add_messages(app: FastAPI, service: Service) -> None:
    @app.post(ANTHROPIC)
    async def messages(request: Request) -> Response:
        body = await request.body()
        parsed = messages_request(service.json_of(body))

        def reply_of(prepared: Prepared, key: str) -> Reply:
            assert parsed.params.max_tokens is not None
            return MessagesAnswer(
                service.serving.model_name,
                Usage.of(prepared, cached_prompt_tokens=0),
                key,
                BlockReader(prepared),
                service.draft_metrics(),
                parsed.params.max_tokens,
            )

        return await service.answer(parsed, len(body), request.scope[CLIENT], reply_of)

    @app.post(f"{ANTHROPIC}/count_tokens")
    async def count_tokens(request: Request) -> dict[str, int]:
        body = await request.body()
        parsed = count_request(service.json_of(body))
        service.check_model(parsed.options.model)
        [ids] = await service.in_turn(len(body), lambda: parsed.encoded(service.tokenizer))
        return {"input_tokens": len(ids)}


def add_models(app: FastAPI, service: Service) -> None:
    serving = service.serving
    described = {
        "id": serving.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "specqd",
        "max_model_len": service.engine.max_context,
        "context_length": service.engine.max_context,  # the name that other clients read
    }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [described]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_model(name)
        return described

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        service.thread.check()
        return Response()

    @app.get("/metrics")
    async def metrics() -> Response:
        counts = await service.thread.ask(lambda: Counts.of(service.engine))
        return Response(service.metrics.shown(counts), media_type=CONTENT_TYPE)


def add_texts(app: FastAPI, service: Service) -> None:
    tokenizer = service.tokenizer

    @app.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        body = await request.body()
        parsed = tokenize_request(service.json_of(body))
        service.check_model(parsed.model)
        ids = await service.in_turn(len(body), lambda: parsed.encoded(tokenizer))
        return {"count": len(ids), "max_model_len": service.engine.max_context, "tokens": ids}

    @app.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, str]:
        body = service.json_of(await request.body())
        parsed = detokenize_request(body, service.engine.level.model.vocabulary)
        service.check_model(parsed.model)
        text = await asyncio.to_thread(tokenizer.decode, parsed.tokens, skip_special_tokens=False)
        return {"prompt": text}


def add_errors(app: FastAPI) -> None:
    """Gives all errors the same JSON shape."""

    @app.exception_handler(ProblemError)
    async def on_problem(request: Request, problem: ProblemError) -> JSONResponse:
        return problem.response(request.url.path)

    @app.exception_handler(SpecqdError)
    async def on_error(request: Request, error: SpecqdError) -> JSONResponse:
        return problem_of(error).response(request.url.path)

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> JSONResponse:
        problem = str(error.detail)
        if error.status_code == 404:
            problem = f"there is no path {shown(request.url.path)}; known: {', '.join(_PATHS)}"
        elif error.status_code == 405 and error.headers:
            allowed = error.headers.get("allow", "")
            problem = f"{shown(request.method)} is not allowed for this path; send {allowed}"
        response = ProblemError(error.status_code, problem).response(request.url.path)
        response.headers.update(error.headers or {})  # of a 405: the allowed methods
        return response

    @app.exception_handler(Exception)
    async def on_fault(request: Request, error: Exception) -> JSONResponse:
        problem = ProblemError(500, "the server failed on this request; its log says why")
        return problem.response(request.url.path)
