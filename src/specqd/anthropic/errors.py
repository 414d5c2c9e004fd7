"""Writes Anthropic's JSON of an error."""

from typing import Any

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def refusal(message: str, status: int) -> dict[str, Any]:
    """Returns the body of an answer whose HTTP status, 400 or above, is an error."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}
