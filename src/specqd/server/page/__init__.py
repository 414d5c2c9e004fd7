"""The page at `/`: its files, the headers that keep it to itself, and what it asks of the server.

Knows what the page is told; what it does with that stands in its own files, beside this one.
"""

from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.resources import files

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from specqd import _native
from specqd._native import Level
from specqd.bench.bandwidth import MEGABYTE, bandwidth_at
from specqd.engine import Engine
from specqd.reports import chain_of
from specqd.sampling import Defaults
from specqd.server.engine_thread import EngineThread

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FILES = ("page.css", "page.js", "api.js", "answer.js", "meter.js", "icon.svg")
# Nothing from elsewhere, nothing inline, and no text that becomes markup or script.
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
    "Cache-Control": "no-cache",  # kept, and asked for anew by its ETag
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LARGEST_WORKING_SET = 1000 * MEGABYTE  # larger ones lie in no cache either


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
    """What the page shows before anything was asked, and how it asks."""

    model: str
    has_chat_template: bool
    max_context: int
    temperature: float  # where none is asked for
    chain: tuple[str, ...]  # the levels' names, outermost first: a token's depth counts them

    @classmethod
    def of(cls, engine: Engine, model: str, defaults: Defaults) -> "Facts":
        return cls(
            model,
            engine.tokenizer.has_chat_template,
            engine.max_context,
            defaults.effective_temperature,
            chain_of(engine.level),
        )


class Limits:
    """The bandwidth at the size of what each level reads; measured when first asked for, between
    two rounds, so that nothing else has the cores then."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._by_level: dict[str, float] | None = None

    def by_level(self) -> dict[str, float]:
        """GB/s by the level's name, without those for which memory is short. On the engine's
        thread."""
        if self._by_level is None:
            levels = [each for each in self._engine.level.levels if isinstance(each, Level)]
            self._by_level = {
                level.name: bandwidth_at(level.model.machine, size)
                for level in levels
                if _fits(size := min(level.model.bytes_per_forward, _LARGEST_WORKING_SET))
            }
        return self._by_level


def _fits(size: int) -> bool:
    available = _native.usable_memory()
    return size > 0 and (available < 0 or available >= 2 * size)


def add_page(app: FastAPI, engine: Engine, facts: Facts, thread: EngineThread) -> None:
    limits = Limits(engine)

    async def asset(request: Request) -> Response:
        return ASSETS[request.url.path].response(request)

    for path in ASSETS:
        app.add_route(path, asset)  # for HEAD, too

    @app.get("/page/facts")
    async def page_facts() -> JSONResponse:
        return JSONResponse(asdict(facts))

    @app.get("/page/bandwidth")
    async def page_bandwidth() -> JSONResponse:
        return JSONResponse({"gb_per_s": await thread.ask(limits.by_level)})
