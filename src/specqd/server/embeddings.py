"""The path /v1/embeddings. Forwards of texts to embed run between the engine's rounds."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.responses import Response

from specqd._native import usable_memory
from specqd.llm.embedding import Embedder
from specqd.model.embedding import EmbeddingRun
from specqd.openai.answers import Usage
from specqd.openai.embeddings import EmbeddingRequest, embedding_answer, embedding_request
from specqd.server.request_log import USAGE
from specqd.server.service import Service
from specqd.server.streams import while_connected

if TYPE_CHECKING:
    from specqd.server.app import Front

PATH = "/v1/embeddings"


class CacheMemory:
    """Lets runs begin, in order, while the keys and values of all fit into the free memory."""

    def __init__(self) -> None:
        self._taken = 0  # bytes of the runs that have begun
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()

    @asynccontextmanager
    async def held(self, size: int) -> AsyncIterator[None]:
        async with self._turn:
            # What these runs have filled is counted twice: it is no longer free either.
            while self._taken and 0 <= usable_memory() < self._taken + size:
                self._freed.clear()
                await self._freed.wait()
            self._taken += size
        try:
            yield
        finally:
            self._taken -= size
            self._freed.set()


def add_embeddings(app: FastAPI, front: "Front") -> None:
    memory = CacheMemory()

    @app.post(PATH)
    async def embeddings(request: Request) -> Response:
        parsed = embedding_request(await front.json_of(request))
        service = await front.service(request, parsed.model)
        embedder = service.serving.embedder()
        dimensions = embedder.check_dimensions(parsed.dimensions)
        body_size = len(await request.body())
        texts = await service.in_turn(body_size, lambda: _encoded(embedder, parsed))
        run = await service.thread.ask(lambda: embedder.begin(texts))
        request.scope[USAGE] = Usage(run.num_tokens)
        await while_connected(request.receive, _finish(service, run, memory))
        if not run.is_done:
            return Response()  # which no one reads

        def answer() -> str:
            vectors = embedder.vectors(run, dimensions)
            name, is_base64 = service.serving.model_name, parsed.is_base64
            return json.dumps(embedding_answer(name, vectors, run.num_tokens, is_base64=is_base64))

        return Response(await asyncio.to_thread(answer), media_type="application/json")


def _encoded(embedder: Embedder, parsed: EmbeddingRequest) -> Sequence[Sequence[int]]:
    return [embedder.encode(each, parsed.prompt_name) for each in parsed.inputs]


async def _finish(service: Service, run: EmbeddingRun, memory: CacheMemory) -> None:
    """Runs all forwards."""
    async with memory.held(run.cache_bytes):
        while not run.is_done:
            await service.thread.forward(run.step)
