"""Receives HTTP requests, checks them, forwards them to a replica and reports if it fails."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from prometheus_client import generate_latest
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from specqd.anthropic import errors as anthropic
from specqd.openai.errors import refusal
from specqd.ray.forwarded import ForwardedRequest
from specqd.ray.routing import pages_of
from specqd.server.guard import CLIENT, Access, Guard
from specqd.server.metrics import CONTENT_TYPE
from specqd.server.model_metrics import Merged
from specqd.server.problems import ANTHROPIC, ProblemError

_PROBE_SECONDS = 5  # a replica must answer a probe within this time
_PROBES = frozenset({"/health", "/v1/models", "/metrics"})
_LOST = "the replica that was answering this request has ended; send the request again"


class Front:
    """The ingress deployment of Ray Serve."""

    def __init__(self, replicas: DeploymentHandle, access: Access) -> None:
        self._replicas = replicas
        self._access = access

    def __serve_build_asgi_app__(self) -> ASGIApp:
        forwarder = Starlette(routes=[Mount("/", Forwarder(self._replicas))])
        return Guard(forwarder, self._access)


class Forwarder:
    """Forwards each request to a replica, and sends the messages of its answer."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        self._replicas = replicas
        self._answers = replicas.options(method_name="answer", stream=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ProblemError(501, "only HTTP is supported; use no WebSocket")
        scope = {**scope, "path": scope["path"].removeprefix(scope.get("root_path", ""))}
        sent = _Sent(send)
        try:
            async with asyncio.timeout(_PROBE_SECONDS if scope["path"] in _PROBES else None):
                if scope["path"] == "/metrics":
                    await (await self._metrics())(scope, receive, sent)
                else:
                    await self._pass(scope, receive, sent)
        except TimeoutError:
            await sent.fail(ProblemError(503, "no replica answers; try again later"), scope)
        except (RayError, BackPressureError, DeploymentUnavailableError) as error:
            await sent.fail(_problem(error), scope)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        if scope["method"] in ("POST", "PUT", "PATCH"):
            body = (await receive())["body"]  # complete: the guard has read it
        pages = pages_of(_members(body), scope[CLIENT])
        answer = self._answers.remote(ForwardedRequest.of(scope, body, pages))
        try:
            async for messages in answer:
                for message in messages:
                    await send(message)
        finally:
            answer.cancel()  # has an effect only if the client has disconnected

    async def _metrics(self) -> Response:
        """Returns the metrics of all living replicas, each with its label."""
        pending = self._replicas.broadcast("families")
        results = await pending.results_async(timeout_s=_PROBE_SECONDS, return_exceptions=True)
        living = [each for each in results if not isinstance(each, BaseException)]
        return Response(generate_latest(Merged(living)), media_type=CONTENT_TYPE)


def _members(body: bytes) -> Mapping[str, Any]:
    """Returns the members of a JSON object, or none for a body that the replica will reject."""
    try:
        value = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _problem(error: Exception) -> ProblemError:
    if isinstance(error, BackPressureError):
        return ProblemError(429, "too many requests are waiting; try again later")
    if isinstance(error, RayActorError):
        return ProblemError(503, _LOST)
    if isinstance(error, DeploymentUnavailableError):
        return ProblemError(503, "the model cannot be loaded; the replicas' logs say why")
    return ProblemError(500, "the replica failed on this request; its log says why")


class _Sent:
    """Wraps `send`, and remembers how much of the answer was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False
        self._has_ended = False
        self._is_stream = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._has_begun = True
            kinds = [value for name, value in message["headers"] if name == b"content-type"]
            self._is_stream = any(kind.startswith(b"text/event-stream") for kind in kinds)
        else:
            self._has_ended = not message.get("more_body", False)
        await self._send(message)

    async def fail(self, problem: ProblemError, scope: Scope) -> None:
        """Reports the problem to the client: by a status, or by the last event of a stream."""
        if self._has_ended:
            return
        if not self._has_begun:
            await problem.response(scope["path"])(scope, _nothing, self._send)
            return
        if not self._is_stream:
            raise RuntimeError(problem.message)  # closes the connection: the body is incomplete
        event = _event(problem, scope["path"])
        await self._send({"type": "http.response.body", "body": event, "more_body": False})


def _event(problem: ProblemError, path: str) -> bytes:
    if path.startswith(ANTHROPIC):
        name, described = "event: error\n", anthropic.refusal(problem.message, problem.status)
    elif path == "/v1/responses":
        name = "event: error\n"
        described = {"type": "error", "code": "server_error", "message": problem.message}
    else:
        name, described = "", refusal(problem.message, "server_error")
    return f"{name}data: {json.dumps(described)}\n\n".encode()


async def _nothing() -> Any:
    await asyncio.Future()
