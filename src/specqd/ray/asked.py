"""A request on its way from a front to a replica."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from specqd.server.guard import CLIENT


@dataclass(frozen=True, slots=True)
class Asked:
    """An HTTP request that was checked and read whole. pages: hashes of its prompt's pages."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    client: str  # the API key
    body: bytes
    pages: tuple[bytes, ...]

    @classmethod
    def of(cls, scope: Mapping[str, Any], body: bytes, pages: tuple[bytes, ...]) -> "Asked":
        headers = tuple((bytes(name), bytes(value)) for name, value in scope["headers"])
        query = scope.get("query_string", b"")
        return cls(scope["method"], scope["path"], query, headers, scope[CLIENT], body, pages)

    def scope(self) -> Scope:
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
