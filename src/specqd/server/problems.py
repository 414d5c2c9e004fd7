"""What a client hears when something cannot be done: OpenAI's JSON of an error, and its status."""

import logging
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse

from specqd.errors import ChatTemplateError, RequestError, SpecqdError, TokenizerError
from specqd.openai.errors import code_of, param_of, refusal
from specqd.server.engine_thread import StoppedError

_LOG = logging.getLogger("specqd.server")


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


def problem_of(error: SpecqdError | StoppedError) -> ProblemError:
    """What is the client's fault is a 400; else it is ours. Names of our files go to the log."""
    if isinstance(error, StoppedError):
        return ProblemError(503, str(error))
    if isinstance(error, ChatTemplateError):
        _LOG.warning(
            "%s: the chat template failed at a request, whose client knows how", error.origin
        )
        return refused(error.problem)
    if isinstance(error, RequestError | TokenizerError):
        return refused(str(error), param_of(error), code_of(error))
    _LOG.error("%s", error)
    return ProblemError(500, "the server cannot answer this request; its log says why")
