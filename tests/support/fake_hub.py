"""A local Hugging Face Hub for downloads. Knows nothing of the client."""

import hashlib
import json
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client."""

    method: str
    path: str
    range: str | None
    token: str | None


@dataclass(slots=True)
class FakeHub:
    """Serves directories as repositories. `main` and every commit are revisions."""

    repositories: dict[str, Path] = field(default_factory=dict)
    private: dict[str, str] = field(default_factory=dict)  # repository -> its token
    gated: set[str] = field(default_factory=set)
    cuts: dict[str, list[int]] = field(default_factory=dict)  # file -> bytes before each break
    requests: list[Request] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        hub = self

        class Handler(_Handler):
            served = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fetched(self) -> set[str]:
        """The names of the files whose content was requested."""
        paths = (r.path for r in self.requests if r.method == "GET" and "/resolve/" in r.path)
        return {path.split("/resolve/")[1].split("/", 1)[1] for path in paths}


def commit_of(repository: str) -> str:
    return hashlib.sha1(repository.encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    served: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.split("?")[0]
        token = self.headers.get("Authorization")
        self.served.requests.append(Request(self.command, path, self.headers.get("Range"), token))
        is_api = path.startswith("/api/models/")
        parts = path.removeprefix("/api/models").strip("/").split("/")
        owner, name, verb, revision = [*parts[:4], "", "", "", ""][:4]
        repository = f"{owner}/{name}"
        directory = self.served.repositories.get(repository)
        required = self.served.private.get(repository)
        if directory is None or (required is not None and token != f"Bearer {required}"):
            self._refuse(401 if token is None else 404, "RepoNotFound")
        elif repository in self.served.gated:
            self._refuse(403, "GatedRepo")
        elif revision not in ("main", commit_of(repository)):
            self._refuse(404, "RevisionNotFound")
        elif is_api:
            self._describe(repository, directory, is_tree=verb == "tree")
        else:
            self._send_file(repository, directory, "/".join(parts[4:]))

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _describe(self, repository: str, directory: Path, *, is_tree: bool) -> None:
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        names = [str(path.relative_to(directory)) for path in files]
        content: object = {
            "id": repository,
            "modelId": repository,
            "sha": commit_of(repository),
            "private": False,
            "gated": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [{"rfilename": name} for name in names],
        }
        if is_tree:
            content = [
                {"type": "file", "path": name, "size": path.stat().st_size, "oid": _tag(path)}
                for name, path in zip(names, files, strict=True)
            ]
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(self, repository: str, directory: Path, name: str) -> None:
        path = directory / name
        if not path.is_file():
            self._refuse(404, "EntryNotFound")
            return
        data, start = path.read_bytes(), 0
        asked = self.headers.get("Range")
        if asked is not None:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{_tag(path)}"')
        self.send_header("X-Repo-Commit", commit_of(repository))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if asked is not None:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        cuts = self.served.cuts.get(name)
        if cuts:
            self.wfile.write(data[start : start + cuts.pop(0)])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            self.wfile.write(data[start:])


def _tag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
