"""Turns: one thread runs rounds for all, others come between two rounds, and nobody waits for ever.

No test here has a model: a round is any function.
"""

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any, cast

import pytest

from specqd import interrupts
from specqd.engine.turns import Turns
from specqd.errors import MachineError, RequestError


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def spin(is_so: Callable[[], bool]) -> None:
    """Lets other threads go on until it is so; gives up after a minute, so that nothing hangs."""
    bell, end = threading.Event(), monotonic() + 60
    while not is_so():
        bell.wait(0)
        assert monotonic() < end


def done(future: Future[None]) -> None:
    future.result(timeout=60)


def is_waiting(turns: Turns, count: int) -> Callable[[], bool]:
    return lambda: len(turns._askers) + len(turns._runners) == count


@pytest.mark.parametrize("ends", [[50] * 8, range(5, 45, 5)], ids=["together", "one by one"])
def test_one_thread_runs_the_rounds_of_all_and_hands_them_on_at_its_end(
    pool: ThreadPoolExecutor, ends: Sequence[int]
) -> None:
    turns, rounds, drivers = Turns(), 0, set()

    def step() -> None:
        nonlocal rounds
        if not rounds:
            spin(is_waiting(turns, 7))
        drivers.add(threading.get_ident())
        rounds += 1

    futures = [pool.submit(turns.run, step, lambda end=end: rounds >= end) for end in ends]
    for future in futures:
        done(future)
    assert rounds == max(ends)
    assert (len(drivers) == 1) == (min(ends) == max(ends))


def test_a_question_comes_between_the_next_two_rounds(pool: ThreadPoolExecutor) -> None:
    turns, rounds, asked = Turns(), 0, []

    def ask() -> None:
        with turns.alone():
            asked.append(rounds)

    def step() -> None:
        nonlocal rounds
        if rounds == 3:
            questions.append(pool.submit(ask))
            spin(is_waiting(turns, 1))
        rounds += 1

    questions: list[Future[None]] = []
    turns.run(step, lambda: rounds == 9)
    done(questions[0])
    assert asked == [4]


@pytest.mark.parametrize(("is_long", "most"), [(False, 2), (True, 1)])
def test_two_who_ask_again_at_once_leave_a_round_between_their_turns(
    pool: ThreadPoolExecutor, is_long: bool, most: int
) -> None:
    turns, times, asked, log = Turns(), 8, [0, 0], ""

    def ask(own: int) -> None:
        nonlocal log
        for _ in range(times):
            with turns.alone(is_long=is_long):
                log += "q"
                asked[own] += 1
                # The runner waits, and the other one unless it has asked its last question.
                spin(is_waiting(turns, 1 + (asked[1 - own] < times)))

    def step() -> None:
        nonlocal log
        if not log:
            askers.extend(pool.submit(ask, own) for own in range(2))
            spin(is_waiting(turns, 2))
        log += "r"

    askers: list[Future[None]] = []
    turns.run(step, lambda: asked == [times, times])
    for each in askers:
        done(each)
    assert max(map(len, log.split("r"))) == most


def test_all_who_ask_during_a_round_come_before_the_next(pool: ThreadPoolExecutor) -> None:
    turns, rounds, asked = Turns(), 0, []

    def ask() -> None:
        with turns.alone():
            asked.append(rounds)

    def step() -> None:
        nonlocal rounds
        if not rounds:
            futures.append(pool.submit(turns.run, step, lambda: rounds == 9))
            spin(is_waiting(turns, 1))
            futures.extend(pool.submit(ask) for _ in range(5))
            spin(is_waiting(turns, 6))
        rounds += 1

    futures: list[Future[None]] = []
    turns.run(step, lambda: rounds == 9)
    for each in futures:
        done(each)
    assert asked == [1] * 5


def test_a_round_that_raises_hands_the_turn_on(pool: ThreadPoolExecutor) -> None:
    turns, steps, threads = Turns(), [], 6

    def step() -> None:
        steps.append(None)
        if len(steps) == 1:
            spin(is_waiting(turns, threads - 1))
        if len(steps) <= 3:
            raise ValueError("broken")

    futures = [pool.submit(turns.run, step, lambda: len(steps) >= 9) for _ in range(threads)]
    errors = [future.exception(timeout=60) for future in futures]
    assert sum(isinstance(error, ValueError) for error in errors) == 3
    assert sum(error is None for error in errors) == 3


def test_a_call_from_within_its_own_round_is_refused() -> None:
    turns = Turns()
    with pytest.raises(RequestError, match="within its own round"), turns.alone(), turns.alone():
        pass
    with turns.alone():
        pass


def test_what_is_left_in_the_middle_of_a_round_runs_after_it() -> None:
    """The garbage collector may end a stream there that nobody reads any more."""
    turns, log = Turns(), []

    class Stream:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            turns.leave(lambda: log.append("left"))

    def step() -> None:
        log.append("begun")
        Stream()
        gc.collect()
        log.append("ended")

    turns.run(step, lambda: len(log) >= 3)
    assert log == ["begun", "ended", "left"]
    turns.leave(lambda: log.append("at once"))
    assert log[-1] == "at once"


def test_what_another_thread_leaves_is_not_forgotten(pool: ThreadPoolExecutor) -> None:
    turns, log = Turns(), []
    for i in range(200):
        with turns.alone():
            future = pool.submit(turns.leave, lambda i=i: log.append(i))
        done(future)
        with turns.alone():
            assert log == list(range(i + 1))


def test_ctrl_c_while_waiting_gives_up_the_place(pool: ThreadPoolExecutor) -> None:
    turns, main = Turns(), threading.main_thread().ident
    assert main is not None
    has_begun, interrupts = threading.Event(), 0

    def interrupt(*_: object) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            raise KeyboardInterrupt

    def has_left() -> bool:
        """Interrupts again: a signal just before a thread blocks does not wake it."""
        signal.pthread_kill(main, signal.SIGINT)
        return is_waiting(turns, 0)()

    def hold() -> None:
        with turns.alone():
            has_begun.set()
            spin(is_waiting(turns, 1))
            spin(has_left)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        holder = pool.submit(hold)
        assert has_begun.wait(60)
        with pytest.raises(KeyboardInterrupt), turns.alone():
            pass
        done(holder)
        with turns.alone():
            pass
    finally:
        signal.signal(signal.SIGINT, before)


def in_fork(check: Callable[[], None]) -> int:
    """The status of a forked process that runs `check`: 0 where it returns."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a hang ends with a status that is not 0
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_takes_turns_of_its_own(pool: ThreadPoolExecutor) -> None:
    turns = Turns()
    done(pool.submit(turns.run, lambda: None, lambda: True))

    def check() -> None:
        with turns.alone():
            pass

    assert in_fork(check) == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_was_forked_in_the_middle_of_a_round_is_refused(
    pool: ThreadPoolExecutor,
) -> None:
    turns, has_begun, may_end = Turns(), threading.Event(), threading.Event()

    def hold() -> None:
        with turns.alone():
            has_begun.set()
            may_end.wait(60)

    holder = pool.submit(hold)
    assert has_begun.wait(60)

    def check() -> None:
        turns.leave(lambda: None)  # never waits, never raises
        with pytest.raises(MachineError, match="forked while another thread"), turns.alone():
            pass

    assert in_fork(check) == 0
    may_end.set()
    done(holder)
    with turns.alone():
        pass


def take(turns: Turns) -> None:
    with turns.alone():
        pass


def run_forever(turns: Turns) -> None:
    turns.run(lambda: None, lambda: False)


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def assert_nothing_is_held(turns: Turns, pool: ThreadPoolExecutor) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not turns.is_within()
    done(pool.submit(take, turns))


def test_ctrl_c_comes_after_the_round_that_it_falls_into(pool: ThreadPoolExecutor) -> None:
    turns, rounds = Turns(), []

    def step() -> None:
        press_ctrl_c()
        rounds.append("ended")

    with pytest.raises(KeyboardInterrupt):
        turns.run(step, lambda: False)
    assert rounds == ["ended"]
    assert_nothing_is_held(turns, pool)


def test_ctrl_c_comes_after_a_turn_alone(pool: ThreadPoolExecutor) -> None:
    turns, steps = Turns(), []

    def step() -> None:
        with turns.alone():
            press_ctrl_c()
            steps.append("ended")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert steps == ["ended"]
    assert_nothing_is_held(turns, pool)


def test_a_turn_alone_can_allow_ctrl_c(pool: ThreadPoolExecutor) -> None:
    turns = Turns()

    def load() -> None:
        with turns.alone() as interrupt, interrupt.allowed():
            press_ctrl_c()
            pytest.fail("the load went on")

    with pytest.raises(KeyboardInterrupt):
        load()
    assert_nothing_is_held(turns, pool)


def test_a_second_ctrl_c_interrupts_a_round(pool: ThreadPoolExecutor) -> None:
    turns = Turns()

    def step() -> None:
        press_ctrl_c()
        press_ctrl_c()
        pytest.fail("the round went on")

    with pytest.raises(KeyboardInterrupt):
        turns.run(step, lambda: False)
    assert_nothing_is_held(turns, pool)


@pytest.mark.parametrize("wait", [run_forever, take])
def test_ctrl_c_interrupts_the_wait_for_another_threads_round(
    pool: ThreadPoolExecutor, wait: Callable[[Turns], None]
) -> None:
    turns, bell, begun = Turns(), threading.Event(), threading.Event()
    main = threading.get_ident()

    def step() -> None:
        begun.set()
        spin(is_waiting(turns, 1))
        signal.pthread_kill(main, signal.SIGINT)
        assert bell.wait(60), "the wait was not interrupted"

    other = pool.submit(turns.run, step, bell.is_set)
    assert begun.wait(60)
    with pytest.raises(KeyboardInterrupt):
        wait(turns)
    bell.set()
    done(other)
    assert_nothing_is_held(turns, pool)


class Bell:
    """A lock that is free at the given try."""

    def __init__(self, tries: int) -> None:
        self.tries, self.timeouts = tries, list[float]()

    def acquire(self, *, timeout: float) -> bool:
        self.timeouts.append(timeout)
        return len(self.timeouts) == self.tries


def test_only_the_main_thread_begins_a_wait_anew(pool: ThreadPoolExecutor) -> None:
    """A Ctrl-C that comes just before the thread sleeps does not wake it."""
    of_main, of_other = Bell(3), Bell(1)
    interrupts.acquire(cast(Any, of_main))
    done(pool.submit(interrupts.acquire, cast(Any, of_other)))
    assert len(of_main.timeouts) == 3
    assert all(0 < timeout < 1 for timeout in of_main.timeouts)
    assert of_other.timeouts == [-1]


def test_a_handler_of_the_callers_own_is_left_in_place() -> None:
    turns, come = Turns(), []

    def handler(signal_number: int, frame: object) -> None:
        come.append(signal_number)

    before = signal.signal(signal.SIGINT, handler)
    try:
        turns.run(press_ctrl_c, lambda: bool(come))
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert come == [signal.SIGINT]
