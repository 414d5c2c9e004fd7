"""Measures seconds, processor time and memory of opening a model, each time in a new process.

    python benchmarks/make_random_model.py /tmp/llama-1g
    specqd pack /tmp/llama-1g /tmp/llama-1g-packed
    python benchmarks/loading.py /tmp/llama-1g /tmp/llama-1g-packed

Files are read once before, so that disk time is not measured. Linux only.
"""

import json
import resource
import subprocess
import sys
import threading
from pathlib import Path
from time import perf_counter, sleep

from harness import Report, parser, same

from specqd.bench.rounds import interleaved
from specqd.model.model import Machine, Model

MEGABYTE = 1e6


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def open_once(directory: Path, machine: Machine) -> dict[str, float]:
    """Opens a model in this process and samples its anonymous memory every ms."""
    is_done, seen = threading.Event(), [anonymous_bytes()]

    def watch() -> None:
        while not is_done.is_set():
            seen.append(anonymous_bytes())
            sleep(0.001)

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
        "kept": (anonymous_bytes() - seen[0]) / MEGABYTE,
        "stored": sum(sum(m.weight.plane_bytes().values()) for m in matrices) / MEGABYTE,
    }


def main() -> None:
    arguments = parser(__doc__, rounds=5)
    arguments.add_argument("models", nargs="+", type=Path)
    arguments.add_argument("--once", action="store_true", help="open in this process, print JSON")
    options = arguments.parse_args()
    machine = Machine.choose(options.threads, options.isa)
    if options.once:
        print(json.dumps(open_once(options.models[0], machine)))
        return
    for file in (file for model in options.models for file in model.glob("*.safetensors")):
        with file.open("rb") as content:
            while content.read(1 << 24):
                pass

    def opened(model: Path) -> dict[str, float]:
        command = [sys.executable, __file__, str(model), "--once", "--isa", machine.isa]
        command += ["--threads", str(machine.pool.threads)]
        found: dict[str, float] = json.loads(subprocess.check_output(command))
        return found

    columns = ["model", ("seconds", ".2f"), ("user, s", ".2f"), ("system, s", ".2f")]
    columns += [(f"{when} anonymous memory, MB", ".0f") for when in ("most", "at last")]
    columns += [("planes, MB", ".0f")]
    with Report(options, "Opening a model", machine, columns) as report:
        arms = {str(model): same(opened, model) for model in options.models}
        for name, runs in interleaved(arms, options.rounds).runs.items():
            figures = ([run[figure] for run in runs] for figure in runs[0])
            report.row(Path(name).name, *figures)


if __name__ == "__main__":
    main()
