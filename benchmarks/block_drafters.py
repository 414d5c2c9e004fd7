"""Prints what a DFlash drafter of random weights costs, and what that allows: a projection.

    python benchmarks/block_drafters.py MODEL [--depth 36] [--dflash2]

The drafter has the model's own shapes, 5 layers and 5 taps, as z-lab's have for Qwen3; with
--dflash2, it is a DFlash2 drafter. A prompt is forwarded and absorbed; then exact rows and blocks
are forwarded after it. The time of a block includes sampling. Times are the least of all rounds,
because interference only adds time. With --depth, those of the model are scaled to so many layers:
those of rows by the weights, that of the prompt by the layers.

The projection assumes acceptance. Plain decoding takes one exact row for a token; a round takes a
block, the exact rows that verify it, and 2 % for the rest. Acceptance lengths are those of blocks
of 16 rows; each token has the same chance, so that shorter blocks have shorter ones.
"""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from harness import Report, parser, same

from specqd._native import Rows, Sequence
from specqd.bench.rounds import interleaved
from specqd.config import DecoderConfig
from specqd.model.dflash import BlockFiles, BlockHead, load_block_drafter
from specqd.model.model import Machine, Model, Precision
from support.dflash_cases import new_sequence, sample_block
from support.random_dflash import BlockShape, make_drafter
from support.random_models import Shape

LAYERS, BLOCK, REST = 5, 16, 0.02
ROWS = (1, 2, 4, 8, 12, 16)
LENGTHS = (3.66, 4.24, 5.48, 6.49)  # published ones of Qwen3-4B and 8B, greedy and sampled

Arms = dict[str, Callable[[int], float]]


@dataclass
class Case:
    """A model, its drafter in both precisions, and a text that both have read."""

    model: Model
    heads: dict[Precision, BlockHead]
    tokens: list[int]
    text: Sequence

    @classmethod
    def open(cls, options: Namespace, machine: Machine, folder: Path) -> "Case":
        length = options.prompt
        model = Model.open(options.model, machine=machine, cache_positions=4 * length)
        files = BlockFiles.open(_drafter(folder, model.config, options.dflash2), model.config)
        decoder = load_block_drafter(files, model)
        heads = {each: BlockHead(files, decoder, model, each) for each in Precision}
        tokens = np.random.default_rng(1).integers(0, model.vocabulary, length).tolist()
        case = cls(model, heads, tokens, new_sequence([*tokens, 1]))
        model.forward([Rows(model.context(case.text), 0, tokens, 0)])
        for head in heads.values():
            head.draft_for(model.decoder)
            case.block_s(head, BLOCK)  # absorbs the context
        return case

    def rows_s(self, count: int) -> float:
        """Seconds of an exact forward of `count` rows after the text."""
        context, begun = self.model.context(self.text), perf_counter()
        self.model.forward([Rows(context, len(self.tokens), [1] * count, count)])
        return perf_counter() - begun

    def block_s(self, head: BlockHead, count: int) -> float:
        """Seconds of a block, whose tokens are sampled one after the other."""
        block, begun = head.block_rows(self.text, count), perf_counter()
        head.forward([block])
        sample_block(head, self.text, count)
        return perf_counter() - begun

    def prompt_s(self) -> float:
        """Seconds of forwarding the text anew, without logits."""
        sequence, begun = new_sequence([*self.tokens, 1]), perf_counter()
        self.model.forward([Rows(self.model.context(sequence), 0, self.tokens, 0)])
        seconds = perf_counter() - begun
        self.model.release(sequence)
        return seconds

    def absorbed_s(self, head: BlockHead) -> float:
        """Seconds of making the text's features the context of a drafter."""
        sequence = new_sequence([*self.tokens, 1])
        self.model.forward([Rows(self.model.context(sequence), 0, self.tokens, 0)])
        rows, begun = Rows(head.context(sequence), 0, [], 0), perf_counter()
        head.forward([rows])
        seconds = perf_counter() - begun
        assert head.readiness(sequence)[0]
        head.release(sequence)
        self.model.release(sequence)
        return seconds

    def arms(self) -> Arms:
        arms: Arms = {f"exact, {n} rows": same(self.rows_s, n) for n in ROWS}
        for precision, head in self.heads.items():
            for rows in (8, BLOCK):
                name = f"block of {rows}, {precision.value}"
                arms[name] = same(self.block_s, head, rows)
        arms["prompt"] = same(self.prompt_s)
        arms["absorption"] = same(self.absorbed_s, self.heads[Precision.FP4])
        return arms


def _drafter(folder: Path, config: DecoderConfig, is_dflash2: bool) -> Path:
    target = Shape(hidden=config.hidden_size, vocab=config.vocab_size, layers=config.num_layers)
    taps = tuple(1 + round(i * (config.num_layers - 2) / (LAYERS - 1)) for i in range(LAYERS))
    block = BlockShape(
        taps=taps, layers=LAYERS, heads=config.num_heads, kv_heads=config.num_kv_heads,
        head_dim=config.head_dim, ffn=config.intermediate_size, block=BLOCK,
        convolution=(2, 16) if is_dflash2 else None, selector=(256, 16) if is_dflash2 else None,
    )  # fmt: skip
    return make_drafter(folder, target, block, seed=1)


def growth(config: DecoderConfig, depth: int) -> float:
    """The weights of the model with `depth` layers over those that it has."""
    heads = config.num_heads + config.num_kv_heads
    attention = 2 * config.hidden_size * config.head_dim * heads
    layer = attention + 3 * config.hidden_size * config.intermediate_size
    output = config.hidden_size * config.vocab_size
    return (output + depth * layer) / (output + config.num_layers * layer)


def length_at(rows: int, length: float) -> float:
    """The acceptance length at `rows` rows, if it is `length` at BLOCK rows."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        chance = (low + high) / 2
        if sum(chance**i for i in range(BLOCK)) < length:
            low = chance
        else:
            high = chance
    return sum(low**i for i in range(rows))


def times_plain(rows: int, length: float, exact: dict[int, float], block_s: float) -> float:
    return length_at(rows, length) * exact[1] / (exact[rows] + block_s + REST * exact[1])


def main() -> None:
    arguments = parser(__doc__, rounds=9)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--depth", type=int, help="layers to which times are scaled")
    arguments.add_argument("--prompt", type=int, default=512, help="tokens")
    arguments.add_argument("--dflash2", action="store_true", help="a DFlash2 drafter")
    options = arguments.parse_args()
    machine = Machine.choose(options.threads, options.isa)
    with TemporaryDirectory() as folder:
        case = Case.open(options, machine, Path(folder))
        runs = interleaved(case.arms(), options.rounds).runs
    config = case.model.config
    depth = options.depth or config.num_layers
    by_weights, by_layers = growth(config, depth), depth / config.num_layers
    seconds = {name: min(times) for name, times in runs.items()}
    exact = {rows: by_weights * seconds[f"exact, {rows} rows"] for rows in ROWS}
    prompt_s = by_layers * seconds["prompt"]
    title = f"Costs of a block drafter, {depth} layers of {config.hidden_size}"
    columns = ["forward", ("ms", ".1f"), ("of its base", ".3f")]
    with Report(options, title, machine, columns) as report:
        for rows, each in exact.items():
            report.row(f"exact, {rows} rows", 1e3 * each, each / exact[1])
        for name in (name for name in seconds if name.startswith("block")):
            report.row(name, 1e3 * seconds[name], seconds[name] / exact[1])
        report.row(f"prompt of {options.prompt}", 1e3 * prompt_s, 1.0)
        report.row("its absorption", 1e3 * seconds["absorption"], seconds["absorption"] / prompt_s)
    print("\nProjected times plain, by the acceptance length at 16 rows (8 rows; 16 rows):")
    for length in LENGTHS:
        found = (
            times_plain(rows, length, exact, seconds[f"block of {rows}, fp4"])
            for rows in (8, BLOCK)
        )
        print(f"{length:.2f}: " + "; ".join(f"{each:.2f}" for each in found))


if __name__ == "__main__":
    main()
