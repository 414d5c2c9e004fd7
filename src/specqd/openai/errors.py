"""OpenAI's JSON of an error."""

from typing import Any

from specqd.errors import FieldError, SpecqdError, TooLongError

Json = dict[str, Any]


def refusal(message: str, kind: str, param: str | None = None, code: str | None = None) -> Json:
    """The body of an answer to a request that cannot be run."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def param_of(error: SpecqdError) -> str | None:
    """The field that is wrong, if it is known."""
    return error.field if isinstance(error, FieldError) else None


def code_of(error: SpecqdError) -> str | None:
    """OpenAI's error code, for the errors that clients handle by code."""
    return "context_length_exceeded" if isinstance(error, TooLongError) else None
