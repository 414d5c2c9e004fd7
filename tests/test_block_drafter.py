"""Proposals of block drafters: exact texts, what they remember, and what pays."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM
from specqd._native import BlockDrafter, DraftChoice, DraftRequest, Level
from specqd.engine.roles import Drafter
from specqd.model.model import Machine, Model
from specqd.sampling import SamplingParams as Sampling
from support.dflash_cases import (
    SHAPES,
    TARGET,
    Case,
    block,
    make_target,
    new_sequence,
    open_case,
    open_head,
    read,
)
from support.engines import preempt_at_random
from support.fake_model import FakeDrafter
from support.families import FAMILY_SHAPES
from support.head_texts import random_text, texts
from support.random_dflash import make_drafter, make_repeating_drafter
from support.random_models import Shape, make_model


@pytest.fixture(scope="module", params=["small", "windows", "dflash2"])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> Case:
    return open_case(tmp_path_factory.mktemp("case"), SHAPES[request.param], seed)


# --- Proposals ------------------------------------------------------------------------------------


def test_a_block_is_asked_again_from_memory(case: Case, rng: np.random.Generator) -> None:
    sequence = new_sequence(random_text(rng, TARGET.vocab, 30))
    read(case.model, sequence)
    drafter = BlockDrafter(case.head, name="head")
    [proposal] = drafter.propose([DraftRequest(sequence, 20)])
    count = min(case.head.block - 1, 20)
    assert len(proposal.tokens) == count
    assert drafter.stats.forwards == 1
    sequence.guess(proposal.tokens[:2])
    [rest] = drafter.propose([DraftRequest(sequence, 3)])
    assert rest.tokens == proposal.tokens[2:5]
    sequence.forget_guesses(2)
    sequence.guess([proposal.tokens[0], (proposal.tokens[1] + 1) % TARGET.vocab])
    assert drafter.propose([DraftRequest(sequence, 3)])[0].tokens == []
    sequence.forget_guesses(2)
    assert drafter.stats.forwards == 1
    drafter.release(sequence)


def test_proposals_of_many_sequences_take_several_forwards(
    case: Case, rng: np.random.Generator
) -> None:
    sequences = [new_sequence(random_text(rng, TARGET.vocab, 20)) for _ in range(30)]
    for sequence in sequences:
        read(case.model, sequence)
    drafter = BlockDrafter(case.head, name="head")
    requests = [DraftRequest(sequence, 7) for sequence in sequences]
    together = [proposal.tokens for proposal in drafter.propose(requests)]
    assert drafter.stats.forwards == 2
    assert [len(tokens) for tokens in together] == [7] * 30
    for sequence, tokens in zip(sequences, together, strict=True):
        drafter.release(sequence)
        assert drafter.propose([DraftRequest(sequence, 7)])[0].tokens == tokens


def test_a_context_grows_with_a_prompt_that_is_longer_than_the_log(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    """Below the model and below its 4-bit weights, and the bits are those of one absorption."""
    shape = replace(TARGET, context=4096)
    target = make_model(tmp_path / "target", shape, seed)
    drafter = make_drafter(tmp_path / "drafter", shape, SHAPES["small"], seed)
    model = Model.open(target, machine=Machine.choose(2), cache_positions=8192)
    tokens = random_text(rng, TARGET.vocab, 2000)
    found = []
    for is_nested in (False, True):
        above = model.as_draft() if is_nested else model
        head = open_head(drafter, above)
        blocks = BlockDrafter(head, name="head")
        level = Level(model, Level(above, blocks) if is_nested else blocks)
        sequence = new_sequence(tokens)
        while unread := level.num_unread(sequence):
            reads = min(unread, int(rng.integers(100, 500)))
            level.advance([DraftRequest(sequence, 1, reads=reads)])
        head.context(sequence)
        assert head.readiness(sequence) == (True, 0, 1999, 0)
        found.append(block(head, sequence, 8))
        level.release(sequence)
    assert np.array_equal(*found)


# --- Texts ----------------------------------------------------------------------------------------

CHAINS = [
    ["head:RANDOM"],
    ["head:RANDOM:bf16:k=4"],
    ["head:REPEATING"],
    ["head:REPEATING:k=5"],
    ["fp4", "head:REPEATING"],
    ["fp4:k=6", "head:RANDOM:k=3"],
    ["fp4|head:REPEATING|ngram"],
    ["head:REPEATING|fp4"],
    ["head:DFLASH2"],
    ["fp4", "head:DFLASH2:k=5"],
    ["fp4|head:DFLASH2|ngram"],
    ["fp4|head:IDS", "head:IDS|ngram"],
    ["auto", "head:REPEATING"],
]


HYBRID = replace(
    FAMILY_SHAPES["qwen3_5_text"], hidden=64, vocab=TARGET.vocab, is_tied=True, is_peaked=False
)


def make_drafters(parent: Path, shape: Shape, seed: int) -> Path:
    make_target(parent / "target", shape, seed)
    make_drafter(parent / "random", shape, SHAPES["windows"], seed + 1)
    make_drafter(parent / "ids", shape, replace(SHAPES["ids of its own"], layers=1), seed + 2)
    make_drafter(parent / "dflash2", shape, SHAPES["dflash2"], seed + 3)
    make_repeating_drafter(parent / "repeating", shape)
    return parent


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_drafters(tmp_path_factory.mktemp("drafters"), TARGET, seed)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_drafters(tmp_path_factory.mktemp("hybrid"), HYBRID, seed)


def with_paths(words: list[str], directory: Path) -> list[str]:
    for name in ("random", "ids", "dflash2", "repeating"):
        words = [word.replace(name.upper(), str(directory / name)) for word in words]
    return words


@pytest.mark.parametrize("words", CHAINS, ids="+".join)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("preempts", [False, True])
@pytest.mark.parametrize("target", ["directory", "hybrid"], ids=["llama", "hybrid"])
def test_texts_under_drafters_are_those_of_plain_decoding(
    target: str,
    words: list[str],
    temperature: float,
    preempts: bool,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    directory = request.getfixturevalue(target)
    plain = LLM(directory / "target", "none", threads=1)
    drafted = plain.with_draft(with_paths(words, directory))
    wanted = texts(plain, np.random.default_rng(seed), TARGET.vocab, temperature)
    if preempts:
        preempt_at_random(drafted.engine, np.random.default_rng(seed), monkeypatch)
    assert texts(drafted, np.random.default_rng(seed), TARGET.vocab, temperature) == wanted
    if any("|" in word or word == "auto" for word in words):
        return  # the fastest of several drafters is asked, on some machines never this one
    drafters = [m for m in drafted.engine.level.levels if isinstance(m, BlockDrafter)]
    assert sum(each.stats.forwards for each in drafters) > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("target", ["directory", "hybrid"], ids=["llama", "hybrid"])
def test_a_drafter_that_is_right_is_accepted(
    target: str, temperature: float, request: pytest.FixtureRequest
) -> None:
    directory = request.getfixturevalue(target)
    llm = LLM(directory / "target", with_paths(["head:REPEATING:k=7"], directory), threads=1)
    params = Sampling(temperature=temperature, seed=3, max_tokens=64, ignore_eos=True)
    [result] = llm.generate([[5, 6, 7]], params)
    report = result.stats.levels[0]
    assert report.drafted > 30
    assert report.accepted > 0.4 * report.drafted
    assert 0 < report.accepted_at[6] <= report.accepted_at[0]


def test_flat_predictions_are_sampled_with_less_noise(directory: Path, tmp_path: Path) -> None:
    """With the noise of its positions, a drafter that predicts the right tokens without certainty
    would propose almost random ones."""
    make_repeating_drafter(tmp_path / "flat", TARGET, certainty=0.1)
    params = Sampling(temperature=0.8, seed=3, max_tokens=200, ignore_eos=True)
    shares = []
    for drafter in (directory / "repeating", tmp_path / "flat"):
        llm = LLM(directory / "target", f"head:{drafter}:k=7", threads=1)
        report = llm.generate([[5, 6, 7]], params)[0].stats.levels[0]
        shares.append(report.accepted / report.drafted)
    assert shares[1] > 0.5 * shares[0]


# --- What pays ------------------------------------------------------------------------------------


def seconds_per_token(
    directory: Path,
    name: str,
    cost: float,
    *,
    length: int | None = None,
    beside: Drafter | None = None,
    count: int = 300,
) -> float:
    """By a clock that knows only what forwards read: one of the target takes 1 s, a block takes
    `cost`. beside: a drafter that a choice lists first."""
    target = Model.open(directory / "target", machine=Machine.choose(1), cache_positions=4096)
    head = open_head(directory / name, target)

    def clock() -> float:
        own = target.bytes_read / target.bytes_per_forward
        return own + cost * head.bytes_read / head.bytes_per_forward

    drafter = BlockDrafter(head, length=length, name="head", clock=clock)
    choice = drafter if beside is None else DraftChoice([beside, drafter])
    level = Level(target, choice, clock=clock)
    level.measure()
    sequence = new_sequence([5, 6, 7])
    begun = clock()
    while len(sequence.tokens) < count:
        [made] = level.advance([DraftRequest(sequence, 30)])
        sequence.tokens.extend(made.tokens)
    assert drafter.stats.forwards > 0
    return (clock() - begun) / len(sequence.tokens)


def test_a_useless_drafter_is_tried_for_little_time(directory: Path) -> None:
    assert seconds_per_token(directory, "random", cost=0.2) < 1.03
    assert seconds_per_token(directory, "random", cost=1.0) < 1.05


def test_a_drafter_that_is_right_pays(directory: Path) -> None:
    assert seconds_per_token(directory, "repeating", cost=0.2) < 0.5
    assert seconds_per_token(directory, "repeating", cost=1.0) < 0.7


def test_a_choice_takes_a_drafter_of_fixed_length_that_pays(directory: Path) -> None:
    beside = FakeDrafter()  # proposes nothing
    assert seconds_per_token(directory, "repeating", cost=0.2, length=7, beside=beside) < 0.5
