"""One prompt completed piece by piece."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from specqd.engine.engine import Engine
from specqd.engine.generation import Generation, GenerationRequest
from specqd.engine.reports import Stats
from specqd.llm.results import Result
from specqd.sampling import SamplingParams

if TYPE_CHECKING:
    from specqd.llm.llm import LLM


class Stream:
    """Iterates over pieces of text as they become certain; sets `result` at the end.

    Leaving the loop early cancels the request; `stop()` ends it and keeps the text so far. While
    other threads generate, a loop that is left sets `result` after their current round.
    """

    def __init__(self, llm: "LLM", prompt: list[int], params: SamplingParams) -> None:
        self._llm = llm
        self._prompt = prompt
        self._params = replace(params, n=1)
        self._is_stopped = False
        self.result: Result | None = None

    def stop(self) -> None:
        """Ends the text after the current step. A signal handler or any thread may call it."""
        self._is_stopped = True

    def __iter__(self) -> Iterator[str]:
        llm, engine, turns = self._llm, self._llm.engine, self._llm.turns
        with turns.alone():
            before = Stats.of(engine)
            [generation] = engine.submit(GenerationRequest([self._prompt], self._params))

        def end() -> None:
            engine.cancel(generation)
            stats = Stats.of(engine).since(before)
            self.result = llm.result_of(self._prompt, [generation], stats)

        is_left = False
        try:
            yield from self._pieces(engine, generation)
        except GeneratorExit:
            is_left = True
            raise
        finally:
            if is_left:  # maybe by the garbage collector, which must not wait
                turns.leave(end)
            else:
                with turns.alone():
                    end()

    def _pieces(self, engine: Engine, generation: Generation) -> Iterator[str]:
        llm, sent = self._llm, 0

        def has_news() -> bool:
            is_over = generation.finish_reason is not None or self._is_stopped
            return is_over or len(generation.text) > sent

        # The order matters: another thread may add the last text between the two.
        while generation.finish_reason is None or sent < len(generation.text):
            llm.turns.run(llm.step, has_news)
            if self._is_stopped:
                with llm.turns.alone():
                    engine.cancel(generation)
            piece = generation.text[sent:]
            sent += len(piece)
            if piece:
                yield piece
        if generation.error is not None:
            raise generation.error
