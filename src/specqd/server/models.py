"""The models of a server, as its paths see them: by name, and loaded for as long as they are used.

Knows nothing of HTTP.
"""

import asyncio
from collections.abc import Sequence

from prometheus_client.core import Metric

from specqd.engine.thread import StoppedError
from specqd.server.keeper import Keeper, Say
from specqd.server.model_metrics import load_families
from specqd.server.problems import no_model
from specqd.server.served_model import ServedModel, Source, State
from specqd.server.service import Remains, Service


class Models:
    """All models of a server.

    memory: the most bytes that the weights and KV caches of loaded models take together; None: only
        the machine limits them. Of several models, each has at most its share of half of it for its
        KV cache.
    keep_alive_s: seconds without a request after which a model is unloaded; None: never.
    say: prints a line for each load and unload.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        memory: int | None = None,
        keep_alive_s: float | None = None,
        say: Say = lambda line: None,
    ) -> None:
        self._keeper = Keeper(sources, memory, keep_alive_s, say)
        self._keeping: asyncio.Task[None] | None = None
        self._failure: StoppedError | None = None

    @classmethod
    def of(cls, service: Service) -> "Models":
        """One model that is loaded already, and stays so."""

        def load(remains: Remains | None, cache_bytes: int | None) -> Service:
            return service

        models = cls([Source(service.serving.model_name, load)])
        models.load_all()
        return models

    def load_all(self) -> None:
        """Loads all models, before the event loop runs."""
        for model in self.all:
            self._keeper.load_now(model)

    @property
    def all(self) -> list[ServedModel]:
        return list(self._keeper.models.values())

    def named(self, name: str | None) -> ServedModel:
        """Returns the model of that name, or the only one for None. Raises ProblemError."""
        by_name = self._keeper.models
        if name is None and len(by_name) == 1:
            [name] = by_name
        if name is None or name not in by_name:
            raise no_model(name, by_name)
        return by_name[name]

    def take_loaded(self, model: ServedModel) -> Service | None:
        """Uses a model, as `take` does, if that needs no wait; else returns None."""
        if model.state is not State.LOADED:
            return None
        model.use()
        return model.service

    async def take(self, model: ServedModel) -> Service:
        """Waits until the model is loaded, and uses it. The caller must call its `leave` then.

        Raises StoppedError if the server ends, and what the load raises.
        """
        if (service := self.take_loaded(model)) is not None:
            return service
        if self.failure is not None:
            raise self.failure
        future: asyncio.Future[Service] = asyncio.get_running_loop().create_future()
        model.waiting.append(future)
        self._keeper.wish(model)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                model.leave()  # it was loaded in the same moment
            raise

    async def families(self) -> list[list[Metric]]:
        """Returns the metrics of the models that are or were loaded, and of loads."""
        found = []
        for model in self.all:
            with model.kept() as service:
                if service is not None:
                    found.append(service.metrics.families(await service.counts()))
                elif model.remains is not None:
                    found.append(model.remains.metrics.families())
        return [*found, load_families([each.counts for each in self.all])]

    # --- For the loop of the server -------------------------------------------------------------

    def start(self) -> None:
        """Call it within the event loop of the requests."""
        for service in self._services():
            service.thread.start()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        await self._keeper.run()
        self._failure = self.failure or StoppedError("the server loads no models any more")
        self._fail_waiting(self._failure)

    def check(self) -> None:
        """Raises StoppedError if no more requests are served."""
        if self.failure is not None:
            raise self.failure
        for service in self._services():
            service.thread.check()

    @property
    def failure(self) -> StoppedError | None:
        """Why no more requests are served; None: they are."""
        failures = (each.thread.failure for each in self._services())
        return next(filter(None, failures), self._failure)

    @property
    def fault(self) -> str | None:
        """Why an engine, or the keeper, is no longer used."""
        faults = (each.thread.fault for each in self._services())
        return next(filter(None, faults), self._keeper.fault)

    @property
    def num_open_samples(self) -> int:
        return sum(each.thread.num_open_samples for each in self._services())

    def give_up(self, why: str) -> None:
        """Fails all requests, and refuses new ones."""
        self._failure = StoppedError(why)
        self._fail_waiting(self._failure)
        for service in self._services():
            service.thread.give_up(why)

    async def stop(self) -> None:
        """Stops loading, and the engines with their unfinished samples, and frees all models."""
        if self._keeping is not None:
            self._keeper.stop()
            await self._keeping
        for service in self._services():
            await service.close()

    def _fail_waiting(self, error: StoppedError) -> None:
        for model in self.all:
            model.fail(error)

    def _services(self) -> list[Service]:
        return [each.service for each in self.all if each.service is not None]
