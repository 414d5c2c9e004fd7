"""Prints one line for each request, without any text of requests and answers."""

from collections.abc import Callable
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

USAGE = "specqd.usage"  # key of a request's scope: the counts of tokens in its answer
_LONGEST_PATH = 100  # characters


class RequestLog:
    """Passes requests to an application, and prints a line at the end of each."""

    def __init__(self, app: ASGIApp, say: Callable[[str], None]) -> None:
        self._app = app
        self._say = say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = perf_counter(), "closed by the client"

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            self._say(f"{_asked(scope)} {status}, {perf_counter() - begun:.3f} s{_counts(scope)}")


def _asked(scope: Scope) -> str:
    return f"{scope['method']} {scope['path'][:_LONGEST_PATH]}"


def _counts(scope: Scope) -> str:
    """Returns the tokens of a request that the engine has run, as the end of a line."""
    if (usage := scope.get(USAGE)) is None:
        return ""
    cached = f" ({usage.cached_prompt_tokens} cached)" if usage.cached_prompt_tokens else ""
    return f", {usage.prompt_tokens} prompt tokens{cached}, {usage.completion_tokens} new"
