"""An HTTP request as a front sends it to a replica."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from specqd.server.guard import CLIENT


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """An HTTP request that was checked and completely read."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    client: str  # the API key
    body: bytes
    pages: tuple[bytes, ...]  # hashes of the pages of its prompt, from `routing`

    @classmethod
    def of(
        cls, scope: Mapping[str, Any], body: bytes, pages: tuple[bytes, ...]
    ) -> "ForwardedRequest":
        """Takes an ASGI scope apart."""
        headers = tuple((bytes(name), bytes(value)) for name, value in scope["headers"])
        query = scope.get("query_string", b"")
        return cls(scope["method"], scope["path"], query, headers, scope[CLIENT], body, pages)

    def scope(self) -> Scope:
        """Returns the ASGI scope for the replica's application."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": list(self.headers),
            "client": None,
            "server": None,
            CLIENT: self.client,
        }
