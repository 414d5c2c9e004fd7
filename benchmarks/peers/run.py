"""Measures specqd and the peers in turns on one model, and appends every round to a raw file.

    python benchmarks/peers/prepare.py MODEL --work .peers
    python benchmarks/peers/run.py decode|synthetic|text MODEL --work .peers --raw RAW.jsonl
    python benchmarks/peers/summary.py RAW.jsonl --json RESULT.json

A round is one prompt, completed by every arm, in an order that changes with each round; the
bandwidth is measured before and after. No process sees a prompt twice, because some lookups
remember other requests. The same command continues an interrupted run; a larger --rounds adds
rounds with newly loaded processes, because the layout of memory makes a process faster or slower.
"""

import argparse
import contextlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from arms import BITS, CONTEXT, DECODE, TEXT, Arm, synthetic
from harness import commit, describe_machine
from worker import Worker

from specqd import _native
from specqd.bench.rounds import LARGEST_READ, bandwidths, turns
from specqd.config import read_config
from specqd.formats.safetensors import TensorDirectory
from specqd.model.model import Machine
from specqd.text.tokenizer import Tokenizer

RANDOM_PROMPT_TOKENS = 16
TEXT_PROMPT_CHARACTERS = 1200
CHAT_PROMPT_CHARACTERS = 500
WARM_UP_TOKENS = 12
SPARE = 64  # positions for drafts past the end


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a raw file; they are its first line."""

    experiment: str
    model: str
    arms: tuple[Arm, ...]
    threads: int
    new_tokens: int
    prompts: str


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts as token ids, and one for warming up."""

    warm_up: list[int]
    texts: list[list[int]]


def random_prompts(vocabulary: int, count: int) -> Prompts:
    drawn = np.random.default_rng(0).integers(
        300, vocabulary, size=(count + 1, RANDOM_PROMPT_TOKENS)
    )
    return Prompts(drawn[0].tolist(), drawn[1:].tolist())


def text_prompts(model: Path, file: Path | None, count: int, room: int) -> Prompts:
    """The `prompt` of each line; without a file, windows of Python's standard library. Prompts that
    leave no room for new tokens lose their start."""
    texts = library_texts(TEXT_PROMPT_CHARACTERS) if file is None else read_texts(file)
    tokenizer = Tokenizer.open(model)
    encoded = [tokenizer.encode(text)[-room:] for text in texts[: count + 1]]
    return Prompts(encoded[-1], encoded[:-1])


def chat_prompts(model: Path, file: Path | None, count: int, room: int) -> Prompts:
    """The `prompt` of each line through the chat template, or questions about windows of Python's
    standard library. Files are sorted by kind, so the order is drawn once. Prompts that leave no
    room for new tokens are left out."""
    if file is None:
        windows = library_texts(CHAT_PROMPT_CHARACTERS)
        texts = [f"What does this Python code do?\n\n{window}" for window in windows]
    else:
        texts = read_texts(file)
    Random(0).shuffle(texts)
    tokenizer = Tokenizer.open(model)
    chats = (tokenizer.chat([{"role": "user", "content": text}]) for text in texts)
    encoded = list(islice((chat for chat in chats if len(chat) <= room), count + 1))
    if len(encoded) <= count:
        raise SystemExit(f"{count + 1} prompts are needed; {len(encoded)} are short enough")
    return Prompts(encoded[-1], encoded[:-1])


def read_texts(file: Path) -> list[str]:
    lines = file.read_text("utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines if line.strip()]


def library_texts(characters: int) -> list[str]:
    """Windows of Python's standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text("utf-8")[2000:] for path in sorted(library.glob("[a-l]*.py"))]
    return [text[:characters] for text in texts if len(text) > 8000]


def measure(
    plan: Plan,
    model: Path,
    work: Path,
    prompts: Prompts,
    done: int,
) -> Iterator[dict[str, Any]]:
    """Yields the workers' descriptions, then one record per round."""
    machine = Machine.choose(plan.threads)
    weights = _weights_read(model)
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
            "weights_read": weights,
            "bytes_read": {
                name: w.report["bytes_read"].get(name, round(weights * BITS[arm.weights] / 8))
                for arm in plan.arms
                if (w := workers.get(name := arm.name)) is not None
            },
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
            yield {"prompt": number, "before": before, "after": after, "runs": runs}


def _weights_read(model: Path) -> int:
    """Weights that a token needs: all matrices except an embedding that is not the output head."""
    tensors = TensorDirectory.open(model)
    names = {name for name in tensors if len(tensors[name].shape) == 2}
    if "lm_head.weight" in names:
        names.remove("model.embed_tokens.weight")
    return sum(tensors[name].data.size for name in names)


def machine_description(machine: Machine) -> dict[str, Any]:
    return describe_machine(machine) | {
        "affinity": sorted(os.sched_getaffinity(0)),
        "commit": commit(),
        "python": sys.version.split()[0],
    }


def make_plan(options: argparse.Namespace) -> Plan:
    arms = {"decode": DECODE, "text": TEXT}.get(options.experiment)
    if arms is None:
        arms = synthetic(options.acceptance)
    if options.only:
        arms = tuple(arm for arm in arms if any(word in arm.name for word in options.only))
    is_text = options.experiment == "text"
    source = _source(options.prompts, options.chat) if is_text else "random"
    return Plan(
        options.experiment,
        options.model.name,
        arms,
        options.threads,
        options.new_tokens,
        source,
    )


def _source(file: Path | None, is_chat: bool) -> str:
    return (file.name if file else "standard library") + (", chat" if is_chat else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=["decode", "synthetic", "text"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, help="JSON lines with `prompt`, for text")
    parser.add_argument("--chat", action="store_true", help="ask through the chat template")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=_native.usable_threads())
    parser.add_argument("--acceptance", type=float, default=0.8, help="synthetic")
    parser.add_argument("--only", action="append", help="arms with this in their name")
    options = parser.parse_args()
    model, work = options.model.resolve(), options.work.resolve()
    plan = make_plan(options)
    config = read_config(model)
    if options.experiment == "text":
        room = min(config.max_positions, CONTEXT) - options.new_tokens - SPARE
        make = chat_prompts if options.chat else text_prompts
        prompts = make(model, options.prompts, options.rounds, room)
    else:
        prompts = random_prompts(config.vocab_size, options.rounds)
    header = json.dumps(asdict(plan))
    lines = options.raw.read_text().splitlines() if options.raw.exists() else []
    if lines and lines[0] != header:
        parser.error(f"{options.raw} holds another plan; name another file")
    if not lines:
        options.raw.write_text(header + "\n")
    done = sum("prompt" in json.loads(line) for line in lines[1:])
    for record in measure(plan, model, work, prompts, done):
        with options.raw.open("a") as raw:
            raw.write(json.dumps(record) + "\n")
        if "prompt" in record:
            print(_line(record), flush=True)


def _line(record: dict[str, Any]) -> str:
    runs = record["runs"].items()
    speeds = (
        f"{name}: {len(run['tokens']) / run['wall_s']:.0f}"
        if run.get("wall_s")
        else f"{name}: failed"
        for name, run in runs
    )
    return f"{record['prompt']}: " + ", ".join(speeds)


if __name__ == "__main__":
    main()
