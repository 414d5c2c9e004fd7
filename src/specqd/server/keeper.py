"""Decides which models are loaded. One task, one change at a time.

A model is loaded when requests wait for it, and unloaded when its memory is needed or nobody uses
it. Knows nothing of HTTP.
"""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

from specqd import _native
from specqd.engine.thread import StoppedError
from specqd.errors import MachineError, ShortMemoryError
from specqd.server.problems import ProblemError
from specqd.server.served_model import ServedModel, Source, State
from specqd.server.service import Service

_LOG = logging.getLogger("specqd.server")
Say = Callable[[str], object]


def _release_memory() -> None:
    """Returns the memory of a model that nobody references any more to the system."""
    gc.collect()
    _native.release_free_memory()


class Keeper:
    """Changes what is loaded; `Models` describes the limits. Lives on the event loop."""

    def __init__(
        self, sources: Sequence[Source], memory: int | None, keep_alive_s: float | None, say: Say
    ) -> None:
        self.models = {each.name: ServedModel(each, self.wake) for each in sources}
        self.fault: str | None = None  # why it has ended
        self._memory = memory
        self._keep_alive_s = keep_alive_s
        self._say = say
        self._wishes: deque[ServedModel] = deque()
        self._wakes = asyncio.Event()
        self._is_stopping = False

    def load_now(self, model: ServedModel) -> None:
        """Loads a model before the event loop runs."""
        model.arrive(model.source.load(None, self._cache_bytes(model)))
        model.loads = 1

    def wish(self, model: ServedModel) -> None:
        """Asks for a model that requests wait for."""
        if model not in self._wishes:
            self._wishes.append(model)
        self.wake()

    def wake(self) -> None:
        """Looks again at what has changed."""
        self._wakes.set()

    def stop(self) -> None:
        """Ends `run` after its current change."""
        self._is_stopping = True
        self.wake()

    async def run(self) -> None:
        """Loads and unloads until `stop`. Never raises an Exception."""
        try:
            while not self._is_stopping:
                await self._change()
        except StoppedError:  # an engine has failed, or `stop` was called
            pass
        except Exception as error:
            _LOG.exception("loading and unloading of models failed")
            self.fault = f"{type(error).__name__}: {error}"

    async def _change(self) -> None:
        """Makes the next change, or waits until there may be one."""
        self._wakes.clear()
        if self._wishes:
            await self._fulfil(self._wishes.popleft())
        elif (idle := self._expired()) is not None:
            await self._unload(idle)
        elif not self._is_stopping:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakes.wait(), self._patience())

    async def _fulfil(self, model: ServedModel) -> None:
        """Loads a model for the requests that wait for it; fails them if that is impossible."""
        if not model.is_awaited:  # its clients have left
            return
        model.state = State.LOADING
        try:
            service = await self._load(model)
        except asyncio.CancelledError:
            raise
        except (MachineError, MemoryError) as error:
            _LOG.error("%s: %s", model.name, error or "out of memory")
            problem = f"{model.name} does not fit into the memory that is left; ask for another one"
            model.fail(ProblemError(503, problem, "model", "model_does_not_fit"))
        except BaseException as error:  # also panics of libraries
            model.fail(error if isinstance(error, Exception) else RuntimeError(str(error)))
        else:
            service.thread.start()
            model.arrive(service)
            await self._make_room(model)  # its KV cache may be larger than was known
            return
        model.state = State.ABSENT

    async def _load(self, model: ServedModel) -> Service:
        """Loads a model in a thread, after unloading others until it fits."""
        await self._make_room(model)
        while True:
            begun = monotonic()
            try:
                service = await asyncio.to_thread(
                    model.source.load, model.remains, self._cache_bytes(model)
                )
            except ShortMemoryError:  # other programs have taken memory
                if (other := self._least_used(model)) is None:
                    raise
                await self._unload(other)
                continue
            seconds = monotonic() - begun
            model.loads += 1
            model.load_seconds += seconds
            self._say(f"loaded {model.name} in {seconds:.2f} s")
            return service

    async def _make_room(self, model: ServedModel) -> None:
        """Unloads others until the model fits together with those that are left."""
        while not self._has_room(model) and (other := self._least_used(model)) is not None:
            await self._unload(other)

    async def _unload(self, model: ServedModel) -> None:
        """Unloads a model after the last of its users. Requests that come meanwhile wait for its
        next load."""
        model.state = State.LEAVING
        service = model.service
        assert service is not None
        while model.is_used and not self._is_stopping:
            self._wakes.clear()
            await self._wakes.wait()
        if model.is_used:
            raise StoppedError("the server is shutting down")
        model.service, model.remains = None, service.remains
        try:
            service.metrics.end(await service.counts())
        except StoppedError:
            model.service = service  # its engine has failed, and ends the server
            raise
        await service.close()
        del service
        await asyncio.to_thread(_release_memory)
        model.state = State.ABSENT
        model.unloads += 1
        self._say(f"unloaded {model.name}")

    def _least_used(self, new: ServedModel) -> ServedModel | None:
        """Returns another loaded model, the one whose last use is longest ago. If all are in use,
        one of them is unloaded when its users have ended, and gets no new ones until then."""
        loaded = [
            each for each in self.models.values() if each.state is State.LOADED and each is not new
        ]
        return min(loaded, key=lambda each: (each.is_used, each.used_at), default=None)

    def _has_room(self, model: ServedModel) -> bool:
        loaded = [each for each in self.models.values() if each.service is not None]
        taken = sum(map(self._bytes_of, {model, *loaded}))
        return self._memory is None or taken <= self._memory

    def _bytes_of(self, model: ServedModel) -> int:
        """The most bytes that a model takes; an estimate before its first load."""
        cache = model.known.cache_bytes if model.known else self._cache_bytes(model) or 0
        return model.source.weight_bytes + cache

    def _cache_bytes(self, model: ServedModel) -> int | None:
        """The most bytes for the model's KV cache: half of what its weights leave, and of several
        models its share of half of the memory."""
        if self._memory is None or model.source.states_cache:
            return None
        share = self._memory // len(self.models)
        return max(0, min(share, self._memory - model.source.weight_bytes)) // 2

    def _expired(self) -> ServedModel | None:
        """Returns a model that nobody has used for as long as models are kept."""
        patience = self._patience()
        return self._idle()[0] if patience is not None and patience <= 0 else None

    def _patience(self) -> float | None:
        """Seconds until the next model expires; None: no model will before something changes."""
        idle = self._idle()
        if self._keep_alive_s is None or not idle:
            return None
        return max(0.0, idle[0].used_at + self._keep_alive_s - monotonic())

    def _idle(self) -> list[ServedModel]:
        """Returns the loaded models that nobody uses, the longest unused one first."""
        loaded = (each for each in self.models.values() if each.state is State.LOADED)
        return sorted((each for each in loaded if not each.is_used), key=lambda each: each.used_at)
