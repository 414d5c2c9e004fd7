"""OpenAI's client for a running server, and parts of requests that several tests use."""

from typing import Any

import pytest

from support.served import Served

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
# Random models would write white space without end where a schema allows it.
NO_WHITE_SPACE = {str(ord(space)): -100.0 for space in "\n\t\r "}


def client_of(served: Served) -> Any:
    openai = pytest.importorskip("openai", reason="needs OpenAI's client")
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0)


def function(name: str, **members: Any) -> dict[str, Any]:
    """Returns a tool."""
    return {"type": "function", "function": {"name": name, **members}}


def chosen(name: str) -> dict[str, Any]:
    """Returns a `tool_choice` of one function, which is also an entry of `allowed`."""
    return function(name)


def allowed(mode: object, *tools: Any) -> dict[str, Any]:
    """Returns a `tool_choice` of some functions."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def closed(**properties: Any) -> dict[str, Any]:
    """Returns the schema of an object with exactly these properties."""
    required = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **required}


def schema_format(**named: Any) -> dict[str, Any]:
    """Returns a `response_format` with these members of its `json_schema`."""
    return {"response_format": {"type": "json_schema", "json_schema": named}}
