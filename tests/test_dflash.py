"""Drafters of blocks: logits against float64 and torch, the same bits however they are made."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from specqd import _native
from specqd._native import BlockDrafter, DraftRequest, Rows, Sequence, available_isas, testing
from specqd.errors import MachineError
from specqd.model.dflash import BlockHead
from specqd.model.model import Machine, Model, Precision
from specqd.sampling import SamplingParams as Sampling
from support.dflash_cases import (
    SHAPES,
    TARGET,
    Case,
    block,
    new_sequence,
    open_case,
    open_head,
    read,
    sample_block,
)
from support.head_texts import random_text
from support.reference import rms_error

GOLDENS = Path(__file__).parent / "goldens"
NAMES = sorted(path.parent.name for path in GOLDENS.glob("dflash/*/golden.npz"))


# --- Against torch --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_logits_err_no_more_than_torch_in_bf16(name: str) -> None:
    golden = np.load(GOLDENS / "dflash" / name / "golden.npz")
    model = Model.open(GOLDENS / "heads" / "target", machine=Machine.choose(1))
    head = open_head(GOLDENS / "dflash" / name, model)
    for i, length in enumerate(golden["lengths"].tolist()):
        sequence = new_sequence(golden["tokens"][:length].tolist())
        read(model, sequence)
        found, wanted = block(head, sequence, head.block), golden["logits"][i]
        known = np.isfinite(wanted[0])
        assert np.array_equal(np.isfinite(found), np.isfinite(wanted))
        error = rms_error(found[:, known], wanted[:, known])
        print(f"{length}: {error:.5f} of {golden['bf16_error'][i]:.5f}")
        assert error <= golden["bf16_error"][i]


def test_there_are_goldens() -> None:
    assert len(NAMES) >= 7


def test_a_selector_takes_the_path_of_torch() -> None:
    directory = GOLDENS / "dflash" / "dflash2"
    golden = np.load(directory / "golden.npz")
    model = Model.open(GOLDENS / "heads" / "target", machine=Machine.choose(1))
    head = open_head(directory, model)
    for length, path in zip(golden["lengths"].tolist(), golden["paths"].tolist(), strict=True):
        sequence = new_sequence(golden["tokens"][:length].tolist())
        read(model, sequence)
        logits = block(head, sequence, head.block)
        assert sample_block(head, sequence, head.block) == path
        assert path != logits.argmax(axis=-1).tolist()


# --- Against float64 ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("length", [2, 45, 509])
def test_logits_err_by_no_more_than_their_roundings(
    name: str, length: int, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    """A block after `length` tokens; 509 crosses a chunk of attention and pages."""
    shape = SHAPES[name]
    case = open_case(tmp_path, shape, seed)
    tokens = random_text(rng, TARGET.vocab, length)
    sequence = new_sequence(tokens)
    read(case.model, sequence)
    found = block(case.head, sequence, shape.block)
    mask = case.head.files.config.mask
    rows = [tokens[-1], *[mask] * (shape.block - 1)]
    ids = case.head.files.ids
    if ids:
        others = np.setdiff1d(np.arange(TARGET.vocab), ids)
        assert np.isneginf(found[:, others]).all()
        found = found[:, list(ids)]
    assert case.errs_no_more_than_roundings(found, case.features(tokens[:-1]), rows)


@pytest.mark.parametrize("change", ["token", "feature", "order"])
def test_the_reference_notices_faults(change: str, tmp_path: Path, seed: int) -> None:
    """What the bound above tolerates is far less than a wrong row, context or order of taps."""
    shape = SHAPES["unsorted taps"]
    case = open_case(tmp_path, shape, seed)
    tokens = random_text(np.random.default_rng(seed), TARGET.vocab, 30)
    features = case.features(tokens[:-1])
    rows = [tokens[-1], *[shape.mask] * (shape.block - 1)]
    wanted = case.reference.block(features, rows)[1:]
    if change == "token":
        rows = [shape.mask, *rows[1:]]
    elif change == "feature":
        features = np.concatenate([features[1:], features[:1]])
    else:
        features = np.roll(features.reshape(len(features), 3, -1), 1, axis=1).reshape(
            len(features), -1
        )
    assert rms_error(case.reference.block(features, rows)[1:], wanted) > 0.02


# --- The selector of DFlash2 ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dflash2", "selector"])
def test_a_selector_ranks_candidates_by_the_token_before(
    name: str, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    case, shape = open_case(tmp_path, SHAPES[name], seed), SHAPES[name]
    assert shape.selector is not None
    decided = 0
    for length in (2, 77, 300):
        tokens = random_text(rng, TARGET.vocab, length)
        sequence, features = new_sequence(tokens), case.features(tokens[:-1])
        read(case.model, sequence)
        logits = block(case.head, sequence, shape.block)
        path = sample_block(case.head, sequence, shape.block)
        rows = [tokens[-1], *[shape.mask] * (shape.block - 1)]
        scores, slack = case.selected(logits, features, rows, path)
        second, best = np.sort(scores)[:, -2:].T
        assert (scores[range(len(path)), path] >= best - slack).all()
        decided += (best - second > slack).sum()
    assert decided > 10


def test_tokens_that_are_no_candidates_are_sampled_too(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    case, shape = open_case(tmp_path, SHAPES["selector"], seed), SHAPES["selector"]
    tokens = random_text(rng, TARGET.vocab, 40)
    rows = [tokens[-1], *[shape.mask] * (shape.block - 1)]
    hidden = case.reference.hidden(case.features(tokens[:-1]), rows)[1:]
    agreed, others = list[bool](), 0
    for sample in range(60):
        sampler = Sampling(temperature=2.0, seed=seed).sampler(0, sample)
        sequence = Sequence(tokens, sampler, len(tokens))
        read(case.model, sequence)
        logits = block(case.head, sequence, shape.block)
        path = sample_block(case.head, sequence, shape.block)
        for row, (before, token) in enumerate(pairwise([tokens[-1], *path])):
            ranked = case.reference.selected(logits[row], hidden[row], before)
            expected = np.where(np.isinf(ranked), logits[row], ranked).astype(np.float32)
            [found, _] = testing.sample_token(sampler, expected, len(tokens) + row)
            agreed.append(found == token)
            others += np.isinf(ranked[token])
        case.model.release(sequence)
        case.head.release(sequence)
    assert np.mean(agreed) > 0.98  # rounding decides the rest
    assert others > 40


# --- The same bits --------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["small", "windows", "yarn", "dflash2"])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> Case:
    return open_case(tmp_path_factory.mktemp("case"), SHAPES[request.param], seed)


def test_blocks_are_the_same_alone_and_in_a_batch(case: Case, rng: np.random.Generator) -> None:
    lengths, counts = (150, 2, 40), (5, 8, 2)
    alone, sequences = [], []
    for length, count in zip(lengths, counts, strict=True):
        sequence = new_sequence(random_text(rng, TARGET.vocab, length))
        read(case.model, sequence)
        alone.append(block(case.head, sequence, count))
        case.head.release(sequence)
        sequences.append(sequence)
    pairs = zip(sequences, counts, strict=True)
    case.head.forward([case.head.block_rows(sequence, count) for sequence, count in pairs])
    assert np.array_equal(case.head.logits(), np.concatenate(alone))


def test_a_context_in_parts_has_the_bits_of_one_made_at_once(
    case: Case, rng: np.random.Generator
) -> None:
    tokens = random_text(rng, TARGET.vocab, 120)
    whole, parts = new_sequence(tokens), new_sequence(tokens[:20])
    read(case.model, whole)
    wanted = block(case.head, whole, 4)
    while True:
        read(case.model, parts)
        found = block(case.head, parts, 4)
        done = len(parts.tokens)
        if done == len(tokens):
            break
        parts.tokens.extend(tokens[done : done + int(rng.integers(1, 30))])
    assert np.array_equal(found, wanted)


def test_rejected_tokens_and_scratch_rows_leave_no_trace(
    case: Case, rng: np.random.Generator
) -> None:
    tokens = random_text(rng, TARGET.vocab, 70)
    fresh, sequence = new_sequence(tokens), new_sequence(tokens[:60])
    read(case.model, fresh)
    wanted = block(case.head, fresh, 8)
    read(case.model, sequence)
    while len(sequence.tokens) < len(tokens):
        block(case.head, sequence, 8)
        at, count = len(sequence.tokens), int(rng.integers(1, 4))
        right, wrong = tokens[at : at + count], random_text(rng, TARGET.vocab, 3)
        context = case.model.context(sequence)
        rows = [sequence.tokens[-1], *right[:-1], *wrong]
        case.model.forward([Rows(context, at - 1, rows, 0)])
        context.record(at - 1 + len(right), [])
        sequence.tokens.extend(right)
    assert np.array_equal(block(case.head, sequence, 8), wanted)


def test_features_of_the_fp4_precision_are_replaced_by_exact_ones(
    case: Case, rng: np.random.Generator
) -> None:
    model, draft = case.model, case.model.as_draft()
    head = BlockHead(case.head.files, case.head.decoder, draft, Precision.EXACT)
    tokens = random_text(rng, TARGET.vocab, 43)
    sequence, fresh = new_sequence(tokens[:40]), new_sequence(tokens)
    read(model, sequence)
    draft.context(sequence).begin(40)
    block(head, sequence, 4)
    sequence.guess(tokens[40:])
    draft.forward([Rows(draft.context(sequence), 39, tokens[39:42], 0)])
    drafted = block(head, sequence, 4)
    sequence.forget_guesses(3)
    sequence.tokens.extend(tokens[40:])
    model.forward([Rows(model.context(sequence), 39, tokens[39:42], 0)])
    draft.context(sequence).begin(43)
    settled = block(head, sequence, 4)
    read(model, fresh)
    assert np.array_equal(settled, block(case.head, fresh, 4))
    assert not np.array_equal(drafted, settled)


def test_a_context_begins_late_behind_an_adopted_prefix(
    case: Case, rng: np.random.Generator
) -> None:
    tokens = random_text(rng, TARGET.vocab, 150)
    first = new_sequence(tokens)
    read(case.model, first)
    case.model.publish(first)
    case.model.release(first)
    sequence = new_sequence(tokens)
    assert case.model.adopt_prefix(sequence) == 2 * _native.PAGE_POSITIONS
    case.head.context(sequence)
    assert not case.head.readiness(sequence)[0]
    read(case.model, sequence)
    found = block(case.head, sequence, 8)
    assert case.head.readiness(sequence) == (True, 128, 149, 0)
    rows = [tokens[-1], *[case.head.files.config.mask] * 7]
    features = case.features(tokens[:-1])[128:]
    assert case.errs_no_more_than_roundings(found, features, rows, first=128)


def test_a_context_with_a_gap_drafts_nothing(case: Case, rng: np.random.Generator) -> None:
    tokens = random_text(rng, TARGET.vocab, 65)
    first = new_sequence(tokens)
    read(case.model, first)
    case.model.publish(first)
    sequence = new_sequence(tokens)
    assert case.model.adopt_prefix(sequence) == 64
    drafter = BlockDrafter(case.head, length=3, name="head")
    assert drafter.propose([DraftRequest(sequence, 5)])[0].tokens == []
    case.model.forward([Rows(case.model.context(sequence), 64, tokens[64:], 1)])
    sequence.tokens.append(9)
    assert len(drafter.propose([DraftRequest(sequence, 5)])[0].tokens) == 3


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("shape", ["windows", "dflash2"])
def test_blocks_have_the_same_bits_on_every_instruction_set(
    isa: str, shape: str, tmp_path: Path, seed: int
) -> None:
    tokens = random_text(np.random.default_rng(seed), TARGET.vocab, 530)
    found = {}
    for name in {isa, available_isas()[0]}:
        for precision in Precision:
            case = open_case(tmp_path, SHAPES[shape], seed, isa=name)
            head = BlockHead(case.head.files, case.head.decoder, case.model, precision)
            sequence = new_sequence(tokens)
            read(case.model, sequence)
            logits = block(head, sequence, head.block)
            path = [head.verify(row, [], sequence) for row in range(head.block - 1)]
            found[name, precision] = logits, np.asarray(path)
    for precision in Precision:
        for ours, theirs in zip(
            *(found[n, precision] for n in (isa, available_isas()[0])), strict=True
        ):
            assert np.array_equal(ours, theirs)


def test_a_decoder_without_a_context_is_no_drafter(case: Case) -> None:
    model, cache = case.model, case.head.cache
    with pytest.raises(ValueError, match="not a block drafter"):
        _native.BlockForward(model.decoder, cache, False, model, [], [], 8, 1)
    with pytest.raises(ValueError, match="2 rows"):
        _native.BlockForward(case.head.decoder, cache, False, model, [1, 3], [], 1, 1)


def test_the_cache_of_a_drafter_leaves_the_models_cache_its_memory(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, page = case.model.cache, case.head.cache.page_bytes
    promised = cache.total_pages * cache.page_bytes
    for pages in (20, cache.total_pages + 5):
        monkeypatch.setattr(_native, "usable_memory", lambda n=pages: promised + 2 * n * page)
        head = BlockHead(case.head.files, case.head.decoder, case.model, Precision.FP4)
        assert head.cache.total_pages == min(pages, cache.total_pages)
    monkeypatch.setattr(_native, "usable_memory", lambda: promised + 2 * 15 * page)
    with pytest.raises(MachineError, match=f"a text of {TARGET.context} positions"):
        BlockHead(case.head.files, case.head.decoder, case.model, Precision.FP4)
