"""Sends answers, whole or as server-sent events, and cancels jobs of disconnected clients."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from specqd.engine.thread import EngineThread, Job
from specqd.engine.updates import Update
from specqd.errors import SpecqdError
from specqd.openai.answers import Event, Reply
from specqd.server.problems import problem_of
from specqd.server.request_log import USAGE

T = TypeVar("T")


class AnswerResponse(Response):
    """Sends the answer to a submitted job. Closes the job afterwards, also on disconnection."""

    def __init__(self, thread: EngineThread, job: Job, answer: Reply, *, is_stream: bool) -> None:
        self._thread = thread
        self._job = job
        self._answer = answer
        self._is_stream = is_stream
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[USAGE] = self._answer.usage
        sending = self._send_events(send) if self._is_stream else self._send(scope, receive, send)
        try:
            await while_connected(receive, sending)
        finally:
            self._thread.close(self._job)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            samples = [update async for update in self._updates()]  # one per sample
            samples.sort(key=lambda update: update.sample)
            response = JSONResponse(self._answer.whole(samples))
        except SpecqdError as error:
            response = problem_of(error).response(scope["path"])
        await response(scope, receive, send)

    async def _send_events(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),  # proxies must not buffer events
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for event in self._events():
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        answer = self._answer
        try:
            for event in answer.opening(self._job.request.num_samples):
                yield written(event)
            async for update in self._updates():
                for event in answer.events_of(update):
                    yield written(event)
            for event in answer.ending():
                yield written(event)
        except SpecqdError as error:
            for event in answer.failure(problem_of(error).described()):
                yield written(event)

    async def _updates(self) -> AsyncIterator[Update]:
        usage = self._answer.usage
        while not self._job.is_over:
            for update in await self._job.updates():
                usage.completion_tokens += len(update.tokens)
                usage.cached_prompt_tokens = self._job.cached_prompt_tokens
                yield update


def written(event: Event) -> bytes:
    """Returns the bytes of an event in a stream."""
    text = event.content
    if not isinstance(text, str):
        text = json.dumps(text, ensure_ascii=False, separators=(",", ":"))
    name = "" if event.name is None else f"event: {event.name}\n"
    return f"{name}data: {text}\n\n".encode()


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Returns the result of `work`, or cancels it and returns None if the client disconnects."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
