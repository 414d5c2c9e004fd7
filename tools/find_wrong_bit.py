"""Finds the first layer and stage at which two ways of computing the same rows differ in bits.

    python tools/find_wrong_bit.py MODEL isa=avx512 isa=portable
    python tools/find_wrong_bit.py MODEL rows=64 rows=1 --prompt "def main():"
    python tools/find_wrong_bit.py MODEL drafts=0 drafts=4
    python tools/find_wrong_bit.py MODEL threads=1 threads=2,batch=3
    python tools/find_wrong_bit.py MODEL model=MODEL model=PACKED

A way is a list of settings, separated by commas; `-` is the way of the defaults. The settings are:

    isa=NAME       the instruction set
    threads=N      the number of threads
    rows=N         rows per forward
    batch=N        sequences per forward; the others repeat the text with other tokens
    drafts=N       before each forward, N rows are written into the cache by a draft's forward
    model=PATH     another form of the same model, such as its packed one
    precision=P    exact or fp4

Exit status: 0 if all bits are equal, 1 if some differ, 2 for a usage error.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from specqd._native import Context, Rows
from specqd.errors import SpecqdError
from specqd.hub import resolve
from specqd.model.model import Machine, Model, Precision
from specqd.text.tokenizer import Tokenizer

TEXT = "The quick brown fox jumps over the lazy dog. def add(a, b): return a + b\n" * 4


@dataclass(frozen=True, slots=True)
class Way:
    """One way of computing the rows of a text."""

    model: str
    isa: str | None = None
    threads: int | None = None
    rows: int = 64
    batch: int = 1
    drafts: int = 0
    precision: str = "exact"

    @classmethod
    def parse(cls, text: str, model: str) -> "Way":
        """Raises ValueError for a setting that is not known."""
        way = cls(model)
        kinds = {field.name: field.type for field in fields(cls)}
        for setting in text.split(",") if text != "-" else []:
            name, equals, value = setting.partition("=")
            if not equals or name not in kinds:
                raise ValueError(f"{setting}: not a setting; choose of {', '.join(kinds)}")
            way = replace(way, **{name: value if "str" in str(kinds[name]) else int(value)})
        return way


@dataclass(frozen=True, slots=True)
class Place:
    """A stage of one row's computation. Places are ordered as they are computed."""

    layer: int  # -1: before the layers
    order: int  # among the stages of its layer
    stage: str


Hashes = dict[Place, dict[int, int]]  # by position: a hash of the row's bits


def hashes(way: Way, tokens: Sequence[int]) -> Hashes:
    """Computes the text in this way, and returns a hash of every row after every stage."""
    machine = Machine.choose(way.threads, way.isa)
    positions = len(tokens) + way.drafts + 1
    exact = Model.open(
        resolve(way.model), machine=machine, cache_positions=(way.batch + 1) * 2 * positions
    )
    draft = exact.as_draft()
    model = exact if way.precision == "exact" else draft
    contexts = [Context(exact.cache.create()) for _ in range(way.batch)]
    texts = [[(token + i) % exact.config.vocab_size for token in tokens] for i in range(way.batch)]
    found: Hashes = {}
    for first in range(0, len(tokens), way.rows):
        if way.drafts:
            guesses = [[0] * way.drafts for _ in texts]
            draft.forward(list(_rows(contexts, guesses, first, 0, way.drafts)))
        count = min(way.rows, len(tokens) - first)
        exact.decoder.record_bits()
        model.forward(list(_rows(contexts, texts, first, first, count)))
        for place, row_hashes in _placed(exact.decoder.take_bits()):
            by_position = found.setdefault(place, {})
            by_position.update({first + i: each for i, each in enumerate(row_hashes[:count])})
    return found


def _rows(
    contexts: Sequence[Context], texts: Sequence[list[int]], start: int, first: int, count: int
) -> Iterator[Rows]:
    """Rows at positions from `start`, with logits, so that no row stops at an early layer."""
    for context, text in zip(contexts, texts, strict=True):
        yield Rows(context, start, text[first : first + count], count)


def _placed(stages: Sequence[tuple[int, str, np.ndarray]]) -> Iterator[tuple[Place, list[int]]]:
    order, last = 0, None
    for layer, stage, row_hashes in stages:
        order = order + 1 if layer == last else 0
        last = layer
        yield Place(layer, order, stage), row_hashes.tolist()


def first_difference(one: Hashes, other: Hashes) -> str | None:
    """Names the first place whose bits differ, and where in the text; None: all are equal."""
    if one.keys() != other.keys():
        return "the two ways have different stages: they are not two ways of one model"
    for place in sorted(one, key=lambda place: (place.layer, place.order)):
        differing = [at for at in one[place] if one[place][at] != other[place].get(at)]
        if differing:
            layer = f"layer {place.layer}" if place.layer >= 0 else "before the layers"
            return (
                f"{layer}, stage {place.stage!r}: {len(differing)} of {len(one[place])} rows "
                f"differ, the first at position {min(differing)}"
            )
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a directory, a GGUF file or a short name")
    parser.add_argument("ways", nargs=2, metavar="WAY")
    parser.add_argument("--prompt", default=TEXT)
    parser.add_argument("--tokens", type=int, default=80, help="the length of the text")
    given = parser.parse_args()
    try:
        ways = [Way.parse(text, given.model) for text in given.ways]
        for way in ways:
            Precision.named(way.precision)
        tokens = Tokenizer.open(resolve(given.model)).encode(given.prompt)[: given.tokens]
        found = first_difference(*(hashes(way, tokens) for way in ways))
    except (SpecqdError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(found or f"all bits are equal: {len(tokens)} rows, every layer and stage")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
