"""Measures specqd and the peers in turns on one model, and appends every round to a raw file.

    python benchmarks/peers/prepare.py MODEL --work .peers
    python benchmarks/peers/run.py EXPERIMENT MODEL --work .peers --raw RAW.jsonl
    python benchmarks/peers/summary.py RAW.jsonl --json RESULT.json

A round is one prompt, completed by every arm, in an order that changes with each round; the
bandwidth is measured before and after. No process sees a prompt twice, because some lookups
remember other requests. The same command continues an interrupted run; a larger --rounds adds
rounds with newly loaded processes, because the layout of memory makes a process faster or slower.
The rounds alternate between the files of prompts.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from arms import BITS, CONTEXT, DECODE, FORMATS, LONG, LONG_CONTEXT, TEXT, Arm, synthetic
from harness import commit, describe_machine
from prompts import Prompts, PromptSet, alternating, random_prompts
from worker import Worker

from specqd import _native
from specqd.bench.rounds import LARGEST_READ, bandwidths, turns
from specqd.config import read_config
from specqd.formats.safetensors import TensorDirectory
from specqd.model.model import Machine

WARM_UP_TOKENS = 12
SPARE = 64  # positions for drafts past the end


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a raw file; they are its first line. `prompts`: the sets, in their turns."""

    experiment: str
    model: str
    arms: tuple[Arm, ...]
    threads: int
    new_tokens: int
    prompts: str


def measure(
    plan: Plan,
    model: Path,
    work: Path,
    prompts: Prompts,
    done: int,
) -> Generator[dict[str, Any], None, None]:
    """Yields the workers' descriptions, then one record per round."""
    machine = Machine.choose(plan.threads)
    weights = _weights(model, is_read=True)
    sizes = [min(round(weights * bits / 8), LARGEST_READ) for bits in (16, 4.25)]
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        absent: dict[str, str] = {}
        for process in dict.fromkeys(arm.process for arm in plan.arms):
            own = [arm for arm in plan.arms if arm.process == process]
            try:
                worker = Worker(own, model, work, plan.threads)
                stack.callback(worker.close)
                for arm in own:
                    worker.run(arm, prompts.warm_up, WARM_UP_TOKENS)
                    worker.run(arm, prompts.warm_up[::-1], WARM_UP_TOKENS)
                    workers[arm.name] = worker
            except RuntimeError as error:
                absent |= {arm.name: str(error) for arm in own}
                print(f"absent: {process}: {error}", file=sys.stderr)
        yield {
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine_description(machine),
            "versions": {w.arms[0].engine: w.report["version"] for w in workers.values()},
            "notes": {name: w.report["notes"] for name, w in workers.items()},
            "parameters": _weights(model, is_read=False),
            "stored_bytes": {name: w.report["stored_bytes"] for name, w in workers.items()},
            "eos_token_ids": list(read_config(model).eos_token_ids),
            "weights_read": weights,
            "bytes_read": {
                name: read
                for arm in plan.arms
                if (w := workers.get(name := arm.name)) is not None
                and (read := _bytes_read(arm, w, weights)) is not None
            },
            "small": (work / model.name / "small").resolve().name,
            "absent": absent,
        }
        present = [arm for arm in plan.arms if arm.name in workers]
        for number in range(done, len(prompts.texts)):
            before = bandwidths(machine, sizes)
            runs: dict[str, Any] = {}
            for arm in (present[turn] for turn in turns(number, len(present))):
                try:
                    run = workers[arm.name].run(arm, prompts.texts[number], plan.new_tokens)
                    runs[arm.name] = asdict(run)
                except RuntimeError as error:
                    runs[arm.name] = {"failed": str(error)}
            after = bandwidths(machine, sizes)
            yield {
                "prompt": number,
                "set": prompts.sets[number],
                "before": before,
                "after": after,
                "memory": {
                    name: asdict(memory)
                    for name, worker in workers.items()
                    if (memory := worker.memory()) is not None
                },
                "runs": runs,
            }


def _weights(model: Path, *, is_read: bool) -> int:
    """Weights of all matrices; with `is_read`, those that a token needs: an embedding that is not
    the output head does not count."""
    tensors = TensorDirectory.open(model)
    names = {name for name in tensors if len(tensors[name].shape) == 2}
    if is_read and "lm_head.weight" in names:
        names.remove("model.embed_tokens.weight")
    return sum(tensors[name].data.size for name in names)


def _bytes_read(arm: Arm, worker: Worker, weights: int) -> int | None:
    """Bytes of weights per token; None if matrices differ in their formats."""
    bits = BITS.get(arm.weights)
    reported: dict[str, int] = worker.report["bytes_read"]
    return reported.get(arm.name) or (round(weights * bits / 8) if bits else None)


def machine_description(machine: Machine) -> dict[str, Any]:
    return describe_machine(machine) | {
        "affinity": sorted(os.sched_getaffinity(0)),
        "commit": commit(),
        "python": sys.version.split()[0],
    }


def make_plan(options: argparse.Namespace, sets: Sequence[PromptSet]) -> Plan:
    arms = {"decode": DECODE, "text": TEXT, "formats": FORMATS, "long": LONG}.get(
        options.experiment
    )
    if arms is None:
        arms = synthetic(options.acceptance)
    if options.only:
        arms = tuple(arm for arm in arms if any(word in arm.name for word in options.only))
    return Plan(
        options.experiment,
        options.model.name,
        arms,
        options.threads,
        options.new_tokens,
        "; ".join(each.name for each in sets) or "random",
    )


def make_prompts(options: argparse.Namespace, model: Path, sets: Sequence[PromptSet]) -> Prompts:
    config = read_config(model)
    if not sets:
        return random_prompts(config.vocab_size, options.rounds)
    context = LONG_CONTEXT if options.experiment == "long" else CONTEXT
    room = min(config.max_positions, context) - options.new_tokens - SPARE
    return alternating(sets, model, options.rounds, room)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("experiment", choices=["decode", "synthetic", "text", "formats", "long"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument(
        "--prompts",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="JSON lines with `prompt`, not for decode and synthetic; no FILE: Python's library",
    )
    parser.add_argument(
        "--chats", type=Path, nargs="*", metavar="FILE", help="the same, for the chat template"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--minutes", type=float, help="begin no other round after this time")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=_native.usable_threads())
    parser.add_argument("--acceptance", type=float, default=0.8, help="synthetic")
    parser.add_argument("--only", action="append", help="arms with this in their name")
    return parser


def main() -> None:
    begun = monotonic()
    parser = _parser()
    options = parser.parse_args()
    model, work = options.model.resolve(), options.work.resolve()
    sets = PromptSet.named(options.prompts, options.chats)
    if bool(sets) != (options.experiment in ("text", "formats", "long")):
        parser.error("text, formats and long, and only these, need --prompts or --chats")
    plan, prompts = make_plan(options, sets), make_prompts(options, model, sets)
    header = json.dumps(asdict(plan))
    lines = options.raw.read_text().splitlines() if options.raw.exists() else []
    if lines and lines[0] != header:
        parser.error(f"{options.raw} holds another plan; name another file")
    if not lines:
        options.raw.write_text(header + "\n")
    done = sum("prompt" in json.loads(line) for line in lines[1:])
    if done >= options.rounds:
        return
    with contextlib.closing(measure(plan, model, work, prompts, done)) as records:
        for record in records:
            with options.raw.open("a") as raw:
                raw.write(json.dumps(record) + "\n")
            if "prompt" not in record:
                continue
            print(_line(record), flush=True)
            if options.minutes is not None and monotonic() - begun > 60 * options.minutes:
                break


def _line(record: dict[str, Any]) -> str:
    runs = record["runs"].items()
    speeds = (
        f"{name}: {len(run['tokens']) / run['wall_s']:.0f}"
        if run.get("wall_s")
        else f"{name}: failed"
        for name, run in runs
    )
    return f"{record['prompt']} ({record['set']}): " + ", ".join(speeds)


if __name__ == "__main__":
    main()
