"""The same bits for any draft, draft length, number of threads, instruction set, batch and way of
the prompt into the cache."""

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd._native import Level, NoDraft, available_isas
from specqd.llm.chains import Drafts
from specqd.model.model import Model
from support import drafting, exactness, subjects
from support.broken_models import KeepsDraftedCache
from support.covering import Pair, covering_array
from support.exactness import (
    Cell,
    Decoding,
    Drafted,
    Trace,
    open_model,
)
from support.families import FAMILY_SHAPES
from support.slow import values
from support.subjects import Request, Subject
from support.trained_models import SHARED_MODELS

LEAST_TOKENS = 50_000
TRAINED = {subject.name: subject for subject in subjects.trained_subjects(SHARED_MODELS)}
FACTORS = {
    "isa": exactness.isas(),
    "draft": drafting.DRAFTS,
    "model": (*subjects.RANDOM_SHAPES, *TRAINED),
    "company": ("alone", "batch"),
    "threads": (1, 2),
    "sampling": tuple(subjects.SAMPLINGS),
    "feeding": exactness.FEEDINGS,
    "stop": drafting.STOPS,
}


def is_quick_enough(pair: Pair) -> bool:
    (_, first), (_, second) = pair
    is_large = second in TRAINED and not TRAINED[second].is_small
    return not (is_large and first in exactness.SLOW_ISAS)


QUICK_FACTORS = FACTORS | {"draft": drafting.QUICK_DRAFTS}
QUICK_ROWS = covering_array(QUICK_FACTORS, is_quick_enough)
QUICK_CELLS = [Cell(**row) for row in QUICK_ROWS]
SLOW_CELLS = [Cell(**row) for row in covering_array(FACTORS, is_quick_enough, QUICK_ROWS)]
MODELS = (*FACTORS["model"], *FAMILY_SHAPES)
FAMILY_DRAFTS = ("fp4:context=192", "fp4:k=6+SMALL:bf16:k=4", "SMALL:k=5:context=192+ngram:k=2")


def cell_by_chance(seed: str, **given: Any) -> Cell:
    """A cell whose other values are drawn: the same in each run, whatever instruction sets there
    are."""
    chance = random.Random(seed)
    values = {factor: chance.choice(choices) for factor, choices in FACTORS.items()}
    return Cell(**values | given)


def family_cells() -> Iterator[Cell]:
    """Every family on every instruction set."""
    for name, isa in product(FAMILY_SHAPES, FACTORS["isa"]):
        draft = random.Random(f"draft {name} {isa}").choice(FAMILY_DRAFTS)
        yield cell_by_chance(f"{name} {isa}", model=name, isa=isa, draft=draft)


def hybrid_cells() -> Iterator[Cell]:
    """Every draft of the hybrid on every instruction set; of convolutions alone, every draft. With
    fewer than three instruction sets, the hybrid gets two cells of each, so that enough tokens are
    compared."""
    isas = FACTORS["isa"]
    turns = ("", " again") if len(isas) < 3 else ("",)
    for isa, draft, turn in product(isas, drafting.DRAFTS, turns):
        seed = f"{isa} {draft}{turn}"
        yield cell_by_chance(seed, model="hybrid", isa=isa, draft=draft)
        if not turn and drafting.DRAFTS.index(draft) % len(isas) == isas.index(isa):
            yield cell_by_chance(seed, model="convolutions", isa=isa, draft=draft)


def block_cells() -> Iterator[Cell]:
    """Two batches under each drafter of blocks on every instruction set."""
    for draft, isa, turn in product(drafting.BLOCKS, FACTORS["isa"], (1, 2)):
        model = random.Random(f"model {turn} {draft} {isa}").choice([*subjects.RANDOM_SHAPES])
        seed = f"{turn} {draft} {isa}"
        yield cell_by_chance(seed, model=model, isa=isa, draft=draft, company="batch")


for cells in (hybrid_cells(), block_cells()):
    SLOW_CELLS += [cell for cell in cells if cell not in (*QUICK_CELLS, *SLOW_CELLS)]
for number, cell in enumerate(family_cells()):
    family, isa = divmod(number, len(FACTORS["isa"]))
    (QUICK_CELLS if isa == family % len(FACTORS["isa"]) else SLOW_CELLS).append(cell)


@dataclass
class Bench:
    """Models, requests and references, each made once, and counts of comparisons."""

    directory: Path
    seed: int
    compared: Counter[Cell] = field(default_factory=Counter)  # tokens
    drafted: Drafted = field(default_factory=Drafted)
    drafted_below: Counter[tuple[int, str]] = field(default_factory=Counter)  # by depth
    _subjects: dict[str, Subject] = field(default_factory=dict)
    _models: dict[tuple[str, str, int], Model] = field(default_factory=dict)
    _drafts: dict[Model, Drafts] = field(default_factory=dict)
    _references: dict[tuple[str, Request], Trace] = field(default_factory=dict)

    def subject(self, name: str) -> Subject:
        if name not in self._subjects:
            subject = TRAINED.get(name) or subjects.random_subject(
                name, self.directory / name, self.seed
            )
            small = self.directory / f"{name}-small"
            subject = subjects.with_small(subject, small)
            head = self.directory / f"{name}-head"
            self._subjects[name] = subjects.with_head(subject, head, self.seed)
        return self._subjects[name]

    def model(self, name: str, isa: str, threads: int) -> Model:
        key = (name, isa, threads)
        if key not in self._models:
            self._models[key] = open_model(self.subject(name), isa, threads)
        return self._models[key]

    def level(self, cell: Cell, model: Model | None = None) -> Level:
        """The chain of a cell, over its own model or another instance of it."""
        subject = self.subject(cell.model)
        model = model or self.model(cell.model, cell.isa, cell.threads)
        if model not in self._drafts:
            self._drafts[model] = drafting.drafts_of(subject)
        whims = random.Random(f"{self.seed} {cell}") if cell.stop == "random" else None
        return drafting.level_of(subject, model, cell.draft, self._drafts[model], whims)

    def requests(self, cell: Cell) -> list[Request]:
        """The requests of a cell, the same in every cell of a model."""
        rng = np.random.default_rng([self.seed, MODELS.index(cell.model)])
        mains, mates = self.subject(cell.model).requests(rng)
        main = mains[cell.sampling]
        return [main] if cell.company == "alone" else [*mates, main]

    def reference(self, name: str, request: Request) -> Trace:
        """Plain decoding of one request alone, on portable kernels if the model is small."""
        key = (name, request)
        if key not in self._references:
            isa = "portable" if self.subject(name).is_small else available_isas()[0]
            level = Level(self.model(name, isa, 1), NoDraft())
            (self._references[key],) = Decoding(level, [request]).run()
        return self._references[key]

    def decode(self, cell: Cell) -> tuple[list[Trace], Drafted]:
        level = self.level(cell)
        decoding = Decoding(level, self.requests(cell), cell.feeding)
        traces = decoding.run()
        for depth, below in enumerate(level.levels):
            if depth > 0 and isinstance(below, Level):
                stats = below.stats
                self.drafted_below[depth, "accepted"] += stats.accepted
                self.drafted_below[depth, "rejected"] += stats.drafted - stats.accepted
        return traces, decoding.drafted

    def differences(self, cell: Cell, found: list[Trace]) -> list[str]:
        """A line for each request of the cell whose trace differs from its reference."""
        lines = []
        for index, (request, trace) in enumerate(zip(self.requests(cell), found, strict=True)):
            what = exactness.difference(self.reference(cell.model, request), trace)
            lines += [f"request {index}: {what}"] if what else []
        return lines


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Bench:
    return Bench(tmp_path_factory.mktemp("models"), seed)


@pytest.mark.parametrize(
    ("cells", "factors"),
    [(QUICK_CELLS, QUICK_FACTORS), ([*QUICK_CELLS, *SLOW_CELLS], FACTORS)],
    ids=["quick", "all"],
)
def test_cells_hold_every_pair_of_values(cells: list[Cell], factors: dict[str, Any]) -> None:
    held = set()
    for cell in cells:
        held |= set(combinations(dataclasses.asdict(cell).items(), 2))
    names = [f.name for f in dataclasses.fields(Cell)]
    for a, b in combinations(names, 2):
        for x, y in product(factors[a], factors[b]):
            pair = ((a, x), (b, y))
            assert pair in held or not is_quick_enough(pair), pair


@pytest.mark.parametrize("cell", values(*QUICK_CELLS, slow=SLOW_CELLS), ids=str)
def test_bits_are_those_of_plain_decoding(bench: Bench, cell: Cell) -> None:
    traces, drafted = bench.decode(cell)
    assert bench.differences(cell, traces) == []
    assert all(len(trace.emissions) >= 64 for trace in traces)
    bench.compared[cell] += sum(len(trace.emissions) for trace in traces)
    for count in dataclasses.fields(Drafted):
        before = getattr(bench.drafted, count.name)
        setattr(bench.drafted, count.name, before + getattr(drafted, count.name))


@pytest.mark.parametrize("name", subjects.RANDOM_SHAPES)
def test_bits_do_not_depend_on_max_rows(bench: Bench, name: str) -> None:
    cell = Cell(available_isas()[0], "fp4:k=4", name, "batch", 2, "noisy", "whole", "own")
    model = open_model(bench.subject(name), cell.isa, cell.threads, max_rows=29)
    traces = Decoding(bench.level(cell, model), bench.requests(cell)).run()
    assert bench.differences(cell, traces) == []


# Each instruction set with one and two threads by turns, and with both.
BY_TURNS = list(zip(exactness.isas(), cycle((1, 2)), strict=False))
BOTH = list(product(exactness.isas(), (1, 2)))


@pytest.mark.parametrize(
    ("name", "machines"),
    [
        *((name, BY_TURNS) for name in subjects.RANDOM_SHAPES),
        *(
            pytest.param(name, BOTH, marks=pytest.mark.slow)
            for name in subjects.RANDOM_SHAPES | FAMILY_SHAPES
        ),
    ],
)
def test_both_precisions_give_the_same_logits_on_every_instruction_set(
    bench: Bench, name: str, machines: list[tuple[str, int]], rng: np.random.Generator
) -> None:
    """Equal fp4 logits make acceptance and its statistics the same everywhere."""
    vocab = (subjects.RANDOM_SHAPES | FAMILY_SHAPES)[name].vocab
    tokens = rng.integers(0, vocab, 600).tolist()
    found: dict[str, set[bytes]] = {"exact": set(), "fp4": set()}
    for isa, threads in machines:
        model = bench.model(name, isa, threads)
        found["exact"].add(exactness.digest(model.logits(tokens)))
        found["fp4"].add(exactness.digest(model.as_draft().logits(tokens)))
    assert {precision: len(bits) for precision, bits in found.items()} == {"exact": 1, "fp4": 1}


def test_drafts_were_rejected_and_accepted_in_part_and_whole(bench: Bench) -> None:
    assert bench.drafted.rejected > 100
    assert bench.drafted.accepted_tokens > 100
    assert bench.drafted.taken_whole > 100
    assert all(bench.drafted_below[depth, "accepted"] > 100 for depth in (1, 2, 3))
    assert all(bench.drafted_below[depth, "rejected"] > 100 for depth in (1, 2, 3))


def test_enough_tokens_were_compared(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"[{bench.compared.total()} tokens compared in {len(bench.compared)} cells]", end="")
    assert bench.compared.total() >= LEAST_TOKENS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "names"),
    [("model", ["hybrid"]), ("draft", drafting.BLOCKS)],
    ids=["hybrid", "blocks"],
)
def test_enough_tokens_of_each_kind_were_compared(
    bench: Bench, factor: str, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    of_kind = {cell: n for cell, n in bench.compared.items() if getattr(cell, factor) in names}
    with capsys.disabled():
        print(f"[{sum(of_kind.values())} in {len(of_kind)} cells]", end="")
    assert sum(of_kind.values()) >= LEAST_TOKENS


@pytest.mark.parametrize("name", ["stories260k", "tiny1m", "shipped"])
def test_trained_model_took_part(name: str) -> None:
    if name not in TRAINED:
        pytest.skip(f"{name} is not here; the other models were compared without it")


# --- The harness detects errors ------------------------------------------------------------------


def broken_cell(name: str, draft: str) -> Cell:
    return Cell(exactness.isas()[-1], draft, name, "alone", 1, "greedy", "whole", "own")


@pytest.mark.parametrize("name", subjects.RANDOM_SHAPES)
def test_a_cache_that_keeps_drafted_rows_is_detected(bench: Bench, name: str) -> None:
    cell = broken_cell(name, "fp4:k=4")
    model = KeepsDraftedCache(open_model(bench.subject(name), cell.isa, cell.threads))
    traces = Decoding(bench.level(cell, model), bench.requests(cell)).run()
    (line,) = bench.differences(cell, traces)
    assert line.startswith("request 0: new token")


def test_one_ulp_of_one_logit_is_detected(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = broken_cell("llama", "none")
    rounds = iter(range(1 << 20))

    def nudged(model: Model) -> NDArray[np.float32]:
        logits = model.decoder.logits()
        if next(rounds) == 40:
            logits[0, 7] = np.nextafter(logits[0, 7], np.float32(np.inf))
        return logits

    monkeypatch.setattr(exactness, "read_logits", nudged)
    found = Decoding(bench.level(cell), bench.requests(cell)).run()
    monkeypatch.undo()
    (line,) = bench.differences(cell, found)
    assert line.startswith("request 0: new token 40: logits")
