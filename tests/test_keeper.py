"""Which models are loaded, with fakes in place of models: no request loses its model, and memory is
never exceeded while another model could be unloaded."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from specqd.errors import ConfigError, MachineError, ShortMemoryError

pytest.importorskip("fastapi", reason="needs specqd[serve]")

from specqd.engine.thread import StoppedError
from specqd.server.models import Models
from specqd.server.problems import ProblemError
from specqd.server.served_model import Source, State

SIZE = 100  # bytes of each model


class FakeService:
    """A loaded model that only counts."""

    def __init__(self, name: str, cache_bytes: int, log: list[str]) -> None:
        self.name = name
        self.is_closed = False
        self.remains = SimpleNamespace(cache_bytes=cache_bytes, max_context=1)
        self.metrics = SimpleNamespace(end=lambda counts: None)
        self.thread = SimpleNamespace(
            start=lambda: None, failure=None, fault=None, num_open_samples=0
        )
        self._log = log
        log.append(f"+{name}")

    async def counts(self) -> None: ...

    async def close(self) -> None:
        self.is_closed = True
        self._log.append(f"-{self.name}")


class Loads:
    """Sources of fakes. `gate` holds loads back while it is not set; `failures` are raised, one for
    each load; `cache_bytes` shows after a load."""

    def __init__(self, names: str) -> None:
        self.log: list[str] = []
        self.failures: list[Exception] = []
        self.cache_bytes: dict[str, int] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.sources = [Source(name, self._of(name), SIZE, states_cache=True) for name in names]

    def _of(self, name: str) -> Any:
        def load(remains: Any, cache_bytes: int | None) -> Any:
            assert self.gate.wait(60)
            if self.failures:
                raise self.failures.pop(0)
            return FakeService(name, self.cache_bytes.get(name, 0), self.log)

        return load


def run(names: str, test: Callable[[Models, Loads], Awaitable[None]], **limits: Any) -> list[str]:
    """Runs a test with models of these names; returns their loads (+) and unloads (-)."""
    loads = Loads(names)

    async def main() -> None:
        models = Models(loads.sources, **limits)
        models.start()
        try:
            async with asyncio.timeout(60):
                await test(models, loads)
        finally:
            loads.gate.set()
            loads.log.append("end")
            await models.stop()

    asyncio.run(main())
    return loads.log[: loads.log.index("end")]


async def use(models: Models, *names: str) -> None:
    """Uses the models one after the other."""
    for name in names:
        model = models.named(name)
        await models.take(model)
        model.leave()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


def state_of(models: Models, name: str) -> State:
    return models.named(name).state


def test_nothing_is_loaded_before_it_is_requested() -> None:
    async def test(models: Models, loads: Loads) -> None:
        await asyncio.sleep(0.05)
        assert [each.state for each in models.all] == [State.ABSENT] * 2
        await use(models, "b", "b")

    assert run("ab", test) == ["+b"]


def test_the_model_whose_last_use_is_longest_ago_makes_room() -> None:
    async def test(models: Models, loads: Loads) -> None:
        await use(models, "a", "b", "a", "c", "b")

    assert run("abc", test, memory=2 * SIZE) == ["+a", "+b", "-b", "+c", "-a", "+b"]


def test_while_a_model_loads_requests_to_loaded_ones_do_not_wait() -> None:
    async def test(models: Models, loads: Loads) -> None:
        await use(models, "a")
        loads.gate.clear()
        waiting = asyncio.create_task(use(models, "b"))
        await until(lambda: state_of(models, "b") is State.LOADING)
        await use(models, "a", "a")
        assert not waiting.done()
        loads.gate.set()
        await waiting

    assert run("ab", test) == ["+a", "+b"]


def test_a_model_in_use_leaves_after_its_last_request_and_later_ones_wait_for_it() -> None:
    async def test(models: Models, loads: Loads) -> None:
        a = models.named("a")
        service: Any = await models.take(a)
        other = asyncio.create_task(use(models, "b"))
        await until(lambda: a.state is State.LEAVING)
        later = asyncio.create_task(use(models, "a"))
        await asyncio.sleep(0.02)
        assert not any((service.is_closed, other.done(), later.done()))
        a.leave()
        await asyncio.gather(other, later)
        assert service.is_closed

    assert run("ab", test, memory=SIZE) == ["+a", "-a", "+b", "-b", "+a"]


def test_unused_models_make_room_before_used_ones() -> None:
    async def test(models: Models, loads: Loads) -> None:
        a = models.named("a")
        await models.take(a)
        await use(models, "b", "c")
        assert a.state is State.LOADED
        a.leave()

    assert run("abc", test, memory=2 * SIZE) == ["+a", "+b", "-b", "+c"]


def test_a_load_that_lacks_memory_unloads_others_and_is_tried_again() -> None:
    async def test(models: Models, loads: Loads) -> None:
        await use(models, "a", "b")
        loads.failures = [ShortMemoryError("short"), ShortMemoryError("short")]
        await use(models, "c")

    assert run("abc", test) == ["+a", "+b", "-a", "-b", "+c"]


@pytest.mark.parametrize(
    "error", [ShortMemoryError("path: short"), MachineError("path: a small cache"), MemoryError()]
)
def test_a_model_that_does_not_fit_fails_only_its_own_requests(error: Exception) -> None:
    async def test(models: Models, loads: Loads) -> None:
        loads.failures = [error]
        with pytest.raises(ProblemError, match="a does not fit into the memory") as caught:
            await use(models, "a")
        assert (caught.value.status, caught.value.code) == (503, "model_does_not_fit")
        assert "path" not in caught.value.message
        await use(models, "b", "a")

    assert run("ab", test) == ["+b", "+a"]


def test_another_error_reaches_all_who_wait_and_the_next_request_tries_again() -> None:
    async def test(models: Models, loads: Loads) -> None:
        loads.gate.clear()
        loads.failures = [ConfigError("wrong")]
        waiting = [asyncio.create_task(use(models, "a")) for _ in range(3)]
        await until(lambda: len(models.named("a").waiting) == 3)
        loads.gate.set()
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(each) for each in errors] == ["wrong"] * 3
        await use(models, "a")

    assert run("a", test) == ["+a"]


def test_nothing_is_loaded_for_clients_that_have_left() -> None:
    async def test(models: Models, loads: Loads) -> None:
        loads.gate.clear()
        waiting = [asyncio.create_task(use(models, name)) for name in "ab"]
        await until(lambda: models.named("b").is_awaited)
        waiting[1].cancel()
        loads.gate.set()
        await waiting[0]
        await use(models, "c")

    assert run("abc", test) == ["+a", "+c"]


def test_a_client_that_leaves_as_its_model_arrives_does_not_hold_it() -> None:
    async def test(models: Models, loads: Loads) -> None:
        loads.gate.clear()
        a = models.named("a")
        waiting = asyncio.create_task(use(models, "a"))
        await until(lambda: a.is_awaited)
        arrive = a.arrive

        def arrive_and_leave(service: Any) -> None:
            arrive(service)
            waiting.cancel()

        a.arrive = arrive_and_leave  # type: ignore[method-assign]
        loads.gate.set()
        with suppress(asyncio.CancelledError):
            await waiting
        await until(lambda: a.state is State.LOADED)
        assert not a.is_used

    assert run("a", test) == ["+a"]


def test_models_are_unloaded_some_time_after_their_last_use() -> None:
    async def test(models: Models, loads: Loads) -> None:
        a = models.named("a")
        await models.take(a)
        await use(models, "b")
        await until(lambda: state_of(models, "b") is State.ABSENT)
        assert a.state is State.LOADED
        a.leave()
        await until(lambda: a.state is State.ABSENT)
        await use(models, "a")

    assert run("ab", test, keep_alive_s=0.05)[:5] == ["+a", "+b", "-b", "-a", "+a"]


def test_requests_that_wait_fail_when_the_server_gives_up() -> None:
    async def test(models: Models, loads: Loads) -> None:
        loads.gate.clear()
        waiting = asyncio.create_task(use(models, "a"))
        await until(lambda: models.named("a").is_awaited)
        models.give_up("the end")
        for attempt in (waiting, use(models, "a")):
            with pytest.raises(StoppedError, match="the end"):
                await attempt

    run("a", test)


def test_a_cache_that_is_larger_than_was_known_makes_room_after_the_load() -> None:
    async def test(models: Models, loads: Loads) -> None:
        loads.cache_bytes = {"c": 2 * SIZE}
        await use(models, "a", "b", "c")
        await until(lambda: state_of(models, "a") is State.ABSENT)

    assert run("abc", test, memory=4 * SIZE) == ["+a", "+b", "+c", "-a"]


def check_log(log: Sequence[str], most: int) -> None:
    """Checks that loads and unloads of each model alternate, and how many are loaded at once."""
    loaded: set[str] = set()
    for sign, name in log:
        assert (sign == "+") == (name not in loaded)
        loaded ^= {name}
        assert len(loaded) <= most


@pytest.mark.parametrize("most", [1, 2, 3])
def test_any_requests_get_their_models_within_the_memory(chance: random.Random, most: int) -> None:
    names, served = "abcd", []

    async def request(models: Models) -> None:
        await asyncio.sleep(chance.random() * 0.5)
        name = chance.choice(names)
        model = models.named(name)
        taking = asyncio.create_task(models.take(model))
        if chance.random() < 0.2:
            await asyncio.sleep(chance.random() * 0.02)
            if taking.cancel():
                with suppress(asyncio.CancelledError):
                    await taking
                    model.leave()
                return
        service: Any = await taking
        for _ in range(chance.randrange(4)):
            assert service.name == name
            assert not service.is_closed
            await asyncio.sleep(chance.random() * 0.01)
        model.leave()
        served.append(name)

    async def test(models: Models, loads: Loads) -> None:
        await asyncio.gather(*(request(models) for _ in range(300)))
        assert not any(each.is_used or each.waiting for each in models.all)
        assert sum(each.loads for each in models.all) == sum(s == "+" for s, _ in loads.log)

    keep_alive_s = chance.choice([None, 0.01])
    log = run(names, test, memory=most * SIZE, keep_alive_s=keep_alive_s)
    check_log(log, most)
    assert len(served) > 150
