"""One model of a server: whether it is loaded, and the requests that use it or wait for it.

Lives on the event loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Protocol

from specqd.server.model_metrics import LoadCounts
from specqd.server.service import Remains, Service


class Load(Protocol):
    """Loads a model, in any thread. Raises SpecqdError.

    remains: those of its last load. cache_bytes: the most that its KV cache may take.
    """

    def __call__(self, remains: Remains | None, cache_bytes: int | None) -> Service: ...


@dataclass(frozen=True, slots=True)
class Source:
    """A model that can be loaded, any number of times."""

    name: str
    load: Load
    weight_bytes: int = 0  # that the weights of its chain take in memory
    max_context: int = 0  # tokens; a small KV cache may lower it
    states_cache: bool = False  # whether its load states the size of its KV cache


class State(Enum):
    """ABSENT -> LOADING -> LOADED -> LEAVING -> ABSENT; a load that fails is ABSENT again.

    Requests use a model that is LOADED and wait for it in the other states. LEAVING lasts until the
    last of its users has ended.
    """

    ABSENT = "absent"
    LOADING = "loading"
    LOADED = "loaded"
    LEAVING = "leaving"


class ServedModel:
    """A model's state, which only the keeper changes, and the requests that use it or wait."""

    def __init__(self, source: Source, on_change: Callable[[], None]) -> None:
        self.source = source
        self.state = State.ABSENT
        self.service: Service | None = None
        self.remains: Remains | None = None  # of its last load
        self.used_at = 0.0
        self.loads = self.unloads = 0
        self.load_seconds = 0.0
        self.waiting: deque[asyncio.Future[Service]] = deque()
        self._users = 0
        self._on_change = on_change

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def is_used(self) -> bool:
        return self._users > 0

    @property
    def is_awaited(self) -> bool:
        return any(not each.done() for each in self.waiting)

    @property
    def known(self) -> Remains | None:
        """What its loads have shown; None before the first."""
        return self.service.remains if self.service else self.remains

    @property
    def max_context(self) -> int:
        """Tokens of the longest sequence; exact once it was loaded."""
        return self.known.max_context if self.known else self.source.max_context

    @property
    def counts(self) -> LoadCounts:
        is_loaded = self.service is not None
        return LoadCounts(self.name, is_loaded, self.loads, self.unloads, self.load_seconds)

    def use(self) -> None:
        self._users += 1

    def leave(self) -> None:
        """Ends one use, with the answer to its request."""
        self._users -= 1
        self.used_at = monotonic()
        self._on_change()

    def arrive(self, service: Service) -> None:
        """Gives the model to all who wait. Each uses it from now on."""
        self.state, self.service, self.used_at = State.LOADED, service, monotonic()
        while self.waiting:
            if not (future := self.waiting.popleft()).done():
                self.use()
                future.set_result(service)

    def fail(self, error: BaseException) -> None:
        """Raises the error in all who wait."""
        while self.waiting:
            if not (future := self.waiting.popleft()).done():
                future.set_exception(error)

    @contextmanager
    def kept(self) -> Iterator[Service | None]:
        """Keeps the model in memory, if it is loaded, without counting as a use of it."""
        self._users += 1
        try:
            yield self.service
        finally:
            self._users -= 1
            self._on_change()
