"""Tests that a batch over Ray loses and repeats no answer while workers and drivers are killed.

    python benchmarks/batch_kills.py [MODEL] [--lines 5000] [--workers 10] [--drivers 3] [--seed 0]

Starts a Ray head on this machine. Answers a file with `specqd batch` alone, then with `specqd batch
--ray` and two workers of one core each. Meanwhile random workers and drivers get SIGKILL; a killed
driver is started again. The exit status is 1 if the two files differ as sets of lines. Needs
`specqd[ray]`.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specqd.hub import shipped_model

PORT = 6399
WORKER = b"ray::MapWorker"  # how Ray Data names the processes of an actor pool


def write_requests(path: Path, count: int, rng: random.Random) -> None:
    words = Path(os.__file__).read_text().split()
    with path.open("w") as file:
        for i in range(count):
            body: dict[str, Any] = {"prompt": " ".join(rng.choices(words, k=rng.randrange(1, 12)))}
            body |= {"max_tokens": rng.randrange(1, 10), "temperature": rng.choice([0, 0.8])}
            if rng.random() < 0.01:
                body["max_tokens"] = 100_000  # refused by the model
            line = {"custom_id": f"line {i}", "method": "POST", "url": "/v1/completions"}
            file.write(json.dumps(line | {"body": body}) + "\n")


def worker_pids(raylet: int) -> list[int]:
    """The processes of the actor pool, all of them children of our raylet."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == raylet and (path / "cmdline").read_bytes().startswith(WORKER):
                found.append(int(path.name))
        except (OSError, ValueError):
            continue
    return found


def start_head(folder: Path) -> Any:
    """Starts a head of two CPUs as children of this process; returns Ray's node object."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    params = RayParams(
        gcs_server_port=PORT,
        num_cpus=2,
        object_store_memory=200_000_000,
        include_dashboard=False,
        temp_dir=str(folder),
    )
    return Node(params, head=True, shutdown_at_exit=True)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def answer_with_kills(
    command: list[str], out: Path, whole: int, raylet: int, kills: list[str], rng: random.Random
) -> list[str]:
    """Runs the command to its end; kills workers and drivers at random sizes of its output."""
    done: list[str] = []
    goals = sorted(rng.randrange(whole * 9 // 10) for _ in kills)
    process = subprocess.Popen(command)
    while True:
        if process.poll() is not None:
            if process.returncode:
                sys.exit(f"the driver ended with status {process.returncode}")
            return done
        time.sleep(0.05)
        if len(done) == len(kills) or size(out) < goals[len(done)]:
            continue
        if kills[len(done)] == "driver":
            process.kill()
            process.wait()
            process = subprocess.Popen(command)
        elif pids := worker_pids(raylet):
            os.kill(rng.choice(pids), signal.SIGKILL)
        else:
            continue  # no worker has started yet
        done.append(f"{kills[len(done)]} at {size(out)} of {whole} bytes")
        print(done[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=10, help="kills of workers")
    parser.add_argument("--drivers", type=int, default=3, help="kills of the driver")
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    rng, model = random.Random(settings.seed), settings.model or shipped_model()
    with TemporaryDirectory() as name:
        source, alone, out = (Path(name) / each for each in ("in", "alone", "out"))
        write_requests(source, settings.lines, rng)
        program = [sys.executable, "-m", "specqd", "batch", str(source), str(model), "-o"]
        begun = time.perf_counter()
        subprocess.run([*program, str(alone)], check=True)
        print(f"alone: {time.perf_counter() - begun:.0f} s", flush=True)
        head = start_head(Path(name) / "ray")
        try:
            [raylet] = [each.process.pid for each in head.all_processes["raylet"]]
            kills = ["worker"] * settings.workers + ["driver"] * settings.drivers
            rng.shuffle(kills)
            command = [*program, str(out), "--ray", f"127.0.0.1:{PORT}", "--threads", "1"]
            begun = time.perf_counter()
            done = answer_with_kills(command, out, size(alone), raylet, kills, rng)
            print(f"with {len(done)} kills: {time.perf_counter() - begun:.0f} s", flush=True)
        finally:
            head.kill_all_processes(check_alive=False, allow_graceful=False)
        expected, found = (path.read_bytes().splitlines() for path in (alone, out))
        if sorted(expected) != sorted(found) or len(done) < len(kills):
            others = sorted(set(found) - set(expected))
            for line in others[:3]:
                start = line.partition(b'"response"')[0]
                pair = [each for each in expected if each.startswith(start)]
                print(line.decode(), *(each.decode() for each in pair), sep="\n")
            sys.exit(
                f"{len(found)} lines of {len(expected)}, {len(others)} of them others; "
                f"{len(done)} of {len(kills)} kills"
            )
        print(f"{len(found)} lines, each that of the undisturbed run")


if __name__ == "__main__":
    main()
