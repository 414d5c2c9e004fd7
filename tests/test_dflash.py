"""Drafters of blocks: logits against float64, contexts that are made once, exact texts."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, _native
from specqd._native import BlockDrafter, DraftRequest, Level, Rows, Sequence, available_isas
from specqd.model.dflash import BlockFiles, BlockHead, load_block_drafter
from specqd.model.model import Machine, Model, Precision
from specqd.sampling import SamplingParams as Sampling
from support.engines import preempt_at_random
from support.head_texts import random_text, texts
from support.random_dflash import BlockShape, make_drafter, make_repeating_drafter
from support.random_models import ROPE_SCALINGS, Shape, change_model, make_model, read_model
from support.reference import rms_error, values
from support.reference_dflash import Drafter, drafter_of

TARGET = Shape(layers=4, context=1024, is_tied=True)
SLIDING = ("sliding_attention", "full_attention", "sliding_attention")
SHAPES = {
    "small": BlockShape(),
    "7:1 heads of 40": BlockShape(heads=7, kv_heads=1, head_dim=40, ffn=76, block=16),
    "unsorted taps": BlockShape(taps=(4, 0, 2), layers=3, block=5),
    "one tap, two rows": BlockShape(taps=(2,), layers=1, block=2),
    "biases": BlockShape(has_biases=True, has_qk_norm=False, heads=3, kv_heads=3, head_dim=24),
    "yarn": BlockShape(rope_scaling=ROPE_SCALINGS["yarn"], rope_theta=5e5),
    "windows": BlockShape(layers=3, layer_types=SLIDING, window=20, block=12),
    "windows without causality": BlockShape(
        layers=3, layer_types=SLIDING, window=20, block=12, is_causal=False
    ),
    "ids of its own": BlockShape(tokens=97, has_embedding=True, maker="speculators"),
    "width of its own": BlockShape(hidden=72, tokens=61, has_embedding=True),
    "scales": BlockShape(
        extra={
            "input_embedding_scale": 3.0, "output_multiplier": 0.5, "final_logit_softcapping": 4.0,
        }
    ),
}  # fmt: skip


@dataclass
class Case:
    """A target and its drafter."""

    model: Model
    head: BlockHead
    reference: Drafter

    def features(self, tokens: list[int]) -> Any:
        """The features of all tokens, in the order of the drafter, [n, taps * hidden]."""
        taps = self.head.files.taps
        bits = self.model.features(tokens, sorted(taps))[:, [sorted(taps).index(t) for t in taps]]
        wide = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return wide.reshape(len(tokens), -1)


def make_target(directory: Path, shape: Shape, seed: int) -> Path:
    """A model that mostly repeats its last token: its layers change the embedding little."""
    make_model(directory, shape, seed)

    def quieten(tensors: Any) -> None:
        for name, bits in tensors.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                bits -= ((bits & 0x7F80) > 0x400).astype(np.uint16) * np.uint16(0x300)  # / 64

    return change_model(directory, quieten)


def open_head(directory: Path, above: Model, precision: Precision = Precision.EXACT) -> BlockHead:
    files = BlockFiles.open(directory, above.config)
    return BlockHead(files, load_block_drafter(files, above), above, precision)


def open_case(directory: Path, shape: BlockShape, seed: int, **machine: Any) -> Case:
    target = directory / "target"
    if not target.exists():
        make_model(target, TARGET, seed)
    model = Model.open(target, machine=Machine.choose(2, **machine), cache_positions=8192)
    drafter = make_drafter(directory / "drafter", TARGET, shape, seed + 1)
    head = open_head(drafter, model)
    weights = values(read_model(target)[1])
    embedding = weights["model.embed_tokens.weight"]
    own = values(_floats(drafter))
    return Case(model, head, drafter_of(head.files.config, own, embedding, embedding))


def _floats(directory: Path) -> Any:
    from support.random_heads import read_tensors

    return {n: bits for n, bits in read_tensors(directory).items() if bits.dtype == np.uint16}


def new_sequence(tokens: list[int]) -> Sequence:
    return Sequence(list(tokens), Sampling().sampler(0, 0), len(tokens))


def read(model: Model, sequence: Sequence, end: int | None = None) -> None:
    """The model forwards the tokens that it lacks, up to the last one."""
    context = model.context(sequence)
    end = len(sequence.tokens) - 1 if end is None else end
    model.forward([Rows(context, context.length, sequence.tokens[context.length : end], 0)])


def block(head: BlockHead, sequence: Sequence, count: int) -> Any:
    head.forward([head.block_rows(sequence, count)])
    return head.logits()


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
    wanted = case.reference.block(case.features(tokens[:-1]), rows)[1:]
    ids = case.head.files.ids
    if ids:
        others = np.setdiff1d(np.arange(TARGET.vocab), ids)
        assert np.isneginf(found[:, others]).all()
        found = found[:, list(ids)]
    # Of each layer's four products and of the context's and head's, inputs are rounded to BF16.
    bound = 2**-9 * np.sqrt(4 * shape.layers + 3)
    assert rms_error(found, wanted) < 2 * bound


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


# --- The same bits --------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["small", "windows", "yarn"])
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
    wanted = case.reference.block(features, rows, first=128)[1:]
    assert rms_error(found, wanted) < 2**-8 * np.sqrt(4 * 3 + 3)


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
def test_blocks_have_the_same_bits_on_every_instruction_set(
    isa: str, tmp_path: Path, seed: int
) -> None:
    tokens = random_text(np.random.default_rng(seed), TARGET.vocab, 530)
    found = {}
    for name in {isa, available_isas()[0]}:
        for precision in Precision:
            case = open_case(tmp_path, SHAPES["windows"], seed, isa=name)
            head = BlockHead(case.head.files, case.head.decoder, case.model, precision)
            sequence = new_sequence(tokens)
            read(case.model, sequence)
            found[name, precision] = block(head, sequence, 12)
    for precision in Precision:
        assert np.array_equal(found[isa, precision], found[available_isas()[0], precision])


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
    ["fp4|head:IDS", "head:IDS|ngram"],
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    parent = tmp_path_factory.mktemp("drafters")
    target = make_target(parent / "target", TARGET, seed)
    make_drafter(parent / "random", TARGET, SHAPES["windows"], seed + 1)
    make_drafter(parent / "ids", TARGET, replace(SHAPES["ids of its own"], layers=1), seed + 2)
    make_repeating_drafter(parent / "repeating", target, TARGET)
    return parent


def with_paths(words: list[str], directory: Path) -> list[str]:
    for name in ("random", "ids", "repeating"):
        words = [word.replace(name.upper(), str(directory / name)) for word in words]
    return words


@pytest.mark.parametrize("words", CHAINS, ids="+".join)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("preempts", [False, True])
def test_texts_under_drafters_are_those_of_plain_decoding(
    directory: Path,
    words: list[str],
    temperature: float,
    preempts: bool,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = LLM(directory / "target", "none", threads=1)
    drafted = plain.with_draft(with_paths(words, directory))
    wanted = texts(plain, np.random.default_rng(seed), TARGET.vocab, temperature)
    if preempts:
        preempt_at_random(drafted.engine, np.random.default_rng(seed), monkeypatch)
    assert texts(drafted, np.random.default_rng(seed), TARGET.vocab, temperature) == wanted
    drafters = [m for m in drafted.engine.level.levels if isinstance(m, BlockDrafter)]
    assert sum(each.stats.forwards for each in drafters) > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_drafter_that_is_right_is_accepted(directory: Path, temperature: float) -> None:
    llm = LLM(directory / "target", with_paths(["head:REPEATING:k=7"], directory), threads=1)
    params = Sampling(temperature=temperature, seed=3, max_tokens=64, ignore_eos=True)
    [result] = llm.generate([[5, 6, 7]], params)
    report = result.stats.levels[0]
    assert report.drafted > 30
    assert report.accepted > 0.4 * report.drafted
    assert 0 < report.accepted_at[6] <= report.accepted_at[0]


# --- What pays ------------------------------------------------------------------------------------


def seconds_per_token(directory: Path, name: str, cost: float, count: int = 300) -> float:
    """By a clock that knows only what forwards read: one of the target takes 1 s, a block takes
    `cost`."""
    target = Model.open(directory / "target", machine=Machine.choose(1), cache_positions=4096)
    head = open_head(directory / name, target)

    def clock() -> float:
        own = target.bytes_read / target.bytes_per_forward
        return own + cost * head.bytes_read / head.bytes_per_forward

    drafter = BlockDrafter(head, name="head", clock=clock)
    level = Level(target, drafter, clock=clock)
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
