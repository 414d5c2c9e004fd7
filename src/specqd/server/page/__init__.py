"""The page at `/`: its files, their security headers, and the facts that it asks for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FILES = (
    "answer.js",
    "api.js",
    "conversation.js",
    "icon.svg",
    "live.js",
    "markdown.js",
    "meter.js",
    "page.css",
    "page.js",
    "panels.css",
    "race.js",
    "scheme.js",
    "shown.js",
    "store.js",
    "vendor/markdown-it.min.js",  # its licences: vendor/LICENSE.markdown-it
)
# Nothing from other origins, nothing inline, no text that becomes markup or script.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Cache-Control": "no-cache",  # cached, and checked again by its ETag
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, name: str) -> "Asset":
        body = files(__name__).joinpath(name).read_bytes()
        suffix = name[name.rindex(".") :]
        return cls(body, _TYPES[suffix], f'"{sha256(body).hexdigest()[:32]}"')

    def response(self, request: Request) -> Response:
        headers = {**_HEADERS, "ETag": self.etag}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


ASSETS = {"/": Asset.of("index.html")} | {f"/page/{name}": Asset.of(name) for name in _FILES}


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that the page shows and uses before the first request."""

    model: str
    has_chat_template: bool
    max_context: int
    temperature: float  # where a request sets none
    chain: tuple[str, ...]  # the levels' names, outermost first: a token's depth counts them
    bandwidth: Mapping[str, float]  # GB/s of memory, by level


def add_page(app: FastAPI, facts: Facts) -> None:
    async def asset(request: Request) -> Response:
        return ASSETS[request.url.path].response(request)

    for path in ASSETS:
        app.add_route(path, asset)  # for HEAD, too

    @app.get("/page/facts")
    async def page_facts() -> JSONResponse:
        return JSONResponse(asdict(facts))
