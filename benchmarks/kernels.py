"""Times the kernels of each instruction set, from memory and from the cache.

    python benchmarks/kernels.py [--isa NAME ...] [--rows 1 8 ...] [--inputs K ...] [--threads N]

`specqd bench kernels` measures one instruction set on weights in memory. This script measures all
of them, on weights in memory and in the second-level cache, where arithmetic is the limit, and for
inputs of other lengths (Qwen2.5-0.5B: 896 and 4864, 7B: 3584 and 18944).
"""

import argparse
import json
from dataclasses import asdict

from specqd import _native
from specqd.bench.kernels import PRECISIONS, ROWS, Case, measure, random_weights, weights_of
from specqd.model.model import Machine

CACHE_WEIGHTS = 256 * 1024  # per thread: packed, they fit into the second-level cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [n for n in _native.available_isas() if n != "portable"]
    parser.add_argument("--isa", nargs="+", default=names)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--precision", nargs="+", default=PRECISIONS)
    parser.add_argument("--where", nargs="+", default=["memory", "cache"])
    parser.add_argument("--inputs", nargs="+", type=int, default=[2048])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--megabytes", type=float, default=150, help="of fp4 weights in memory")
    args = parser.parse_args()
    machine = Machine.choose(args.threads)
    print(f"{_native.cpu_model()}, {machine.pool.threads} threads")
    cases = [Case(r, isa, m) for r in args.precision for isa in args.isa for m in args.rows]
    results = []
    for where in args.where:
        in_cache = CACHE_WEIGHTS * machine.pool.threads
        for inputs in args.inputs:
            weights = weights_of(args.megabytes) if where == "memory" else in_cache
            packed = random_weights(weights, inputs)
            print(f"{where}, {inputs} inputs, {packed.weights / 1e6:.1f} M weights", flush=True)
            for speed in measure(machine, packed, inputs, cases):
                case = speed.case
                print(
                    f"{case.precision:5} {case.isa:12} M={case.rows:<3}"
                    f" {speed.gweights_per_s:7.2f} Gweights/s {speed.gb_per_s:6.1f} GB/s"
                    f" of {speed.bandwidth_gb_per_s:6.1f}  share {speed.share:5.2f}"
                    f" [{speed.share_range[0]:.2f} .. {speed.share_range[1]:.2f}]"
                    f"  of BF16 {speed.over_bf16_limit:5.2f}",
                    flush=True,
                )
                results.append({"where": where, "inputs": inputs, **asdict(speed)})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
