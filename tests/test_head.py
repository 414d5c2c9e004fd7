"""Drafts that read a part of the head, or all of it exactly: what is kept has the bits of the
whole, what is left out has no logit, and no sequence changes."""

from collections.abc import Sequence as SequenceOf
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import LLM, SamplingParams, _native
from specqd._native import Context, DraftRequest, Level, NoDraft, Rows, Sequence, testing
from specqd.engine.chains import DraftSpec
from specqd.errors import RequestError
from specqd.model.model import HEAD_AS_PAYS, WHOLE_HEAD, Head, Machine, Model
from support.family_shapes import FAMILY_SHAPES
from support.random_models import Shape, make_model
from support.refusals import refused

PANEL = 16
SHAPES = {
    "llama": Shape(hidden=96, ffn=64, vocab=1013, is_peaked=True, context=256),
    "qwen2, tied": Shape("qwen2", hidden=40, ffn=48, vocab=700, is_tied=True),
    "capped": FAMILY_SHAPES["gemma2"],
    "scaled": FAMILY_SHAPES["granite"],
}
HEADS = (Head(1), Head(130), Head(200, True), Head(is_exact=True))


def logits_of(
    model: Model, head: Head, sequences: SequenceOf[SequenceOf[int]], *, is_exact: bool = False
) -> NDArray[np.float32]:
    """Logits of all tokens, in one forward of the fp4 precision, after one of the exact precision
    that leaves finite logits wherever it can."""
    chosen = model if is_exact else model.as_draft(head)
    contexts = [Context(model.cache.create()) for _ in sequences]
    batch = [
        Rows(context, 0, list(sequence), len(sequence))
        for context, sequence in zip(contexts, sequences, strict=True)
    ]
    model.forward(batch)
    assert np.isfinite(model.decoder.logits()).all()
    chosen.forward(batch)
    for context in contexts:
        model.cache.release(context.slot)
    return model.decoder.logits()


def listed(model: Model, head: Head) -> NDArray[np.bool_]:
    """[vocabulary]: whether the id is among those that have logits."""
    panels = -(-model.vocabulary // PANEL)
    found = np.zeros(panels, bool)
    found[model.decoder.partial_head.panels(head.ids or 1, panels)] = True
    return np.repeat(found, PANEL)[: model.vocabulary]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", testing.kernel_names())
@pytest.mark.parametrize("name", SHAPES)
def test_kept_logits_have_the_bits_of_the_whole_and_the_others_are_minus_infinity(
    name: str, isa: str, threads: int, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    machine = Machine(_native.Pool(threads), isa)
    model = Model.open(make_model(tmp_path, SHAPES[name], seed), machine=machine)
    unread = 2 * PANEL  # the last ids: of one panel, whatever the draws, nothing is listed
    some = [int(i) for i in rng.integers(0, model.vocabulary - unread, 5)]
    model.decoder.partial_head.read(some)
    model.decoder.partial_head.keep([model.vocabulary - 1])
    for lengths, head in product(([1], [3], [9, 1, 24]), HEADS):
        sequences = [[int(i) for i in rng.integers(0, model.vocabulary, n)] for n in lengths]
        whole = logits_of(model, Head(is_exact=head.is_exact), sequences)
        found = logits_of(model, head, sequences)
        kept = listed(model, head)
        assert kept.all() == (head.ids > model.vocabulary)
        np.testing.assert_array_equal(found[:, kept], whole[:, kept])
        assert np.isneginf(found[:, ~kept]).all()


@pytest.mark.parametrize("isa", testing.kernel_names())
def test_a_head_read_exactly_differs_from_the_draft_s_and_is_alike_everywhere(
    isa: str, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    directory = make_model(tmp_path, SHAPES["llama"], seed)
    sequences = [[int(i) for i in rng.integers(0, 1013, 12)]]
    found = []
    for each in {isa, "portable"}:
        model = Model.open(directory, machine=Machine(_native.Pool(1), each))
        found.append(logits_of(model, Head(is_exact=True), sequences))
        np.testing.assert_array_equal(found[0], found[-1])
        assert not np.array_equal(found[0], logits_of(model, WHOLE_HEAD, sequences))


def test_an_exact_precision_after_a_short_one_has_all_its_logits(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    model = Model.open(make_model(tmp_path, SHAPES["llama"], seed), machine=Machine.choose(1))
    tokens = [int(i) for i in rng.integers(0, model.vocabulary, 20)]
    expected = model.logits(tokens)
    assert np.isneginf(logits_of(model, Head(1), [tokens])).any()
    np.testing.assert_array_equal(model.logits(tokens), expected)
    np.testing.assert_array_equal(
        logits_of(model, Head(1), [tokens], is_exact=True), model.logits(tokens)
    )


def test_bytes_moved_are_those_of_the_panels_read(tmp_path: Path, seed: int) -> None:
    model = Model.open(make_model(tmp_path, SHAPES["llama"], seed), machine=Machine.choose(1))
    [head] = [m.weight for m in model.weights.matrices if m.names == ("lm_head.weight",)]
    moved = {}
    for use in (WHOLE_HEAD, *HEADS):
        logits_of(model, use, [[1, 2, 3]])
        moved[use] = model.decoder.moved_bytes
    assert moved[WHOLE_HEAD] == model.as_draft().bytes_per_forward
    panels, tiles = -(-1013 // PANEL), 96 // 32
    panel_bytes = tiles * (256 + 16)
    assert moved[WHOLE_HEAD] - moved[Head(130)] == (panels - 9) * panel_bytes
    exact = moved[Head(is_exact=True)] - moved[WHOLE_HEAD]
    assert exact == sum(head.plane_bytes().values()) - panels * panel_bytes


# --- No sequence changes --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, seed: int) -> LLM:
    directory = tmp_path_factory.mktemp("head")
    make_model(directory / "target", SHAPES["llama"], seed)
    small = Shape("qwen3", hidden=48, ffn=90, layers=1, vocab=1013, context=256, is_peaked=True)
    make_model(directory / "small", small, seed + 1)
    return LLM(directory / "target", "none", threads=2)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("head", ["all", "auto", "exact", "1", "130", "400+exact"])
def test_a_sequence_is_the_same_with_any_head(plain: LLM, head: str, temperature: float) -> None:
    prompts = [[1, 2, 3], [700, 5], list(range(300, 340)), [9] * 70]
    params = SamplingParams(max_tokens=60, temperature=temperature, seed=7, ignore_eos=True)
    expected = [result.tokens for result in plain.generate(prompts, params)]
    for drafts in ([f"fp4:head={head}:k=4"], [f"fp4:head={head}:k=4", "ngram"]):
        llm = plain.with_draft(drafts)
        assert [result.tokens for result in llm.generate(prompts, params)] == expected
        assert [llm.generate([each], params)[0].tokens for each in prompts] == expected
        target = llm.engine.level
        assert target.stats.drafted > target.stats.accepted > 0


class OnlyHigh:
    """Allows ids that no short list holds."""

    def masks(self, proposal: SequenceOf[int]) -> NDArray[np.uint32]:
        masks = np.zeros((len(proposal) + 1, 32), np.uint32)
        masks[:, 20:31] = 0xFFFFFFFF
        return masks

    def accept(self, token: int) -> None:
        pass


def test_a_draft_ends_where_its_grammar_allows_nothing_that_it_has_read(
    tmp_path: Path, seed: int
) -> None:
    model = Model.open(make_model(tmp_path, SHAPES["llama"], seed), machine=Machine.choose(1))
    found = []
    for drafter in (NoDraft(), Level(model.as_draft(Head(64)), NoDraft(), length=5)):
        sequence = Sequence([1, 2, 3], _native.Picker(), 3, grammar=OnlyHigh())
        level = Level(model, drafter)
        while len(sequence.tokens) < 30:
            [step] = level.advance([DraftRequest(sequence, 30 - len(sequence.tokens))])
            sequence.tokens.extend(step.tokens)
        level.release(sequence)
        found.append(list(sequence.tokens))
    assert found[0] == found[1]
    assert all(640 <= token < 992 for token in found[0][3:])


# --- As much as pays ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large_head(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Model:
    """Two thirds of its draft are the head."""
    shape = Shape(hidden=32, ffn=32, vocab=8192, layers=2, is_peaked=True)
    directory = make_model(tmp_path_factory.mktemp("large"), shape, seed)
    return Model.open(directory, machine=Machine.choose(1))


def test_as_much_as_pays_is_read(large_head: Model, rng: np.random.Generator) -> None:
    partial_head, left_out = large_head.decoder.partial_head, []
    for low, high in ((0, 200), (0, 8192), (0, 200)):
        for _ in range(150):
            picks = [int(i) for i in rng.integers(low, high, 4)]
            partial_head.picked(picks, picks[:3])
            if high == 8192:
                partial_head.read([5] * 16384)  # so that nothing of late helps
        left_out.append(np.isneginf(logits_of(large_head, HEAD_AS_PAYS, [[1, 2]])).any())
    assert left_out == [True, False, True]


def test_a_target_counts_its_own_picks_alone(large_head: Model) -> None:
    """Drafts and their verification by another draft say nothing about what the sequence needs."""
    partial_head = large_head.decoder.partial_head
    sequence = Sequence([1, 2, 3], _native.Picker(), 3)
    draft = large_head.as_draft()
    before = partial_head.num_picks
    Level(draft, NoDraft(), length=4).propose([DraftRequest(sequence, 4)])
    assert partial_head.num_picks == before
    [step] = Level(large_head, NoDraft()).advance([DraftRequest(sequence, 1)])
    assert partial_head.num_picks == before + 1
    assert step.tokens[0] // PANEL in partial_head.panels(1, 512)
    large_head.release(sequence)


def test_a_small_model_drafts_by_the_shortlist_of_its_target(plain: LLM) -> None:
    llm = plain.with_draft([str(plain.directory.parent / "small")])
    target, small = (each.model for each in llm.engine.level.levels if isinstance(each, Level))
    assert small.head == HEAD_AS_PAYS
    before = plain.model.decoder.partial_head.num_picks
    expected = plain.generate([[1, 2, 3]], SamplingParams(max_tokens=20))[0].tokens
    assert llm.generate([[1, 2, 3]], SamplingParams(max_tokens=20))[0].tokens == expected
    assert target.decoder.partial_head is small.decoder.partial_head
    assert plain.model.decoder.partial_head.num_picks > before


def test_special_ids_are_always_in_the_list(plain: LLM) -> None:
    panels = plain.model.decoder.partial_head.panels(1, 64)
    assert plain.tokenizer.special_ids
    assert {token // PANEL for token in plain.tokenizer.special_ids} <= set(panels)


# --- Words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "head"),
    [
        ("fp4", HEAD_AS_PAYS),
        ("fp4:k=3", HEAD_AS_PAYS),
        ("fp4:head=auto", HEAD_AS_PAYS),
        ("fp4:head=all:k=3", WHOLE_HEAD),
        ("fp4:head=exact", Head(is_exact=True)),
        ("fp4:head=512:k=1", Head(512)),
        ("fp4:head=512+exact", Head(512, True)),
    ],
)
def test_a_word_says_what_is_read_of_the_head(word: str, head: Head) -> None:
    spec = DraftSpec.parse(word)
    assert (spec.kind, spec.head) == ("self", head)


@pytest.mark.parametrize("value", ["", "0", "-1", "½", "12+", "12+fp4", "exact+12", "most"])
def test_a_head_without_sense_is_refused(value: str) -> None:
    word = f"fp4:head={value}"
    assert f"'head={value}'" in refused(RequestError, DraftSpec.parse, word)


def test_a_model_may_be_called_head() -> None:
    assert DraftSpec.parse("./small:head=3").source == "./small:head=3"
