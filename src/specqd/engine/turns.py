"""Lets several threads use one model: one of them runs rounds for all, the others wait.

Knows nothing of engines and starts no thread: the caller that has the turn runs the rounds, and
passes the turn on when its own request has ended.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import getpid
from threading import Lock, RLock, get_ident
from weakref import finalize, ref

from specqd.errors import MachineError, RequestError
from specqd.interrupts import HeldBack, acquire

Question = Callable[[], bool]


@dataclass(slots=True, eq=False)
class _Waiter:
    thread: int
    is_done: Question | None  # None: it needs the turn between two rounds
    is_long: bool = False
    came_after: int = -1  # rounds; -1: it goes before the next round in any case
    has_turn: bool = False
    _bell: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self._bell.acquire()

    def wait(self) -> None:
        acquire(self._bell)

    def wake(self, *, has_turn: bool) -> None:
        self.has_turn = has_turn
        self._bell.release()


class Turns:
    """The right to use a model, which one thread has at a time.

    `run` lets all callers progress together; `alone` takes the turn between two rounds. Both raise
    RequestError within a round of the same thread, and MachineError in a process that was forked
    in the middle of a round.

    A caller of `alone` goes before the next round if it asked before the last one ended, and after
    the next round otherwise. So callers that ask again and again hold up no rounds.

    The interpreter exits between two rounds, and from then on a daemon thread that hands over its
    turn waits for ever: if it returned from native code later, or freed a model, it would abort the
    process.

    Ctrl-C on the main thread interrupts its waiting at once, and a turn of its own when it passes
    that on, so that no round ends in its middle.
    """

    def __init__(self) -> None:
        self._begin()
        finalize(self, _close, ref(self))  # also called at exit

    def _begin(self) -> None:
        self._process = getpid()
        self._closer: int | None = None  # the thread that ends the interpreter
        self._num_rounds = 0  # turns of runners that have ended
        self._had_long = False  # whether there was a long turn since the last of them
        # Protects the next three. Reentrant: the garbage collector may call `leave` anywhere.
        self._guard = RLock()
        self._holder: int | None = None  # the thread that has the turn
        self._askers: deque[_Waiter] = deque()
        self._runners: deque[_Waiter] = deque()
        self._left: deque[Callable[[], None]] = deque()

    @contextmanager
    def alone(self, *, is_long: bool = False) -> Iterator[HeldBack]:
        """Holds the turn, between two rounds of other threads. Yields what holds Ctrl-C back, so
        that a longer part can allow it.

        is_long: for about as long as a round. Between two rounds there is one such turn at most.
        """
        with HeldBack() as interrupt:
            self._take(None, interrupt, is_long=is_long)
            try:
                self._had_long |= is_long
                yield interrupt
            finally:
                self._hand_over()

    def run(self, step: Callable[[], None], is_done: Question) -> None:
        """Runs rounds, or waits while another thread runs them, until `is_done`.

        is_done: other threads call it too, after each of their rounds.
        """
        with HeldBack() as interrupt:
            while not (interrupt.has_come or is_done()) and self._take(is_done, interrupt):
                try:
                    while not is_done():
                        step()
                        if interrupt.has_come or self._is_awaited():
                            break
                finally:
                    self._num_rounds += 1
                    self._had_long = False
                    self._hand_over()

    def leave(self, command: Callable[[], None]) -> None:
        """Runs `command` between two rounds without waiting: now, or later on another thread."""
        with HeldBack():
            self._left.append(command)
            if self._try_take():
                self._hand_over()

    def is_within(self) -> bool:
        """Whether the calling thread has the turn, or is passing it on: it must not wait for a
        thread that needs the turn. The garbage collector may call from there."""
        is_guarded: bool = self._guard._is_owned()  # type: ignore[attr-defined]
        return is_guarded or self._holder == get_ident()

    def _take(
        self, is_done: Question | None, interrupt: HeldBack, *, is_long: bool = False
    ) -> bool:
        """Waits for the turn; returns False, without the turn, if `is_done` becomes true first."""
        if not self._is_of_this_process():
            raise MachineError(
                "this process was forked while another thread ran the model; load the model in "
                "the new process"
            )
        waiter = _Waiter(get_ident(), is_done, is_long)
        try:
            with self._guard:
                if self._holder is None:
                    waiter.has_turn, self._holder = True, waiter.thread
                    return True
                if self._holder == waiter.thread:
                    raise RequestError(
                        "the model is called from within its own round, by a drafter or a grammar; "
                        "load a second model for that"
                    )
                if self._runners and self._closer is None:  # a round is due
                    waiter.came_after = self._num_rounds
                (self._askers if is_done is None else self._runners).append(waiter)
            with interrupt.allowed():
                waiter.wait()
        except BaseException:  # KeyboardInterrupt
            self._withdraw(waiter)
            raise
        return waiter.has_turn

    def _try_take(self) -> bool:
        if not self._is_of_this_process():
            return False
        with self._guard:
            if self._holder is None:
                self._holder = get_ident()
                return True
        return False

    def _hand_over(self) -> None:
        try:
            while self._left:
                self._left.popleft()()
        finally:
            self._wake_next()
        if self._closer not in (None, get_ident()):
            _Waiter(get_ident(), None).wait()
        if self._left and self._try_take():  # added after the loop
            self._hand_over()

    def _wake_next(self) -> None:
        with self._guard:
            self._wake_done()
            waiter = self._next()
            self._holder = None if waiter is None else waiter.thread
            if waiter is not None:
                waiter.wake(has_turn=True)

    def _next(self) -> _Waiter | None:
        """Takes the waiter that gets the turn next out of its queue."""
        if not self._runners:
            return self._askers.popleft() if self._askers else None
        for asker in self._askers:
            if asker.came_after < self._num_rounds and not (asker.is_long and self._had_long):
                self._askers.remove(asker)
                return asker
        return self._runners.popleft()

    def _is_awaited(self) -> bool:
        """Wakes callers that are done; returns whether others need the turn before a round."""
        with self._guard:
            self._wake_done()
            return bool(self._askers or self._left)

    def _wake_done(self) -> None:
        for waiter in [each for each in self._runners if each.is_done and each.is_done()]:
            self._runners.remove(waiter)
            waiter.wake(has_turn=False)

    def _withdraw(self, waiter: _Waiter) -> None:
        with self._guard:
            queue = self._askers if waiter.is_done is None else self._runners
            if waiter in queue:
                queue.remove(waiter)
        if waiter.has_turn:
            self._hand_over()

    def _is_of_this_process(self) -> bool:
        """Starts afresh in a forked process; False if a thread held the turn during the fork."""
        if self._process != getpid():
            if self._holder is not None:
                return False
            self._begin()
        return True

    def close(self) -> None:
        """Takes the turn forever, so that no other thread begins another round or goes on after its
        last one."""
        if self._is_of_this_process():
            self._closer = get_ident()
            self._take(None, HeldBack())


def _close(turns: "ref[Turns]") -> None:
    if (living := turns()) is not None:
        living.close()
