"""A thread that runs an engine, and the jobs that connect it with an event loop.

Knows rounds and arrivals; knows nothing of HTTP. Every access to the engine is a command that the
thread runs between two rounds. Updates wait on the loop's side, so a slow reader delays no one. The
loop's work delays the next round. Therefore updates of streams are handed over together, at most 60
times per second, and samples that are not streamed are handed over whole.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread, current_thread
from time import perf_counter
from typing import Protocol, TypeVar

from specqd.engine.engine import Engine
from specqd.engine.generation import Generation, GenerationRequest
from specqd.engine.reports import Progress, Stats
from specqd.engine.turns import Turns
from specqd.engine.updates import Update
from specqd.errors import SpecqdError

T = TypeVar("T")
_LOG = logging.getLogger("specqd.engine")
_STREAM_SECONDS = 1 / 60  # faster updates would not be visible


class StoppedError(SpecqdError):
    """No more requests are served: the thread is ending, or the engine failed."""


class Watcher(Protocol):
    """Observes samples as they leave the engine, on its thread."""

    def first_token(self, seconds: float) -> None:
        """seconds: since the job was submitted."""
        ...

    def next_tokens(self, seconds: float, count: int) -> None:
        """count: tokens that came at once; seconds: since the tokens before them."""
        ...

    def finished(self, reason: str, seconds: float) -> None:
        """seconds: since the job was submitted."""
        ...


class Job:
    """A request to the engine and its updates. Lives on the event loop.

    is_streamed: samples come in parts while they are made; otherwise whole.
    has_progress: updates contain the levels' work so far.
    has_prompt_progress: updates before the first tokens say how far the prompt is read, after each
        part of it and at its end.
    """

    def __init__(
        self,
        request: GenerationRequest,
        *,
        is_streamed: bool = True,
        has_progress: bool = False,
        has_prompt_progress: bool = False,
    ) -> None:
        self.request = request
        self.is_streamed = is_streamed
        self.has_progress = has_progress
        self.has_prompt_progress = has_prompt_progress
        self.cached_prompt_tokens = 0  # known with the first token
        self.num_open = request.num_samples  # samples that have not ended
        self._new: list[Update] = []
        self._is_there = asyncio.Event()
        self._failure: StoppedError | None = None

    @property
    def is_over(self) -> bool:
        """Whether all updates have been taken."""
        return self.num_open == 0 and not self._new

    async def updates(self) -> list[Update]:
        """Waits for updates and takes them.

        Raises SpecqdError if a sample cannot continue, StoppedError if none can.
        """
        await self._is_there.wait()
        if self._failure is not None:
            raise self._failure
        new, self._new = self._new, []
        self._is_there.clear()
        for update in new:
            if update.error is not None:
                raise update.error
        return new

    def deliver(self, updates: list[Update], cached_prompt_tokens: int) -> None:
        self._new += updates
        self.num_open -= sum(update.finish_reason is not None for update in updates)
        self.cached_prompt_tokens = cached_prompt_tokens
        self._is_there.set()

    def fail(self, error: StoppedError) -> None:
        self._failure = error
        self._is_there.set()


class _Live:
    """A job on the engine's thread: its generations, and how much of each has been handed over."""

    def __init__(self, engine: Engine, job: Job, generations: list[Generation]) -> None:
        self.job = job
        self.generations = generations
        self.begun = perf_counter()
        self._engine = engine
        self._first: Stats | None = None  # counts up to its first tokens
        self._first_at = 0.0
        self._is_shared = False
        self._sent = [(0, 0)] * len(self.generations)  # tokens, characters
        self._read = [0] * len(self.generations)  # tokens of the prompt
        self._watched = [(0, self.begun)] * len(self.generations)  # tokens, when
        self._open = set(range(len(self.generations)))

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def cached_prompt_tokens(self) -> int:
        firsts = self.generations[:: self.job.request.params.n]  # the samples of a prompt share it
        return sum(generation.cached_prompt_tokens for generation in firsts)

    def notify(self, watcher: Watcher) -> None:
        """Reports new tokens and ended samples. Call it before `updates`, which closes those."""
        now = perf_counter()
        for i in self._open:
            generation, (count, since) = self.generations[i], self._watched[i]
            if (new := generation.count - count) > 0:
                if count:
                    watcher.next_tokens(now - since, new)
                else:
                    watcher.first_token(now - self.begun)
                self._watched[i] = (generation.count, now)
            if generation.finish_reason is not None:
                watcher.finished(generation.finish_reason, now - self.begun)

    def updates(self, *, is_due: bool) -> list[Update]:
        """Updates to hand over: first tokens and ends at once, tokens between them if `is_due`."""
        new = []
        progress = None
        for i in sorted(self._open):
            generation, (tokens, characters) = self.generations[i], self._sent[i]
            if self.job.has_prompt_progress and not tokens:
                new += self._prompt_updates(i, is_due=is_due or generation.count > 0)
            is_over = generation.finish_reason is not None
            is_new = self.job.is_streamed and generation.count > tokens
            if not is_over and not (is_new and (is_due or not tokens)):
                continue
            if self.job.has_progress:
                progress = progress or self._progress()
            update = Update.of(
                i, generation, tokens=tokens, characters=characters, progress=progress
            )
            new.append(update)
            self._sent[i] = (generation.count, len(generation.text))
            if is_over:
                self._open.discard(i)
        return new

    def _prompt_updates(self, i: int, *, is_due: bool) -> list[Update]:
        """What is new about the prompt of a sample whose tokens have not been handed over."""
        generation = self.generations[i]
        if generation.prompt_read == self._read[i] or not is_due:
            return []
        self._read[i] = generation.prompt_read
        return [Update.of_prompt(i, generation, perf_counter() - self.begun)]

    def _progress(self) -> Progress:
        """The engine's work since the first tokens, with which the first call comes."""
        now, stats = perf_counter(), Stats.of(self._engine)
        if self._first is None:
            self._first, self._first_at = stats, now
        self._is_shared |= len(self._engine.scheduler.running) > self.num_open
        return Progress(now - self._first_at, stats.since(self._first).levels, self._is_shared)


class EngineThread:
    """Runs an engine. Call `submit`, `close` and `ask` from one event loop.

    turns: those of the other threads that use the engine; by default there are no others.
    """

    def __init__(
        self,
        engine: Engine,
        watcher: Watcher | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._engine = engine
        self._watcher = watcher
        self._turns = turns or Turns()
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._forwarding = asyncio.Lock()
        self._live: dict[Job, _Live] = {}
        self._handed_over_at = 0.0
        self._open: set[Job] = set()  # on the loop's side: jobs that are not closed
        self._is_stopping = False
        self.failure: StoppedError | None = None
        self.fault: str | None = None  # why the engine is no longer used
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = Thread(target=self._run, name="specqd-engine", daemon=True)

    @property
    def num_open_samples(self) -> int:
        """Samples that have not ended, over all jobs that are not closed. Unread text of samples
        that have ended counts for the client's connection."""
        return sum(job.num_open for job in self._open)

    def start(self) -> None:
        """Call it within the event loop of the jobs."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def check(self) -> None:
        """Raises StoppedError if no more requests are served."""
        if self.failure is not None:
            raise self.failure
        if not self._thread.is_alive():
            raise StoppedError("the engine's thread has ended; start it again")

    def give_up(self, why: str) -> None:
        """Fails all jobs and refuses new ones."""
        self.failure = StoppedError(why)
        for job in self._open:
            job.fail(self.failure)

    def end(self) -> None:
        """Stops after the current round and waits for that; unfinished samples end as cancelled.
        Any thread may call it, also from the garbage collector; within a round of its own it does
        not wait."""
        self._commands.put(self._stop)
        if current_thread() is not self._thread and not self._turns.is_within():
            self._thread.join()

    async def stop(self) -> None:
        """`end`, without blocking the loop."""
        await asyncio.to_thread(self.end)

    async def submit(self, job: Job) -> None:
        """Queues all prompts of a job, or none. Raises RequestError for what cannot be run.

        The caller must `close` the job, also after an error.
        """
        self._open.add(job)
        await self.ask(lambda: self._submit(job))

    def close(self, job: Job) -> None:
        """Cancels a job's unfinished samples before the next round."""
        self._open.discard(job)
        self._commands.put(lambda: self._cancel(job))

    async def ask(self, question: Callable[[], T]) -> T:
        """Runs `question` on the thread, between two rounds, and returns its result."""
        self.check()
        answer: Future[T] = Future()

        def command() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # the caller no longer waits
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)
            except BaseException as error:  # a library's panic would end the loop's task
                answer.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

        self._commands.put(command)
        return await asyncio.wrap_future(answer)

    async def forward(self, run: Callable[[int | None], object]) -> None:
        """Runs a forward that belongs to no job. Between two rounds there is one at most, whoever
        asks for more.

        run: is called with the most rows of the forward, see `Engine.rows_beside`.
        """
        async with self._forwarding:
            await self.ask(lambda: run(self._engine.rows_beside()))

    # --- On the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        """Fails all jobs at any exception that arrives here, because nobody knows which job caused
        it. An error of one request is in its samples, or is raised by `submit`."""
        try:
            while not self._is_stopping:
                self._run_commands()
                if self._live and not self._is_stopping:
                    with self._turns.alone():
                        if not self._engine.is_idle:  # another thread may have run its last round
                            self._engine.step()
                        self._hand_over()
            with self._turns.alone():
                for job in list(self._live):
                    self._cancel(job)
        except BaseException as error:  # also panics of libraries
            _LOG.exception("the engine failed")
            self._fail(error)

    def _run_commands(self) -> None:
        """Runs the commands that are queued now; those that come meanwhile wait for a round. If
        there is no job, waits for a command."""
        first = None if self._live else self._commands.get()
        for _ in range(self._commands.qsize() + (first is not None)):
            with self._turns.alone():
                (first or self._commands.get())()
            first = None
            if self._is_stopping:
                break

    def _stop(self) -> None:
        self._is_stopping = True

    def _submit(self, job: Job) -> None:
        if self.failure is not None:
            raise self.failure
        generations = self._engine.submit(job.request)
        self._live[job] = _Live(self._engine, job, generations)

    def _cancel(self, job: Job) -> None:
        live = self._live.pop(job, None)
        if live is None:
            return
        for generation in live.generations:
            self._engine.cancel(generation)
        if self._watcher is not None:
            for _ in range(live.num_open):
                self._watcher.finished("cancelled", perf_counter() - live.begun)

    def _hand_over(self) -> None:
        now, news = perf_counter(), []
        is_due = now - self._handed_over_at >= _STREAM_SECONDS
        if is_due:
            self._handed_over_at = now
        for live in list(self._live.values()):
            if self._watcher is not None:
                live.notify(self._watcher)
            if updates := live.updates(is_due=is_due):
                news.append((live.job, updates, live.cached_prompt_tokens))
            if not live.num_open:
                del self._live[live.job]
        if news:
            self._call_back(_deliver, news)

    def _call_back(self, callback: Callable[[T], object], value: T) -> None:
        """Calls back on the event loop. If that is closed, nobody waits, and the thread ends."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            self._is_stopping = True

    def _fail(self, error: BaseException) -> None:
        """Fails every job. The engine may be broken, so it is not used again."""
        self.fault = f"{type(error).__name__}: {error}"
        self.failure = StoppedError(f"the engine failed: {type(error).__name__}")
        with suppress(BaseException), self._turns.alone():
            self._engine.fail(error)  # ends the requests of other threads
        jobs = list(self._live)
        for job in jobs:
            self._call_back(job.fail, self.failure)
            with suppress(BaseException):  # frees what it can
                self._cancel(job)
        while not self._is_stopping:
            self._commands.get()()


def _deliver(news: list[tuple[Job, list[Update], int]]) -> None:
    for job, updates, cached in news:
        job.deliver(updates, cached)
