"""What a client hears when something cannot be done: OpenAI's JSON of an error, and its status."""

from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse


@dataclass  # not frozen: a traceback is put on it as it is raised
class ProblemError(Exception):
    """A request that is answered with an error. The message is one line: what, and what to do."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None

    def described(self) -> dict[str, Any]:
        kind = "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        elif self.status >= 500:
            kind = "server_error"
        named = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": named}

    def response(self) -> JSONResponse:
        headers = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        elif self.status == 429:
            headers["Retry-After"] = "1"
        return JSONResponse(self.described(), self.status, headers)


def refused(message: str, param: str | None = None, code: str | None = None) -> ProblemError:
    """A 400: the request itself is at fault."""
    return ProblemError(400, message, param, code)
