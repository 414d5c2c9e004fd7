"""Times decoding in both precisions against the bandwidth measured in the same rounds.

    python benchmarks/make_random_llama.py /tmp/llama-1g
    python benchmarks/decode.py /tmp/llama-1g

`share` compares a speed with its limit: the bandwidth over the bytes of BF16 weights, or over those
of 4-bit weights. The bandwidth is that of plain reads of as many bytes as the forward reads.
"""

from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from harness import Report, parser

from specqd._native import Context, Rows
from specqd.bench.rounds import quotients
from specqd.model.model import Machine, Model

PROMPT = [1, 2, 3, 4]


def tokens_per_s(model: Model, tokens: int, _: int) -> float:
    """From the median over `tokens` forwards of one row."""
    context = Context(model.cache.create())
    model.forward([Rows(context, 0, PROMPT, 1)])
    times = []
    for i in range(tokens):
        begun = perf_counter()
        model.forward([Rows(context, len(PROMPT) + i, [5], 1)])
        times.append(perf_counter() - begun)
    model.cache.release(context.slot)
    return 1 / median(times)


def main() -> None:
    arguments = parser(__doc__, rounds=7)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--tokens", type=int, default=8, help="per timing")
    options = arguments.parse_args()
    machine = Machine.choose(options.threads, options.isa)
    model = Model.open(options.model, machine=machine)
    precisions = {
        "exact": (model, options.tokens, model.bf16_bytes_per_forward),
        "fp4": (draft := model.as_draft(), 2 * options.tokens, draft.bytes_per_forward),
    }
    columns = ["precision", ("tokens/s", ".3f"), ("limit", ".3f"), ("share", ".3f")]
    with Report(options, f"Decoding of {options.model.name}", machine, columns) as report:
        arms = {name: partial(tokens_per_s, *each[:2]) for name, each in precisions.items()}
        sizes = [each.bytes_per_forward for each in (model, draft)]
        done = report.rounds(arms, sizes)
        for name, (each, _, limiting_bytes) in precisions.items():
            limits = [1e9 * b / limiting_bytes for b in done.gauged[each.bytes_per_forward]]
            report.row(name, done.runs[name], limits, quotients(done.runs[name], limits))


if __name__ == "__main__":
    main()
