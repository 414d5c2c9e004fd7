"""Times the kernels of each instruction set, from memory and from the cache.

    python benchmarks/kernels.py [--isa NAME ...] [--rows 1 8 ...] [--inputs K ...] [--threads N]

`specqd bench kernels` measures one instruction set on weights in memory. This script measures all
of them, on weights in memory and in the second-level cache, where arithmetic is the limit, and for
inputs of other lengths (Qwen2.5-0.5B: 896 and 4864, 7B: 3584 and 18944). The range of a share is
its least and greatest value.
"""

from itertools import product

from harness import Report, parser

from specqd import _native
from specqd.bench.kernels import PRECISIONS, ROWS, Case, measure, random_weights, weights_of
from specqd.bench.rounds import Interval
from specqd.model.model import Machine

CACHE_WEIGHTS = 256 * 1024  # per thread: packed, they fit into the second-level cache


def main() -> None:
    names = [name for name in _native.available_isas() if name != "portable"]
    arguments = parser(__doc__, isas=names)
    arguments.add_argument("--rows", nargs="+", type=int, default=ROWS)
    arguments.add_argument("--precision", nargs="+", default=PRECISIONS)
    arguments.add_argument("--where", nargs="+", default=["memory", "cache"])
    arguments.add_argument("--inputs", nargs="+", type=int, default=[2048])
    arguments.add_argument("--megabytes", type=float, default=150, help="of fp4 weights in memory")
    options = arguments.parse_args()
    machine = Machine.choose(options.threads)
    columns = ["weights", "inputs", "precision", "kernels", "rows", ("Gweights/s", ".2f")]
    columns += [("GB/s", ".1f"), ("share of bandwidth", ".2f"), ("of the BF16 limit", ".2f")]
    with Report(options, "Products with random weights", machine, columns) as report:
        for where, inputs in product(options.where, options.inputs):
            in_cache = CACHE_WEIGHTS * machine.pool.threads
            weights = weights_of(options.megabytes) if where == "memory" else in_cache
            cases = [Case(*case) for case in product(options.precision, options.isa, options.rows)]
            for speed in measure(machine, random_weights(weights, inputs), inputs, cases):
                case, share = speed.case, Interval(speed.share, *speed.share_range)
                report.saw([speed.bandwidth_gb_per_s])
                report.row(
                    *(where, inputs, case.precision, case.isa, case.rows),
                    *(speed.gweights_per_s, speed.gb_per_s, share, speed.over_bf16_limit),
                )


if __name__ == "__main__":
    main()
