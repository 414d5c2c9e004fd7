"""The request of one call; the calling threads run its rounds in turns. Knows no texts."""

from collections.abc import Callable

from specqd.engine.engine import Engine
from specqd.engine.generation import GenerationRequest
from specqd.engine.reports import Stats
from specqd.engine.turns import Turns


class Call:
    """A request in the engine. End it by `cancel` or `leave`, also after an error.

    Raises RequestError for a request that cannot be run.
    """

    def __init__(self, engine: Engine, turns: Turns, request: GenerationRequest) -> None:
        self._engine = engine
        self._turns = turns
        with turns.alone():
            self._before = Stats.of(engine)
            self.generations = engine.submit(request)

    def run(self, is_done: Callable[[], bool]) -> None:
        """Runs rounds for all callers, or waits for those of others, until `is_done`."""
        self._turns.run(self._step, is_done)

    def cancel(self) -> Stats:
        """Ends the samples that have not ended; returns the engine's work since the call began."""
        with self._turns.alone():
            return self._end()

    def leave(self, then: Callable[[Stats], None]) -> None:
        """Does the same without waiting, and passes the work to `then`: now, or later on another
        thread."""
        self._turns.leave(lambda: then(self._end()))

    def _step(self) -> None:
        """A round that raises ends all requests: some of them may be half done."""
        try:
            self._engine.step()
        except BaseException as error:
            self._engine.fail(error)
            raise

    def _end(self) -> Stats:
        for generation in self.generations:
            self._engine.cancel(generation)
        return Stats.of(self._engine).since(self._before)
