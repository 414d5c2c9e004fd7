"""A process that loads one model and serves it on a port for each arm, like `specqd serve`.

Prefixes are not reused, because the arms share one cache. Only one arm should work at a time.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

from specqd.bench.levels import PLAIN, words_of
from specqd.engine.reports import Stats


@dataclass(frozen=True, slots=True)
class Setting:
    """`arms`: the chain of drafts and the rows of prompts in a round (None: the server's)."""

    model: Path | None
    arms: tuple[tuple[str, int | None], ...]
    threads: int | None
    isa: str | None
    most_at_once: int
    most_tokens: int  # per request: prompt and answer


@dataclass(frozen=True, slots=True)
class Host:
    """The client's view of the process."""

    pipe: Connection
    ports: tuple[int, ...]
    model: str
    vocabulary: int

    def stats(self, arm: int) -> Stats:
        counted = self._asked(arm)
        assert isinstance(counted, Stats)
        return counted

    def gb_per_s(self) -> float:
        """The bandwidth of a plain read of as many bytes as a forward reads."""
        return float(self._asked(None))

    def _asked(self, request: int | None) -> Any:
        self.pipe.send(request)
        return self.pipe.recv()


def _serve(setting: Setting, pipe: Connection) -> None:
    from specqd.engine.engine import Engine
    from specqd.llm import LLM
    from specqd.model.bandwidth import bandwidth_at
    from specqd.server.app import Service, Serving
    from specqd.server.guard import Access
    from specqd.server.listening import listen, run
    from specqd.server.opening import PROMPT_ROWS

    room = (setting.most_at_once + 1) * (setting.most_tokens + 256)
    plain = LLM(setting.model, PLAIN, setting.threads, setting.isa, cache_positions=room)
    engines, ports = [], []
    for chain, rows in setting.arms:
        llm = plain.with_draft(words_of(chain))
        engine = Engine(
            llm.engine.level,
            llm.tokenizer,
            max_batch=setting.most_at_once,
            prompt_rows=rows or PROMPT_ROWS,
        )
        engine.scheduler.reuses_prefixes = False
        sock = listen("127.0.0.1", 0)
        service = Service(Serving(engine, llm.directory.name, llm.defaults, Access()))
        Thread(target=run, args=(service, sock, 0, print), daemon=True).start()
        engines.append(engine)
        ports.append(sock.getsockname()[1])
    pipe.send((tuple(ports), plain.directory.name, plain.model.config.vocab_size))
    model = plain.model
    while (asked := pipe.recv()) != "end":
        is_arm = asked is not None
        pipe.send(
            Stats.of(engines[asked])
            if is_arm
            else bandwidth_at(model.machine, model.bytes_per_forward)
        )
    os._exit(0)  # the servers' threads need no cleanup


@contextmanager
def hosted(setting: Setting) -> Iterator[Host]:
    spawning = get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_serve, args=(setting, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Host(ours, *ours.recv())
        ours.send("end")
    finally:
        process.join(5)
        if process.is_alive():
            process.terminate()
