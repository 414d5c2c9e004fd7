"""Serves one loaded model on a port for each arm, like `specqd serve`, in a process of its own.

    python hosting.py < requests > answers

Prefixes are not reused, because the arms share one cache. Only one arm should work at a time. A
request is an arm's number, answered with the counts of its target; or null, answered with the
bandwidth of reading as many bytes as a forward reads.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from threading import Thread
from typing import Any

from processes import Opened, Worker, answer


def hosted(
    arms: Sequence[tuple[str, float | None]], room: int, options: argparse.Namespace
) -> closing[Worker]:
    """Starts the process. An arm is a chain of drafts and the seconds that a round may take while
    prompts are read (None: the server's). `room`: the longest request, in tokens."""
    settings = {"model": options.model and str(options.model), "arms": arms, "room": room}
    settings |= {"most_at_once": max(options.at_once) + 1}  # one beside them
    settings |= {"threads": options.threads, "isa": options.isa}
    return closing(Worker([sys.executable, __file__], settings))


def opened(settings: dict[str, Any]) -> Opened:
    from specqd.bench.levels import PLAIN, words_of
    from specqd.engine.reports import Stats
    from specqd.llm import LLM
    from specqd.model.bandwidth import bandwidth_at
    from specqd.server.guard import Access
    from specqd.server.listening import listen, run
    from specqd.server.models import Models
    from specqd.server.opening import open_service

    most = settings["most_at_once"]
    room = (most + 1) * (settings["room"] + 256)
    machine = settings["threads"], settings["isa"]
    plain = LLM(settings["model"], PLAIN, *machine, cache_positions=room)
    engines, ports = [], []
    for chain, gap in settings["arms"]:
        llm = plain.with_draft(words_of(chain))
        llm.engine.level.measure()
        gaps = {} if gap is None else {"max_gap_s": gap}
        service = open_service(llm, max_batch=most, **gaps)
        engine = service.serving.engine
        engine.scheduler.reuses_prefixes = False
        sock = listen("127.0.0.1", 0)
        arguments = (Models.of(service), Access(), sock, 0, print)
        Thread(target=run, args=arguments, daemon=True).start()
        engines.append(engine)
        ports.append(sock.getsockname()[1])
    model = plain.model

    def handle(arm: int | None) -> Any:
        if arm is None:
            return bandwidth_at(model.machine, model.bytes_per_forward)
        return asdict(Stats.of(engines[arm]).levels[0])

    vocabulary = model.config.vocab_size
    return {"ports": ports, "model": plain.directory.name, "vocabulary": vocabulary}, handle


if __name__ == "__main__":
    answer(opened)
