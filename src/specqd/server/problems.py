"""Turns errors into answers: an HTTP status, and OpenAI's or Anthropic's JSON of an error."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse

from specqd.anthropic import errors as anthropic
from specqd.engine.thread import StoppedError
from specqd.errors import ChatTemplateError, RequestError, SpecqdError, TokenizerError
from specqd.openai.errors import code_of, param_of, refusal

ANTHROPIC = "/v1/messages"  # Anthropic's paths begin like this
_LOG = logging.getLogger("specqd.server")


@dataclass  # not frozen: raising it sets its traceback
class ProblemError(Exception):
    """An error that answers a request. The message is one line: the cause and what to do."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None

    def described(self) -> dict[str, Any]:
        """Returns OpenAI's JSON."""
        kind = "invalid_request_error"
        if self.status == 429:
            kind = "rate_limit_error"
        elif self.status >= 500:
            kind = "server_error"
        return refusal(self.message, kind, self.param, self.code)

    def response(self, path: str) -> JSONResponse:
        """Returns the answer to a request to `path`, in the JSON of its API."""
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
    """Returns a problem with status 400: the request is wrong."""
    return ProblemError(400, message, param, code)


def no_model(name: str | None, known: Iterable[str]) -> ProblemError:
    """Returns the problem of a request that names none of the server's models."""
    names = f"this server has {', '.join(known)}"
    if name is None:
        return refused(f"name the model; {names}", "model")
    problem = f"there is no model of that name; {names}"
    return ProblemError(404, problem, "model", "model_not_found")


def problem_of(error: SpecqdError) -> ProblemError:
    """Returns status 400 for the client's errors, and 500 or 503 for the server's.

    Names of the server's files go only to the log.
    """
    if isinstance(error, StoppedError):
        return ProblemError(503, str(error))
    if isinstance(error, ChatTemplateError):
        _LOG.warning("%s: the chat template failed; the client got the cause", error.origin)
        return refused(error.problem)
    if isinstance(error, RequestError | TokenizerError):
        return refused(str(error), param_of(error), code_of(error))
    _LOG.error("%s", error)
    return ProblemError(500, "the server cannot answer this request; its log says why")
