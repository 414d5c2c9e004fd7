"""Errors as clients read them: OpenAI's JSON of an error, and an HTTP status."""

import logging
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse

from specqd.anthropic import errors as anthropic
from specqd.engine.thread import StoppedError
from specqd.errors import ChatTemplateError, RequestError, SpecqdError, TokenizerError
from specqd.openai.errors import code_of, param_of, refusal

ANTHROPIC = "/v1/messages"  # its paths begin so
_LOG = logging.getLogger("specqd.server")


@dataclass  # not frozen: a traceback is put on it as it is raised
class ProblemError(Exception):
    """A request is answered with an error. The message is one line: cause and remedy."""

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

    def response(self, path: str) -> JSONResponse:
        """The answer to a request to this path, in the form of its API."""
        headers = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        elif self.status == 429:
            headers["Retry-After"] = "1"
        described = self.described()
        if path.startswith(ANTHROPIC):
            described = anthropic.refusal(self.message, self.status)
        return JSONResponse(described, self.status, headers)


def refused(message: str, param: str | None = None, code: str | None = None) -> ProblemError:
    """Status 400: the request is wrong."""
    return ProblemError(400, message, param, code)


def problem_of(error: SpecqdError) -> ProblemError:
    """Status 400 for the client's errors, 500 or 503 for ours. Our files' names go to the log."""
    if isinstance(error, StoppedError):
        return ProblemError(503, str(error))
    if isinstance(error, ChatTemplateError):
        _LOG.warning("%s: the chat template failed; the client was told the cause", error.origin)
        return refused(error.problem)
    if isinstance(error, RequestError | TokenizerError):
        return refused(str(error), param_of(error), code_of(error))
    _LOG.error("%s", error)
    return ProblemError(500, "the server cannot answer this request; its log says why")
