"""Writes OpenAI's JSON of an error."""

from typing import Any

from specqd.errors import FieldError, SpecqdError, TooLongError

Json = dict[str, Any]


def refusal(message: str, kind: str, param: str | None = None, code: str | None = None) -> Json:
    """Returns the body of the answer to a request that cannot be run."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def param_of(error: SpecqdError) -> str | None:
    """Returns the name of the wrong field, or None if it is not known."""
    return error.field if isinstance(error, FieldError) else None


def code_of(error: SpecqdError) -> str | None:
    """Returns OpenAI's error code if clients handle this error by its code, else None."""
    return "context_length_exceeded" if isinstance(error, TooLongError) else None
