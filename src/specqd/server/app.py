"""The server's paths: what each takes, and whom it asks. Built once, around one engine."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from specqd import __version__
from specqd.engine import Engine
from specqd.errors import RequestError, SpecqdError, TokenizerError
from specqd.sampling import Defaults, SamplingParams
from specqd.server.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    Prompt,
    SamplingBody,
    TokenizeBody,
)
from specqd.server.engine_thread import EngineFailedError, EngineThread, Job
from specqd.server.guard import Access, Guard
from specqd.server.metrics import CONTENT_TYPE, Counts, Metrics
from specqd.server.problems import ProblemError, refused
from specqd.server.responses import Answer, ChatForm, CompletionForm, Form, Usage
from specqd.server.streams import AnswerResponse
from specqd.server.structured import JsonGrammars

_LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served, under which name, to whom, and how much of it at once."""

    engine: Engine
    model_name: str
    defaults: Defaults  # the model's own recommendation, for what a request leaves open
    access: Access
    most_open_samples: int = 1024


class Service:
    """What the paths share: the engine's thread, and the way of a request to it."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.engine = serving.engine
        self.tokenizer = serving.engine.tokenizer
        self.metrics = Metrics(serving.model_name)
        self.thread = EngineThread(serving.engine, self.metrics)
        self.created = int(time.time())
        self.grammars = JsonGrammars(
            self.tokenizer,
            serving.engine.level.model.vocabulary,
            sorted(serving.engine.eos_token_ids),
        )

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self.serving.model_name:
            raise ProblemError(
                404,
                f"there is no model of that name; this is {self.serving.model_name}",
                "model",
                "model_not_found",
            )

    async def encode(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        def of_all() -> list[list[int]]:
            return [self._encoded(prompt) for prompt in prompts]

        return await asyncio.to_thread(of_all)

    def _encoded(self, prompt: Prompt) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    async def answer(
        self, body: SamplingBody, prompts: list[list[int]], params: SamplingParams, form: Form
    ) -> Response:
        """Raises ProblemError for what does not fit, RequestError for what cannot be run."""
        self._check_size(prompts, params)
        make_grammar, schema = None, body.schema_to_follow
        if schema is not None:
            make_grammar = await asyncio.to_thread(self.grammars.of_schema, schema)
        job = Job(prompts, params.resolved(self.serving.defaults), make_grammar)
        try:
            await self.thread.submit(job)
        except BaseException:
            self.thread.close(job)
            raise
        usage = Usage(sum(map(len, prompts)))
        answer = Answer(form, self.serving.model_name, usage, body.has_usage_chunk)
        return AnswerResponse(self.thread, job, answer, is_stream=bool(body.stream))

    def _check_size(self, prompts: list[list[int]], params: SamplingParams) -> None:
        context = self.engine.max_context
        for prompt in prompts:
            new = params.max_tokens or 1
            if len(prompt) + new > context:
                raise refused(
                    f"the context has {context} tokens; the prompt has {len(prompt)} and asks for "
                    f"{new} new ones; shorten one of them",
                    code="context_length_exceeded",
                )
        samples, most = len(prompts) * params.n, self.serving.most_open_samples
        if samples > most:
            raise refused(f"{samples} samples at once; at most {most} are taken, ask for fewer")
        if self.thread.num_open_samples + samples > most:
            raise ProblemError(429, f"{most} samples are open already; try again later")


def make_app(serving: Serving) -> ASGIApp:
    service = Service(serving)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.thread.start()
        yield
        await service.thread.stop()

    app = FastAPI(
        title="SpecQD",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,  # its pages would load scripts from elsewhere
        redirect_slashes=False,
    )
    add_errors(app)
    add_models(app, service)
    add_texts(app, service)
    add_generation(app, service)
    return Guard(app, serving.access)


def add_generation(app: FastAPI, service: Service) -> None:
    tokenizer = service.tokenizer

    @app.post("/v1/completions")
    async def completions(body: CompletionBody) -> Response:
        service.check_model(body.model)
        params = body.params()
        prompts = await service.encode(body.prompts)
        echoes = []
        if body.echo:
            echoes = [
                written if isinstance(written, str) else tokenizer.decode(written)
                for written in body.prompts
            ]
        form = CompletionForm(
            tokenizer,
            has_logprobs=body.logprobs is not None,
            has_ids=bool(body.return_token_ids),
            prompts=prompts,
            echoes=echoes,
            samples_each=params.n,
        )
        return await service.answer(body, prompts, params, form)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatBody) -> Response:
        service.check_model(body.model)
        params = body.params()
        variables = body.template_variables()
        messages = [message.plain() for message in body.messages]
        prompt = await asyncio.to_thread(tokenizer.chat, messages, **variables)
        form = ChatForm(
            tokenizer,
            has_logprobs=bool(body.logprobs),
            has_ids=bool(body.return_token_ids),
            prompt=prompt,
        )
        return await service.answer(body, [prompt], params, form)


def add_models(app: FastAPI, service: Service) -> None:
    serving = service.serving
    described = {
        "id": serving.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "specqd",
        "max_model_len": service.engine.max_context,
    }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [described]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_model(name)
        return described

    @app.get("/health")
    async def health() -> Response:
        if service.thread.failure is not None:
            raise ProblemError(503, str(service.thread.failure))
        return Response()

    @app.get("/metrics")
    async def metrics() -> Response:
        counts = await service.thread.ask(lambda: Counts.of(service.engine))
        return Response(service.metrics.shown(counts), media_type=CONTENT_TYPE)


def add_texts(app: FastAPI, service: Service) -> None:
    tokenizer = service.tokenizer

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        service.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise refused("give a prompt or messages")
        if body.messages is not None:
            messages = [message.plain() for message in body.messages]
            ids = await asyncio.to_thread(
                tokenizer.chat, messages, add_generation_prompt=body.add_generation_prompt
            )
        else:
            ids = await asyncio.to_thread(
                tokenizer.encode, body.prompt or "", add_special_tokens=body.add_special_tokens
            )
        return {"count": len(ids), "max_model_len": service.engine.max_context, "tokens": ids}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        service.check_model(body.model)
        most = service.engine.level.model.vocabulary
        if any(not 0 <= token < most for token in body.tokens):
            raise refused(f"tokens: ids are from 0 to {most - 1}", "tokens")
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
        return {"prompt": text}


def add_errors(app: FastAPI) -> None:
    """Everything that goes wrong is told in one shape."""

    @app.exception_handler(ProblemError)
    async def on_problem(_: Request, problem: ProblemError) -> JSONResponse:
        return problem.response()

    @app.exception_handler(SpecqdError)
    async def on_specqd(_: Request, error: SpecqdError) -> JSONResponse:
        is_theirs = isinstance(error, RequestError | TokenizerError)
        return ProblemError(400 if is_theirs else 500, str(error)).response()

    @app.exception_handler(EngineFailedError)
    async def on_failure(_: Request, error: EngineFailedError) -> JSONResponse:
        return ProblemError(503, str(error)).response()

    @app.exception_handler(RequestValidationError)
    async def on_validation(_: Request, error: RequestValidationError) -> JSONResponse:
        return problem_in(error.errors()).response()

    @app.exception_handler(HTTPException)
    async def on_http(_: Request, error: HTTPException) -> JSONResponse:
        return ProblemError(error.status_code, str(error.detail)).response()

    @app.exception_handler(Exception)
    async def on_fault(_: Request, error: Exception) -> JSONResponse:
        return ProblemError(500, "the server failed at this request").response()


def problem_in(errors: Sequence[Any]) -> ProblemError:
    """The first thing that is wrong with a body, in one line that repeats none of its values."""
    first = errors[0]
    place = [str(part) for part in first["loc"][1:]]
    param = ".".join(place)[:_LONGEST_MESSAGE] or None
    if first["type"] == "json_invalid":
        return refused("the body is not JSON")
    if first["type"] == "extra_forbidden":
        return refused(f"{ascii(param)[1:-1]}: this field is not known; leave it out", param)
    return refused(f"{ascii(param)[1:-1] if param else 'body'}: {first['msg']}", param)
