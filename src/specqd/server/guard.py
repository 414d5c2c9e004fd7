"""Checks access before a request is handled: names, API keys, and the size and time of its body.

A web page can send requests to a local server with its own origin (Origin) or, by DNS rebinding,
with a foreign host name (Host). Both are rejected, except for origins in `Access.origins`.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specqd.server.page import ASSETS
from specqd.server.problems import ProblemError

CLIENT = "specqd.client"  # the key of the ASGI scope under which a request's API key is stored
# Time for a complete body. There is no minimum rate: a slow line can send a prompt in this time.
BODY_SECONDS = 60
# The first bytes of a body do not count towards the total, so long bodies cannot block short ones.
SHORT_BODY_BYTES = 1 << 16
# Paths that need no key. The page contains nothing secret, and asks its reader for the key.
_OPEN_PATHS = frozenset({"/health", *ASSETS})


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the server, and the limits for bodies.

    api_keys: a request needs one of them, unless the tuple is empty.
    host_names: allowed in Host, in addition to localhost and every IP address.
    origins: their pages may send requests and read answers. "*" allows all origins.
    """

    api_keys: tuple[str, ...] = ()
    host_names: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    most_body_bytes: int = 4 << 20
    most_bytes_in_all: int = 64 << 20  # of all bodies, each without its first SHORT_BODY_BYTES


class Guard:
    """An ASGI application that passes the requests which `access` allows to another one."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._bytes_in_all = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        body = bytearray()
        try:
            await self._pass(headers, body, scope, receive, send)
        finally:
            self._bytes_in_all -= _counted(body)

    async def _pass(
        self,
        headers: dict[str, str],
        body: bytearray,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Checks and passes a request. Fills `body`, whose bytes count until the answer is sent."""
        try:
            self._check_names(headers, scope["scheme"])
            scope[CLIENT] = self._client(headers, scope["path"])
            if scope["method"] in ("POST", "PUT", "PATCH"):
                await self._read(headers, body, receive)
                receive = _replay(bytes(body), receive)
        except ProblemError as problem:
            await problem.response(scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check_names(self, headers: dict[str, str], scheme: str) -> None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise ProblemError(
                403,
                "the Host header names another server; see --allow-host",
                code="host_refused",
            )
        origin = headers.get("origin")
        if origin is None or not self._access.origins.isdisjoint((origin, "*")):
            return
        if origin.lower() != f"{scheme}://{host}".lower():
            problem = "pages of another origin may not use this server; see --allow-origin"
            raise ProblemError(403, problem, code="origin_refused")

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name in self._access.host_names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True  # DNS rebinding needs a name

    def _client(self, headers: dict[str, str], path: str) -> str:
        """Returns the request's API key, which identifies the client, or "" if none is needed."""
        keys = self._access.api_keys
        if not keys or path in _OPEN_PATHS:
            return ""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key", "")]  # Anthropic's header
        given += [bearer] if scheme.lower() == "bearer" else []
        bits = [each.strip().encode("latin-1") for each in given]
        fits = (key for key in keys if any(hmac.compare_digest(b, key.encode()) for b in bits))
        if (fitting := next(fits, None)) is None:
            how = "send Authorization: Bearer KEY, or x-api-key: KEY"
            raise ProblemError(401, f"no valid API key; {how}", code="invalid_api_key")
        return fitting

    async def _read(self, headers: dict[str, str], body: bytearray, receive: Receive) -> None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ProblemError(415, "send the body as Content-Type: application/json")
        most = self._access.most_body_bytes
        problem = ProblemError(413, f"the body is larger than {most} bytes; send a shorter one")
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > most:
            raise problem
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in _parts(receive):
                    if len(body) + len(part) > most:
                        raise problem
                    self._add(part, body)
        except TimeoutError as error:
            late = f"the body was incomplete after {BODY_SECONDS} seconds; send it faster"
            raise ProblemError(408, late) from error

    def _add(self, part: bytes, body: bytearray) -> None:
        before = _counted(body)
        body += part
        self._bytes_in_all += _counted(body) - before
        if self._bytes_in_all > self._access.most_bytes_in_all:
            raise ProblemError(429, "long bodies of other requests use all memory; try again later")


def _counted(body: bytearray) -> int:
    return max(len(body) - SHORT_BODY_BYTES, 0)


async def _parts(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ProblemError(400, "the connection was closed before the body was complete")
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that gives the body, which was read already, then the next messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message
