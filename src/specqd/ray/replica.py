"""Runs the server's application as a replica in a process of Ray Serve, without sockets."""

import asyncio
import os
from collections.abc import AsyncGenerator
from itertools import chain

from prometheus_client.core import Metric
from ray import serve
from starlette.types import Message

from specqd.llm import LLM
from specqd.ray.cores import take_cores
from specqd.ray.forwarded import ForwardedRequest
from specqd.ray.metrics import labelled
from specqd.ray.options import Options
from specqd.server.app import make_paths
from specqd.server.models import Models
from specqd.server.opening import open_service
from specqd.server.service import Service


class Replica:
    """The deployment of Ray Serve that holds a model. It answers as `specqd serve` does."""

    async def __init__(  # type: ignore[misc] # Ray Serve awaits it, on the loop of the requests
        self, options: Options, model: str | None, draft: tuple[str, ...]
    ) -> None:
        context = serve.get_replica_context()
        self._name = context.replica_tag
        if options.pin:
            take_cores(options.cores, context.rank.local_rank)
        self._models = Models.of(await asyncio.to_thread(_open, options, model, draft))
        self._app = make_paths(self._models, is_lenient=options.lenient)
        self._models.start()

    async def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        """Yields the ASGI messages of the answer, as many at once as are available."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        given = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Message:
            if given:
                return given.pop()
            return await asyncio.Future()  # when a client disconnects, the generator is cancelled

        async def answer() -> None:
            try:
                await self._app(request.scope(), receive, messages.put)
            finally:
                messages.put_nowait(None)

        answering = asyncio.create_task(answer())
        try:
            while batch := await _together(messages):
                yield batch
            await answering
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    async def families(self) -> list[Metric]:
        """Returns this replica's metrics, labelled with its name."""
        families = await self._models.families()
        return labelled(chain.from_iterable(families), self._name)

    async def process(self) -> tuple[str, int]:
        """Returns the replica's name and process id, for monitoring and tests."""
        return self._name, os.getpid()

    async def check_health(self) -> None:
        """Raises an error if the engine has failed. Ray Serve then restarts the replica."""
        self._models.check()

    async def __del__(self) -> None:
        """Stops the engine. Ray Serve calls this after the open requests have ended."""
        if hasattr(self, "_models"):
            await self._models.stop()


def _open(options: Options, model: str | None, draft: tuple[str, ...]) -> Service:
    llm = LLM(
        model,
        draft or "auto",
        options.threads,
        options.isa,
        cache_positions=options.cache_positions,
        context=options.context,
        small=options.small,
    )
    return open_service(
        llm,
        max_batch=options.max_batch,
        name=options.served_model_name,
    )


async def _together(messages: asyncio.Queue[Message | None]) -> list[Message]:
    """Returns all available messages, at least one, or none at the end."""
    batch: list[Message] = []
    message = await messages.get()
    while message is not None:
        batch.append(message)
        if messages.empty():
            return batch
        message = messages.get_nowait()
    if batch:
        messages.put_nowait(None)  # for the next call
    return batch
