"""Serves the page at `/`: its files with security headers, and facts about the model."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from specqd.sampling import SamplingParams

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FILES = (
    "answer.js",
    "api.js",
    "branches.js",
    "conversation.js",
    "files.js",
    "icon.svg",
    "live.js",
    "markdown.js",
    "message.css",
    "message.js",
    "meter.js",
    "page.css",
    "page.js",
    "panels.css",
    "picker.js",
    "race.js",
    "room.js",
    "scheme.js",
    "shown.js",
    "storage.js",
    "store.js",
    "vendor/markdown-it.min.js",  # licences are in vendor/LICENSE.markdown-it
)
# Allows nothing from other origins, nothing inline, and no text that becomes markup or script.
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
    "Cache-Control": "no-cache",  # browsers may cache it, but must check its ETag
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page, read once."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, name: str) -> "Asset":
        body = files(__name__).joinpath(name).read_bytes()
        suffix = name[name.rindex(".") :]
        return cls(body, _TYPES[suffix], f'"{sha256(body).hexdigest()[:32]}"')

    def response(self, request: Request) -> Response:
        """Returns the file, or status 304 if the browser has it."""
        headers = {**_HEADERS, "ETag": self.etag}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


ASSETS = {"/": Asset.of("index.html")} | {f"/page/{name}": Asset.of(name) for name in _FILES}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The sampling of requests that set none."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float

    @classmethod
    def of(cls, params: SamplingParams) -> "SamplingDefaults":
        """From complete parameters."""
        return cls(**{each.name: getattr(params, each.name) for each in fields(cls)})


@dataclass(frozen=True, slots=True)
class Facts:
    """What the page shows about the model, and needs before the first request."""

    model: str
    has_chat_template: bool
    max_context: int  # tokens
    sampling: SamplingDefaults
    chain: tuple[str, ...]  # names of the levels, target first; a token's depth is an index of it
    bandwidth: Mapping[str, float]  # memory's GB/s by level name


def add_page(app: FastAPI, facts: Callable[[Request, str | None], Awaitable[Facts]]) -> None:
    """Adds the page's paths.

    facts: returns those of a model by name, for a request. None: the only model.
    """

    async def asset(request: Request) -> Response:
        return ASSETS[request.url.path].response(request)

    for path in ASSETS:
        app.add_route(path, asset)  # for GET and HEAD

    @app.get("/page/facts")
    async def page_facts(request: Request, model: str | None = None) -> JSONResponse:
        return JSONResponse(asdict(await facts(request, model)))
