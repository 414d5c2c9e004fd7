"""One prompt completed piece by piece."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from specqd.engine.generation import GenerationRequest
from specqd.engine.reports import Stats
from specqd.llm.call import Call
from specqd.llm.results import Result
from specqd.sampling import SamplingParams
from specqd.text.tokenizer import Tokenizer

Finished = Callable[[Result], Result]  # makes the result that a stream sets
OnPrompt = Callable[[int, int], None]  # (tokens of the prompt that are read, all of them)


def unchanged(result: Result) -> Result:
    return result


class Stream:
    """An iterator over pieces of text as they become final; sets `result` at the end.

    Leaving a loop over it early cancels the request, and so does dropping it; `stop()` ends it and
    keeps the text so far. If other threads are generating, `result` is set after their current
    round. `on_prompt` is called, in the loop, after each round that has read a part of the prompt.
    """

    def __init__(
        self,
        begin: Callable[[GenerationRequest], Call],
        prompt: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        on_prompt: OnPrompt | None = None,
        finished: Finished = unchanged,
        *,
        is_answer: bool = False,
    ) -> None:
        params = replace(params, n=1)
        self._request = _Request(begin, prompt, params, tokenizer, on_prompt, finished, is_answer)
        self._begun: Iterator[str] | None = None  # by `next`

    def __repr__(self) -> str:
        return f"Stream({self._request.params!r}, result={self.result!r})"

    @property
    def result(self) -> Result | None:
        return self._request.result

    def stop(self) -> None:
        """Ends the text after the current round. A signal handler or any thread may call it."""
        self._request.is_stopped = True

    def __iter__(self) -> Iterator[str]:
        """Iterates over the rest of a request that `next` began, or over a new request."""
        begun, self._begun = self._begun, None
        return begun or self._request.pieces()

    def __next__(self) -> str:
        self._begun = self._begun or self._request.pieces()
        return next(self._begun)


@dataclass(slots=True, eq=False)
class _Request:
    """What the iterators of a stream share. They do not refer to the stream, so that one that is
    dropped ends them at once."""

    begin: Callable[[GenerationRequest], Call]
    prompt: list[int]
    params: SamplingParams
    tokenizer: Tokenizer
    on_prompt: OnPrompt | None
    finished: Finished
    is_answer: bool
    is_stopped: bool = False
    result: Result | None = None

    def pieces(self) -> Iterator[str]:
        request = GenerationRequest([self.prompt], self.params, is_answer=self.is_answer)
        call = self.begin(request)

        def finish(stats: Stats) -> None:
            generations, is_answer = call.generations, self.is_answer
            result = Result.of(self.prompt, generations, stats, self.tokenizer, is_answer=is_answer)
            self.result = self.finished(result)

        is_left = False
        try:
            yield from self._pieces_of(call)
        except GeneratorExit:
            is_left = True
            raise
        finally:
            if is_left:  # perhaps by the garbage collector, which must not wait
                call.leave(finish)
            else:
                finish(call.cancel())

    def _pieces_of(self, call: Call) -> Iterator[str]:
        [generation], sent, read = call.generations, 0, 0

        def has_news() -> bool:
            is_over = generation.finish_reason is not None or self.is_stopped
            is_read = self.on_prompt is not None and generation.prompt_read != read
            return is_over or is_read or len(generation.text) > sent

        # The order matters: another thread may add the last text between the two.
        while generation.finish_reason is None or sent < len(generation.text):
            call.run(has_news)
            if self.is_stopped:
                call.cancel()
            if self.on_prompt is not None and generation.prompt_read != read:
                read = generation.prompt_read
                self.on_prompt(read, generation.sequence.prompt_length)
            piece = generation.text[sent:]
            sent += len(piece)
            if piece:
                yield piece
        if generation.error is not None:
            raise generation.error
