"""Times hybrids of random weights: decoding, drafts and prompts against the bandwidth; memory.

    python benchmarks/hybrid.py make OUT [--size 0.8B]
    python benchmarks/hybrid.py OUT [--only forwards rounds memory]

A model has the shape of Qwen3.5-0.8B or 4B (1.5 and 8.4 GB). Prints one JSON object for each part:

- forwards: those of `specqd bench forward --follow`, one row from position 1,024 on in both
  precisions, then five rows and a prompt of 512, with all stages. The share of the bandwidth counts
  weights, keys, values and states.
- rounds: with drafts of four tokens, nearly all rejected; the shares that the recurrence and new
  states at anchors take.
- memory: what the process grew by for each sequence and each state that stays cached, both without
  keys and values, and what the cache counts.
"""

import argparse
import json
import math
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from make_random_llama import SIGMA, write_model

from specqd import LLM, SamplingParams, _native
from specqd._native import Context, Rows
from specqd.bench.stages import measure
from specqd.engine.generation import GenerationRequest
from specqd.engine.reports import Stats
from specqd.model.model import Model, Precision
from support.family_shapes import FAMILY_SHAPES
from support.random_models import Shape, bf16_bits
from support.random_recurrent import draw_recurrent

_HEADS = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}
_COMMON = replace(
    FAMILY_SHAPES["qwen3_5_text"], kv_heads=2, head_dim=256, vocab=248320, context=8192,
    is_tied=True, is_peaked=False,
)  # fmt: skip
SHAPES = {
    "0.8B": replace(
        _COMMON, hidden=1024, layers=24, heads=8, ffn=3584,
        extra=_HEADS | {"linear_num_key_heads": 16, "linear_num_value_heads": 16,
                        "full_attention_interval": 4},
    ),
    "4B": replace(
        _COMMON, hidden=2560, layers=32, heads=16, kv_heads=4, ffn=9216,
        extra=_HEADS | {"linear_num_key_heads": 16, "linear_num_value_heads": 32,
                        "full_attention_interval": 4},
    ),
}  # fmt: skip
POOL = 1 << 24  # weights that all matrices are made of
BEGIN, TOKENS, DRAFTED = 1024, 64, 4
SEQUENCES = 4


def make(out: Path, shape: Shape) -> None:
    """Writes the model. Its weights are drawn from a pool, so that 8 GB take half a minute."""
    rng = np.random.default_rng(0)
    pool = bf16_bits(rng.standard_normal(POOL, np.float32) * np.float32(SIGMA))

    def parts(name: str, size: tuple[int, ...]) -> Iterator[NDArray[np.uint16]]:
        drawn = draw_recurrent(rng, name, size)
        if drawn is None and len(size) == 1:
            drawn = np.zeros(size, np.float32)
        if drawn is not None:
            yield bf16_bits(drawn)
            return
        left = math.prod(size)
        while left > 0:
            first = int(rng.integers(POOL // 2))
            part = pool[first : first + min(left, POOL // 2)]
            yield part
            left -= len(part)

    write_model(out, shape, parts)


def forwards(model: Model) -> list[dict[str, Any]]:
    """One row at a time as in decoding, a verified draft of four tokens, and a prompt."""
    times = [
        measure(model, precision, 1, BEGIN, TOKENS, follow=True)
        for precision in (Precision.EXACT, Precision.FP4)
    ]
    times.append(measure(model, Precision.EXACT, DRAFTED + 1, BEGIN + 8, 9))
    times.append(measure(model, Precision.EXACT, 512, 0, 2))
    return [each.described() for each in times]


def rounds(llm: LLM) -> dict[str, float]:
    """Measures the share of new states in rounds with drafts, most of which are rejected."""
    engine, pool = llm.engine, llm.model.machine.pool
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    [generation] = engine.submit(GenerationRequest([list(range(1, BEGIN))], params))
    engine.step()
    before = Stats.of(engine)
    pool.start_trace()
    begun = perf_counter()
    while generation.finish_reason is None:
        engine.step()
    seconds = perf_counter() - begun
    spans = pool.stop_trace()
    parts = {
        name: sum(end - start for _, stage, start, end in spans if stage == name)
        for name in ("recurrence", "next states")
    }
    shares = {name: part / 1e9 / pool.threads / seconds for name, part in parts.items()}
    target = Stats.of(engine).since(before).levels[0]
    return {"ms": seconds / target.forwards * 1e3, **shares}


def memory(model: Model) -> dict[str, float]:
    cache = model.cache
    page = cache.page_bytes / 1e6
    before, sizes = cache.cached_slots, []
    for i in range(SEQUENCES + 1):  # the first one makes room for rows and states too
        context = _decoded(model, 100 + i, _native.PAGE_POSITIONS, 1)
        cache.publish(context.slot, _tokens(100 + i, _native.PAGE_POSITIONS))
        cache.release(context.slot)
        sizes.append(_resident_mb())
    cached_slots = cache.cached_slots
    sequences, sizes_held = [], []
    for i in range(SEQUENCES + 1):
        sequences.append(_decoded(model, 1 + i, BEGIN, TOKENS))
        sizes_held.append(_resident_mb())
    slots = (cache.used_slots - cached_slots) / len(sequences)
    for context in sequences:
        cache.release(context.slot)
    pages = -(-(BEGIN + TOKENS) // _native.PAGE_POSITIONS)
    return {
        "sequence_mb": float(np.median(np.diff(sizes_held))) - pages * page,
        "slots_of_a_sequence": slots,
        "most_of_a_sequence_mb": cache.state_bytes / 1e6,
        "cached_mb": float(np.median(np.diff(sizes))) - page,
        "cached_slots": cached_slots - before,
        "slot_mb": cache.slot_bytes / 1e6,
        "page_mb": page,
    }


def _tokens(first: int, count: int) -> list[int]:
    return [1 + (first + i) % 1000 for i in range(count)]


def _decoded(model: Model, first: int, length: int, steps: int) -> Context:
    """A sequence whose last `steps` rows were forwarded one at a time."""
    tokens = _tokens(first, length + steps)
    context = Context(model.cache.create())
    context.match(tokens, len(tokens))
    model.forward([Rows(context, 0, tokens[:length], 0)])
    for at in range(length, length + steps):
        model.forward([Rows(context, at, tokens[at : at + 1], 1)])
    return context


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="+", metavar="[make] OUT")
    parser.add_argument("--size", choices=SHAPES, default="0.8B")
    parts = {
        "forwards": lambda llm: forwards(llm.model),
        "rounds": rounds,
        "memory": lambda llm: memory(llm.model),
    }
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    options = parser.parse_args()
    if options.words[0] == "make":
        make(Path(options.words[1]), SHAPES[options.size])
        return
    llm = LLM(options.words[0], f"fp4:k={DRAFTED}", cache_positions=1 << 14)
    print(llm.model.machine, file=sys.stderr)
    for name in options.only:
        print(json.dumps({name: parts[name](llm)}), flush=True)


if __name__ == "__main__":
    main()
