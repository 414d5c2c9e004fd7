"""Measures seconds, processor time and memory of opening a model, each time in a new process.

    python benchmarks/make_random_llama.py /tmp/llama-1g
    specqd pack /tmp/llama-1g /tmp/llama-1g-packed
    python benchmarks/loading.py /tmp/llama-1g /tmp/llama-1g-packed

Files are read once before, so that disk time is not measured. Linux only.
"""

import argparse
import json
import resource
import subprocess
import sys
import threading
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from specqd.model.model import Machine, Model

MEGABYTE = 1e6


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def open_once(directory: Path, threads: int | None, isa: str | None) -> dict[str, float]:
    """Opens a model in this process and samples its anonymous memory every 5 ms."""
    machine, is_done, seen = Machine.choose(threads, isa), threading.Event(), [anonymous_bytes()]

    def watch() -> None:
        while not is_done.is_set():
            seen.append(anonymous_bytes())
            sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    before, begun = resource.getrusage(resource.RUSAGE_SELF), perf_counter()
    model = Model.open(directory, machine=machine, cache_positions=64)
    seconds, after = perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    is_done.set()
    watcher.join()
    matrices = model.weights.matrices
    return {
        "seconds": seconds,
        "user": after.ru_utime - before.ru_utime,
        "system": after.ru_stime - before.ru_stime,
        "peak": (max(seen) - seen[0]) / MEGABYTE,
        "stored": sum(sum(m.weight.plane_bytes().values()) for m in matrices) / MEGABYTE,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        print(json.dumps(open_once(args.models[0], args.threads, args.isa)))
        return
    for file in (file for model in args.models for file in model.glob("*.safetensors")):
        with file.open("rb") as content:
            while content.read(1 << 24):
                pass
    options = [*(["--threads", str(args.threads)] if args.threads else [])]
    options += ["--isa", args.isa] if args.isa else []
    rounds: dict[Path, list[dict[str, float]]] = {model: [] for model in args.models}
    for _ in range(args.rounds):
        for model, measured in rounds.items():
            command = [sys.executable, __file__, str(model), "--once", *options]
            measured.append(json.loads(subprocess.check_output(command)))
    for model, measured in rounds.items():
        seconds = sorted(each["seconds"] for each in measured)
        user, system, peak, stored = (
            median(each[key] for each in measured) for key in ("user", "system", "peak", "stored")
        )
        print(
            f"{model.name}: {median(seconds):.2f} s [{seconds[0]:.2f}, {seconds[-1]:.2f}], "
            f"{user:.2f} s user and {system:.2f} s system; {peak:.0f} MB of anonymous memory at "
            f"most, {stored:.0f} MB of planes"
        )


if __name__ == "__main__":
    main()
