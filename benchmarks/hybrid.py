"""Measures drafts and memory of hybrid models with random weights.

    python benchmarks/hybrid.py make OUT [--size 0.8B]
    python benchmarks/hybrid.py OUT [--only rounds memory]
    specqd bench forward OUT --follow --position 1024

A model has the shape of Qwen3.5-0.8B or 4B (1.5 and 8.4 GB). `specqd bench forward` times its
forwards; this script measures:

- rounds: with drafts of four tokens, nearly all rejected; the shares of the threads' time that the
  recurrence and new states at anchors take.
- memory: the growth of the process for each sequence and for each state that stays cached, both
  without keys and values, and the cache's own counts.
"""

import math
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
from harness import Report, parser
from make_random_llama import SIGMA, write_model
from numpy.typing import NDArray

from specqd import LLM, SamplingParams, _native
from specqd._native import Context, Rows
from specqd.engine.generation import GenerationRequest
from specqd.engine.reports import Stats
from specqd.model.model import Model
from support.families import FAMILY_SHAPES
from support.random_models import Shape, bf16_bits, draw_recurrent

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


def rounds(llm: LLM) -> dict[str, float]:
    """The time of a round with drafts, and the shares of the recurrence and of new states."""
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
    return {"ms per round": seconds / target.forwards * 1e3, **shares}


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
    arguments = parser(__doc__)
    arguments.add_argument("words", nargs="+", metavar="[make] OUT")
    arguments.add_argument("--size", choices=SHAPES, default="0.8B")
    parts = {"rounds": rounds, "memory": lambda llm: memory(llm.model)}
    arguments.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    options = arguments.parse_args()
    *is_make, out = options.words
    if is_make:
        make(Path(out), SHAPES[options.size])
        return
    chain = f"fp4:k={DRAFTED}"
    llm = LLM(out, chain, options.threads, options.isa, cache_positions=1 << 14)
    columns = ["part", "figure", ("value", ".4g")]
    with Report(options, llm.directory.name, llm.model.machine, columns) as report:
        for part in options.only:
            for figure, value in parts[part](llm).items():
                report.row(part, figure, value)


if __name__ == "__main__":
    main()
