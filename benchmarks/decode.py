"""Times decoding in both precisions against the bandwidth measured in the same rounds.

    python benchmarks/make_random_llama.py /tmp/llama-1g
    python benchmarks/decode.py /tmp/llama-1g

Each round times the bandwidth, the exact precision, the fp4 precision and the bandwidth again, so
that a busy machine slows all of them. Figures are medians over rounds with their range. The
bandwidth is that of a plain read of as many bytes as the forward reads.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

from specqd._native import Context, Rows
from specqd.model.bandwidth import bandwidth_at
from specqd.model.model import Machine, Model

PROMPT = [1, 2, 3, 4]


def seconds_per_token(model: Model, tokens: int) -> float:
    """Median over `tokens` forwards of one row."""
    context = Context(model.cache.create())
    model.forward([Rows(context, 0, PROMPT, 1)])
    times = []
    for i in range(tokens):
        begun = perf_counter()
        model.forward([Rows(context, len(PROMPT) + i, [5], 1)])
        times.append(perf_counter() - begun)
    model.cache.release(context.slot)
    return median(times)


def measure(model: Model, rounds: int, tokens: int) -> dict[str, list[float]]:
    machine, draft = model.machine, model.as_draft()
    exact_bytes, draft_bytes = model.bytes_per_forward, draft.bytes_per_forward
    out: dict[str, list[float]] = {key: [] for key in ("exact", "draft", "of_bf16", "of_mxfp4")}
    out["bandwidth"] = []
    for _ in range(rounds):
        before = bandwidth_at(machine, exact_bytes), bandwidth_at(machine, draft_bytes)
        exact = seconds_per_token(model, tokens)
        drafted = seconds_per_token(draft, tokens * 2)
        after = bandwidth_at(machine, exact_bytes), bandwidth_at(machine, draft_bytes)
        at_exact, at_draft = ((a + b) / 2 for a, b in zip(before, after, strict=True))
        out["exact"].append(1 / exact)
        out["draft"].append(1 / drafted)
        out["of_bf16"].append(model.bf16_bytes_per_forward / exact / at_exact / 1e9)
        out["of_mxfp4"].append(draft_bytes / drafted / at_draft / 1e9)
        out["bandwidth"].append(at_exact)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=8, help="per timing")
    options = parser.parse_args()
    machine = Machine.choose(options.threads, options.isa)
    begun = perf_counter()
    model = Model.open(options.model, machine=machine)
    print(machine)
    print(f"loaded and packed in {perf_counter() - begun:.1f} s")
    results = measure(model, options.rounds, options.tokens)
    labels = {
        "bandwidth": "bandwidth, GB/s",
        "exact": "exact precision, tokens/s",
        "of_bf16": "  of bandwidth / BF16 bytes",
        "draft": "fp4 precision, tokens/s",
        "of_mxfp4": "  of bandwidth / MXFP4 bytes",
    }
    for key, label in labels.items():
        values = sorted(results[key])
        print(f"{label:30}{median(values):9.3f}   [{values[0]:.3f} .. {values[-1]:.3f}]")
    print(json.dumps({"isa": machine.isa, "threads": machine.pool.threads, **results}))


if __name__ == "__main__":
    main()
