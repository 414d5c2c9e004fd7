"""Runs one build's part of compare_builds.py, in the interpreter of that build.

    PYTHON build_worker.py levels|overhead|kernels|serving < requests > answers

Uses only what an older build has too: `specqd.bench`, `specqd serve` and the `round_seconds` of the
build's own benchmarks/overhead.py, because that one reads the counters of its own engine.
"""

import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from processes import Opened, answer, end_with_parent

Settings = dict[str, Any]
_LOAD_SECONDS = 600.0


def levels(settings: Settings) -> Opened:
    """Completes prompts by number with each chain, over one loaded model."""
    from specqd import LLM, SamplingParams
    from specqd.bench.levels import encoded_ends, make_arms, timed

    plain = LLM(settings["model"], "none", threads=settings["threads"], isa=settings["isa"])
    arms = {arm.chain: arm.llm for arm in make_arms(plain, settings["chains"])}
    if settings["chat"]:
        chats = ([{"role": "user", "content": text}] for text in settings["prompts"])
        prompts = [plain.tokenizer.chat(chat) for chat in chats]
    else:
        prompts = encoded_ends(plain, settings["prompts"], settings["tokens"])

    def handle(request: Settings) -> Settings:
        params = SamplingParams(
            max_tokens=settings["tokens"],
            temperature=request["temperature"],
            seed=request["number"],
            ignore_eos=True,
        )
        prompt = prompts[request["number"] % len(prompts)]
        run = timed(arms[request["chain"]], prompt, params)
        prompt_speed = len(prompt) / run.prefill_s
        return {"speeds": [run.tokens_per_s, prompt_speed], "tokens": run.tokens}

    return {"model": plain.directory.name, "machine": str(plain.model.machine)}, handle


def overhead(settings: Settings) -> Opened:
    """Measures draft-verify rounds: whole, and outside forwards and sampling."""
    import specqd
    from specqd import LLM

    sys.path.insert(0, str(Path(specqd.__file__).resolve().parents[2] / "benchmarks"))
    from overhead import round_seconds

    chain = f"fp4:k={settings['length']}"
    llm = LLM(settings["model"], chain, threads=settings["threads"], isa=settings["isa"])

    def handle(_: Any) -> Settings:
        whole, outside = round_seconds(llm, settings["steps"])
        return {"rounds/s": 1 / whole, "rounds/s outside forwards and sampling": 1 / outside}

    return {"model": llm.directory.name, "machine": str(llm.model.machine)}, handle


def kernels(settings: Settings) -> Opened:
    """Times products with random weights, in turns of a few milliseconds."""
    import numpy as np

    from specqd import _native
    from specqd.bench.kernels import random_weights, weights_of
    from specqd.model.model import Machine

    machine = Machine.choose(settings["threads"])
    count = settings["cache_weights"] * machine.pool.threads
    if settings["megabytes"] > 0:
        count = weights_of(settings["megabytes"])
    packed = random_weights(count, settings["inputs"])
    rng = np.random.default_rng(2)
    repeats: dict[tuple[str, str, int], int] = {}

    def handle(case: list[Any]) -> Settings:
        precision, isa, rows = case
        x = rng.normal(size=(rows, settings["inputs"])).astype(np.float32)
        timed = _native.kernels(isa).time_product
        if tuple(case) not in repeats:
            once = min(timed(precision, packed, x, machine.pool, 5))
            repeats[precision, isa, rows] = max(1, int(settings["turn_ms"] / 1e3 / once))
        seconds = timed(precision, packed, x, machine.pool, 1, repeats[precision, isa, rows])[0]
        return {"speed": packed.weights / seconds}

    return {"model": "random weights", "machine": str(machine)}, handle


def serving(settings: Settings) -> Opened:
    """Starts `specqd serve` in this process group and reports its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "specqd", "serve", settings["model"]]
    command += ["--port", str(port)]
    for word in settings["chain"]:
        command += ["--draft", word]
    for name in ("threads", "isa"):
        command += [f"--{name}", str(settings[name])] if settings[name] else []
    server = subprocess.Popen(command, stdout=sys.stderr, preexec_fn=end_with_parent)
    deadline = monotonic() + _LOAD_SECONDS
    while server.poll() is None and monotonic() < deadline:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return {"port": port, "model": Path(settings["model"]).name}, lambda _: None
        except OSError:
            sleep(0.1)
    raise SystemExit(f"{' '.join(command)}: the server has not started")


WORKLOADS = {"levels": levels, "overhead": overhead, "kernels": kernels, "serving": serving}

if __name__ == "__main__":
    answer(WORKLOADS[sys.argv[1]])
