"""What clients read where a request is refused: OpenAI's JSON of an error."""

from typing import Any

from specqd.errors import FieldError, SpecqdError, TooLongError

Json = dict[str, Any]


def refusal(message: str, kind: str, param: str | None = None, code: str | None = None) -> Json:
    """What answers a request that cannot be run."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def param_of(error: SpecqdError) -> str | None:
    """The field that an error is about, if it is known."""
    return error.field if isinstance(error, FieldError) else None


def code_of(error: SpecqdError) -> str | None:
    """OpenAI's word for what is wrong, where clients look for one."""
    return "context_length_exceeded" if isinstance(error, TooLongError) else None
