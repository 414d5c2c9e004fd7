"""The same bits whatever the draft, its length, the threads, the instruction set, the batch and the
way of the prompt into the cache."""

import dataclasses
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import exactness
from conftest import SHARED_MODELS
from covering import Pair, covering_array
from exactness import Cell, Decoding, Drafted, Request, Subject, Trace, level_of, open_model
from specqd._native import available_isas
from specqd.model import Model

LEAST_TOKENS = 20_000
TRAINED = {subject.name: subject for subject in exactness.trained_subjects(SHARED_MODELS)}
FACTORS = {
    "isa": exactness.isas(),
    "draft": exactness.DRAFTS,
    "model": (*exactness.RANDOM_SHAPES, *TRAINED),
    "company": ("alone", "batch"),
    "threads": (1, 2),
    "sampling": tuple(exactness.SAMPLINGS),
    "feeding": exactness.FEEDINGS,
}


def is_quick_enough(pair: Pair) -> bool:
    (_, first), (_, second) = pair
    is_large = second in TRAINED and not TRAINED[second].is_small
    return not (is_large and first in exactness.SLOW_ISAS)


CELLS = [Cell(**row) for row in covering_array(FACTORS, is_quick_enough)]


@dataclass
class Bench:
    """Models, requests and references, each made once; and what was compared so far."""

    directory: Path
    seed: int
    compared: int = 0
    drafted: Drafted = field(default_factory=Drafted)
    _subjects: dict[str, Subject] = field(default_factory=dict)
    _models: dict[tuple[str, str, int], Model] = field(default_factory=dict)
    _references: dict[tuple[str, Request], Trace] = field(default_factory=dict)

    def subject(self, name: str) -> Subject:
        if name not in self._subjects:
            self._subjects[name] = TRAINED.get(name) or exactness.random_subject(
                name, self.directory / name, self.seed
            )
        return self._subjects[name]

    def model(self, name: str, isa: str, threads: int) -> Model:
        key = (name, isa, threads)
        if key not in self._models:
            self._models[key] = open_model(self.subject(name), isa, threads)
        return self._models[key]

    def requests(self, cell: Cell) -> list[Request]:
        """What a cell decodes: the same requests in every cell of its model."""
        rng = np.random.default_rng([self.seed, list(FACTORS["model"]).index(cell.model)])
        mains, mates = self.subject(cell.model).requests(rng)
        main = mains[cell.sampling]
        return [main] if cell.company == "alone" else [*mates, main]

    def reference(self, name: str, request: Request) -> Trace:
        """Plain decoding of one request, alone: on portable kernels, where that is quick enough."""
        key = (name, request)
        if key not in self._references:
            isa = "portable" if self.subject(name).is_small else available_isas()[0]
            level = level_of(self.model(name, isa, 1), "none")
            (self._references[key],) = Decoding(level, [request]).run()
        return self._references[key]

    def decode(self, cell: Cell) -> tuple[list[Trace], Drafted]:
        level = level_of(self.model(cell.model, cell.isa, cell.threads), cell.draft)
        decoding = Decoding(level, self.requests(cell), cell.feeding)
        return decoding.run(), decoding.drafted

    def differences(self, cell: Cell, found: list[Trace]) -> list[str]:
        """Each request of the cell whose trace is not its reference's."""
        texts = []
        for index, (request, trace) in enumerate(zip(self.requests(cell), found, strict=True)):
            what = exactness.difference(self.reference(cell.model, request), trace)
            texts += [f"request {index}: {what}"] if what else []
        return texts


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Bench:
    return Bench(tmp_path_factory.mktemp("models"), seed)


def test_cells_hold_every_pair_of_values() -> None:
    held = set()
    for cell in CELLS:
        held |= set(combinations(dataclasses.asdict(cell).items(), 2))
    names = [f.name for f in dataclasses.fields(Cell)]
    for a, b in combinations(names, 2):
        for x, y in product(FACTORS[a], FACTORS[b]):
            pair = ((a, x), (b, y))
            assert pair in held or not is_quick_enough(pair), pair


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_bits_are_those_of_plain_decoding(bench: Bench, cell: Cell) -> None:
    traces, drafted = bench.decode(cell)
    assert bench.differences(cell, traces) == []
    assert all(len(trace.emissions) >= 64 for trace in traces)
    bench.compared += sum(len(trace.emissions) for trace in traces)
    for count in dataclasses.fields(Drafted):
        before = getattr(bench.drafted, count.name)
        setattr(bench.drafted, count.name, before + getattr(drafted, count.name))


@pytest.mark.parametrize("name", exactness.RANDOM_SHAPES)
def test_bits_do_not_depend_on_the_most_rows_of_a_forward(bench: Bench, name: str) -> None:
    cell = Cell(available_isas()[0], "4", name, "batch", 2, "noisy", "whole")
    model = open_model(bench.subject(name), cell.isa, cell.threads, max_rows=29)
    traces = Decoding(level_of(model, cell.draft), bench.requests(cell)).run()
    assert bench.differences(cell, traces) == []


@pytest.mark.parametrize("name", exactness.RANDOM_SHAPES)
def test_both_readings_give_the_same_logits_on_every_instruction_set(
    bench: Bench, name: str, rng: np.random.Generator
) -> None:
    """The draft's too, so that what is accepted, and its statistics, are the same everywhere."""
    vocab = exactness.RANDOM_SHAPES[name].vocab
    tokens = rng.integers(0, vocab, 600).tolist()
    found: dict[str, set[bytes]] = {"exact": set(), "draft": set()}
    for isa, threads in product(exactness.isas(), (1, 2)):
        model = bench.model(name, isa, threads)
        found["exact"].add(exactness.digest(model.logits(tokens)))
        found["draft"].add(exactness.digest(model.as_draft().logits(tokens)))
    assert {reading: len(bits) for reading, bits in found.items()} == {"exact": 1, "draft": 1}


def test_drafts_were_accepted_and_rejected_and_taken_whole(bench: Bench) -> None:
    assert bench.drafted.rejected > 100
    assert bench.drafted.accepted_tokens > 100
    assert bench.drafted.taken_whole > 100


def test_enough_tokens_were_compared(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"[{bench.compared} tokens compared in {len(CELLS)} cells]", end="")
    assert bench.compared >= LEAST_TOKENS


@pytest.mark.parametrize("name", ["stories260k", "tiny1m", "shipped"])
def test_trained_model_took_part(name: str) -> None:
    if name not in TRAINED:
        pytest.skip(f"{name} is not here; the other models were compared without it")


# --- The harness sees what it should -------------------------------------------------------------


def broken_cell(name: str, draft: str) -> Cell:
    return Cell(exactness.isas()[-1], draft, name, "alone", 1, "greedy", "whole")


@pytest.mark.parametrize("name", exactness.RANDOM_SHAPES)
def test_a_cache_that_keeps_the_drafts_keys_and_values_is_seen(bench: Bench, name: str) -> None:
    cell = broken_cell(name, "4")
    model = open_model(bench.subject(name), cell.isa, cell.threads)
    exactness.keep_drafted_cache(model)
    traces = Decoding(level_of(model, cell.draft), bench.requests(cell)).run()
    (text,) = bench.differences(cell, traces)
    assert text.startswith("request 0: new token")


def test_one_ulp_of_one_logit_is_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = broken_cell("llama", "none")
    rounds = iter(range(1 << 20))

    def nudged(model: Model) -> NDArray[np.float32]:
        logits = model.decoder.logits()
        if next(rounds) == 40:
            logits[0, 7] = np.nextafter(logits[0, 7], np.float32(np.inf))
        return logits

    monkeypatch.setattr(exactness, "read_logits", nudged)
    level = level_of(bench.model(cell.model, cell.isa, cell.threads), cell.draft)
    found = Decoding(level, bench.requests(cell)).run()
    monkeypatch.undo()
    (text,) = bench.differences(cell, found)
    assert text.startswith("request 0: new token 40: logits")
