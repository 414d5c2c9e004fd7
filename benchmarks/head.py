"""Seconds of a draft's forward by the share of the head that it reads, beside the bandwidth.

    python benchmarks/make_random_llama.py /tmp/llama-head --layers 12 --vocab 128000
    python benchmarks/head.py /tmp/llama-head

Interleaved over the heads: medians and quartiles. `scattered` ids, one in each of as many
panels, were seen beside the first ids.
"""

import argparse
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import numpy as np

from specqd import _native
from specqd._native import Context, Rows
from specqd.model.bandwidth import bandwidth_at
from specqd.model.model import Head, Model

ROWS = (1, 2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--scattered", type=int, default=300)
    options = parser.parse_args()
    model = Model.open(options.model, cache_positions=256)
    vocabulary = model.vocabulary
    panels = np.random.default_rng(0).permutation(vocabulary // 16)[: options.scattered]
    model.decoder.partial_head.read([int(panel) * 16 for panel in panels])
    heads = {
        "whole": Head(),
        "half": Head(vocabulary // 2),
        "quarter": Head(vocabulary // 4),
        "eighth": Head(vocabulary // 8),
        "a 32nd": Head(vocabulary // 32),
        "exact": Head(is_exact=True),
        "quarter, exact": Head(vocabulary // 4, True),
    }
    context = Context(model.cache.create())
    model.forward([Rows(context, 0, [0] * 8, 1)])
    drafts = {name: model.as_draft(head) for name, head in heads.items()}
    times: dict[tuple[str, int], list[float]] = {(n, r): [] for n in drafts for r in ROWS}
    moved: dict[tuple[str, int], int] = {}
    bandwidths = []
    for _ in range(options.repeats):
        bandwidths.append(bandwidth_at(model.machine, 10**9))
        for name, rows in times:
            begun = perf_counter()
            drafts[name].forward([Rows(context, 8, list(range(rows)), rows)])
            times[name, rows].append(perf_counter() - begun)
            moved[name, rows] = model.decoder.moved_bytes
    limit = median(bandwidths)
    print(f"{_native.cpu_model()}, {model.machine.isa}: {limit:.1f} GB/s")
    print(f"{'head':16}{'rows':>5}{'ms':>8}{'quartiles':>16}{'MB':>8}{'share':>7}{'x whole':>9}")
    for (name, rows), seconds in times.items():
        low, _, high = (1e3 * each for each in quantiles(seconds, n=4))
        pairs = zip(seconds, times["whole", rows], strict=True)
        ratio = median(mine / whole for mine, whole in pairs)
        share = moved[name, rows] / median(seconds) / limit / 1e9
        print(
            f"{name:16}{rows:5}{1e3 * median(seconds):8.2f}{low:8.2f}{high:8.2f}"
            f"{moved[name, rows] / 1e6:8.0f}{share:7.2f}{ratio:9.3f}"
        )


if __name__ == "__main__":
    main()
