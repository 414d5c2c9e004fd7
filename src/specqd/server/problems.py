"""What a client hears when something cannot be done: OpenAI's JSON of an error, and its status."""

from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse

from specqd.errors import RequestError, SpecqdError, TokenizerError
from specqd.openai_answers import param_of, refusal


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
        return refusal(self.message, kind, self.param, self.code)

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


def problem_of(error: SpecqdError) -> ProblemError:
    """What is the client's fault is a 400; else it is ours."""
    is_theirs = isinstance(error, RequestError | TokenizerError)
    return ProblemError(400 if is_theirs else 500, str(error), param_of(error))
