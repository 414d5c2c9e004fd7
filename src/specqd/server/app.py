"""Defines the server's paths. The application is built once, around the models that it serves."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from specqd import __version__
from specqd.anthropic.answers import MessagesAnswer
from specqd.anthropic.requests import count_request, messages_request
from specqd.errors import SpecqdError, shown
from specqd.openai.answers import Reply, Usage
from specqd.openai.parts import BlockReader
from specqd.openai.requests import Prepared, chat_request, completion_request
from specqd.openai.responses_answers import ResponsesAnswer
from specqd.openai.responses_requests import responses_request
from specqd.server.bodies import IgnoredFields, detokenize_request, json_of, tokenize_request
from specqd.server.embeddings import PATH as EMBEDDINGS
from specqd.server.embeddings import add_embeddings
from specqd.server.guard import CLIENT, Access, Guard
from specqd.server.metrics import CONTENT_TYPE
from specqd.server.model_metrics import Merged
from specqd.server.models import Models
from specqd.server.page import Facts, add_page
from specqd.server.problems import ANTHROPIC, ProblemError, problem_of
from specqd.server.served_model import ServedModel
from specqd.server.service import Service
from specqd.server.streams import while_connected

_USES = "specqd.uses"  # the key of the ASGI scope under which a request ends its uses of models
_PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    EMBEDDINGS,
    ANTHROPIC,
    f"{ANTHROPIC}/count_tokens",
    "/v1/models",
    "/version",
    "/tokenize",
    "/detokenize",
)


class Front:
    """What the paths share: the models, and how bodies are read."""

    def __init__(self, models: Models, *, is_lenient: bool = False) -> None:
        """is_lenient: ignores unknown fields of requests instead of rejecting them."""
        self.models = models
        self.created = int(time.time())
        self._ignored = IgnoredFields() if is_lenient else None

    async def json_of(self, request: Request) -> object:
        """Parses a body. Raises ProblemError or RequestError."""
        return json_of(await request.body(), self._ignored)

    async def service(self, request: Request, name: str | None) -> Service:
        """Returns the model of that name, loaded until the answer to the request has been sent.

        Raises ProblemError for another name, and SpecqdError if the model cannot be loaded.
        """
        model = self.models.named(name)
        service = self.models.take_loaded(model)
        service = service or await while_connected(request.receive, self.models.take(model))
        if service is None:
            raise ProblemError(503, "the client has disconnected")
        request.scope[_USES].callback(model.leave)
        return service


class Uses:
    """Passes requests on, and ends their uses of models when they have been answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as scope[_USES]:
            await self._app(scope, receive, send)


def make_app(models: Models, access: Access, *, is_lenient: bool = False) -> ASGIApp:
    """Returns the whole application, with access checks."""
    guarded = Guard(make_paths(models, is_lenient=is_lenient), access)
    if not access.origins:
        return guarded
    return CORSMiddleware(
        guarded,
        allow_origins=sorted(access.origins),
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
    )


def make_paths(models: Models, *, is_lenient: bool = False) -> FastAPI:
    """Returns all paths, without access checks. A request's scope must have its client's key."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        models.start()
        yield  # listening.py stops them

    app = FastAPI(
        title="SpecQD",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,  # FastAPI's documentation pages load scripts from other origins
        redirect_slashes=False,
    )
    app.add_middleware(Uses)
    front = Front(models, is_lenient=is_lenient)
    add_errors(app)
    add_models(app, front)
    add_texts(app, front)
    add_generation(app, front)
    add_messages(app, front)
    add_embeddings(app, front)

    async def facts(request: Request, model: str | None) -> Facts:
        return (await front.service(request, model)).facts()

    add_page(app, facts)
    return app


def add_generation(app: FastAPI, front: Front) -> None:
    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        parsed = completion_request(await front.json_of(request))
        service = await front.service(request, parsed.options.model)
        return await service.answer(parsed, len(await request.body()), request.scope[CLIENT])

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        parsed = chat_request(await front.json_of(request))
        service = await front.service(request, parsed.options.model)
        return await service.answer(parsed, len(await request.body()), request.scope[CLIENT])

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        parsed = responses_request(await front.json_of(request))
        service = await front.service(request, parsed.chat.options.model)

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

        body_size = len(await request.body())
        return await service.answer(parsed.chat, body_size, request.scope[CLIENT], reply_of)


def add_messages(app: FastAPI, front: Front) -> None:
    @app.post(ANTHROPIC)
    async def messages(request: Request) -> Response:
        parsed = messages_request(await front.json_of(request))
        service = await front.service(request, parsed.options.model)

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

        body_size = len(await request.body())
        return await service.answer(parsed, body_size, request.scope[CLIENT], reply_of)

    @app.post(f"{ANTHROPIC}/count_tokens")
    async def count_tokens(request: Request) -> dict[str, int]:
        parsed = count_request(await front.json_of(request))
        service = await front.service(request, parsed.options.model)
        body_size = len(await request.body())
        [ids] = await service.in_turn(body_size, lambda: parsed.encoded(service.tokenizer))
        return {"input_tokens": len(ids)}


def add_models(app: FastAPI, front: Front) -> None:
    def described(model: ServedModel) -> dict[str, Any]:
        return {
            "id": model.name,
            "object": "model",
            "created": front.created,
            "owned_by": "specqd",
            "max_model_len": model.max_context,
            "context_length": model.max_context,  # the name that other clients read
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [described(each) for each in front.models.all]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return described(front.models.named(name))

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        front.models.check()
        return Response()

    @app.get("/metrics")
    async def metrics() -> Response:
        merged = Merged(await front.models.families())
        return Response(generate_latest(merged), media_type=CONTENT_TYPE)


def add_texts(app: FastAPI, front: Front) -> None:
    @app.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        parsed = tokenize_request(await front.json_of(request))
        service = await front.service(request, parsed.model)
        body_size = len(await request.body())
        ids = await service.in_turn(body_size, lambda: parsed.encoded(service.tokenizer))
        return {"count": len(ids), "max_model_len": service.engine.max_context, "tokens": ids}

    @app.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, str]:
        parsed = detokenize_request(await front.json_of(request))
        service = await front.service(request, parsed.model)
        parsed.check(service.engine.level.model.vocabulary)
        tokenizer = service.tokenizer
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
            allowed = {name.lower(): value for name, value in error.headers.items()}["allow"]
            problem = f"{shown(request.method)} is not allowed for this path; send {allowed}"
        response = ProblemError(error.status_code, problem).response(request.url.path)
        response.headers.update(error.headers or {})  # of a 405: the allowed methods
        return response

    @app.exception_handler(Exception)
    async def on_fault(request: Request, error: Exception) -> JSONResponse:
        problem = ProblemError(500, "the server failed on this request; its log says why")
        return problem.response(request.url.path)
