"""The head of drafts: its best panels are exact, what a partial head leaves out has no logit,
and no sequence changes."""

from collections.abc import Sequence as SequenceOf
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import LLM, SamplingParams, _native
from specqd._native import Context, DraftRequest, Level, NoDraft, Rows, Sequence, testing
from specqd.formats.fp4 import DraftFormat
from specqd.model.model import Machine, Model
from support.families import FAMILY_SHAPES
from support.kernel_values import BLOCK, PANEL, PORTABLE, bf16_values, tiled
from support.random_models import (
    Shape,
    change_model,
    make_model,
    read_model,
)

BEST_PANELS = 8
SHAPES = {
    "llama": Shape(hidden=96, ffn=64, vocab=1013, is_peaked=True, context=256),
    "qwen2, tied": Shape("qwen2", hidden=40, ffn=48, vocab=700, is_tied=True),
    "capped": FAMILY_SHAPES["gemma2"],
    "scaled": FAMILY_SHAPES["granite"],
}
FIRST_IDS = (1, 130)


def logits_of(
    model: Model, sequences: SequenceOf[SequenceOf[int]], *, is_partial: bool = False
) -> NDArray[np.float32]:
    """Logits of all tokens, in one forward of the fp4 precision, after one of the exact precision
    that leaves finite logits wherever it can."""
    draft = model.as_draft()
    if is_partial:
        draft.read_partial_head()
    contexts = [Context(model.cache.create()) for _ in sequences]
    batch = [
        Rows(context, 0, list(sequence), len(sequence))
        for context, sequence in zip(contexts, sequences, strict=True)
    ]
    model.forward(batch)
    assert np.isfinite(model.decoder.logits()).all()
    draft.forward(batch)
    for context in contexts:
        model.cache.release(context.slot)
    return model.decoder.logits()


def listed(model: Model) -> NDArray[np.bool_]:
    """[panels]: whether a partial head reads the panel."""
    panels = -(-model.vocabulary // PANEL)
    found = np.zeros(panels, bool)
    found[model.decoder.partial_head.panels(panels)] = True
    return found


def make_idle_model(directory: Path, shape: Shape, seed: int) -> Path:
    """A model whose layers add zero: the head reads normed embeddings in every precision."""

    def silence(tensors: dict[str, Any]) -> None:
        for name, bits in tensors.items():
            if "o_proj." in name or "down_proj." in name:
                bits[:] = 0

    return change_model(make_model(directory, shape, seed), silence)


def head_of(directory: Path) -> NDArray[np.uint16]:
    _, tensors = read_model(directory)
    tied = tensors["model.embed_tokens.weight"]
    return np.asarray(tensors.get("lm_head.weight", tied), np.uint16)


def fp4_logits(model: Model, directory: Path, tokens: SequenceOf[int]) -> NDArray[np.float32]:
    """Logits that an idle model's head has by its FP4 weights alone, [rows, panels, 16]."""
    _, tensors = read_model(directory)
    config, head = model.config, head_of(directory)
    rows, tiles = -(-len(head) // PANEL) * PANEL, -(-head.shape[1] // BLOCK)
    padded = np.zeros((rows, tiles * BLOCK), np.uint16)
    padded[: head.shape[0], : head.shape[1]] = head
    packed = PORTABLE.pack(tiled(padded), DraftFormat.MXFP4.value)
    embeddings = bf16_values(tensors["model.embed_tokens.weight"])[list(tokens)]
    embeddings *= np.float32(config.embedding_scale)
    norm = tensors["model.norm.weight"]
    normed = [
        PORTABLE.rms_norm(row, norm, config.norm_eps, config.norm_offset) for row in embeddings
    ]
    logits = PORTABLE.product("fp4", packed, np.stack(normed))
    if config.logit_softcap:
        cap = config.logit_softcap
        logits = np.stack([PORTABLE.soft_cap(row, config.logit_scale, cap) for row in logits])
    else:
        logits *= np.float32(config.logit_scale)
    return logits.reshape(len(logits), -1, PANEL)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", testing.kernel_names())
@pytest.mark.parametrize("name", SHAPES)
def test_a_draft_s_logits_are_exact_in_each_row_s_best_panels(
    name: str, isa: str, threads: int, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    """All others are those of the FP4 weights, or -inf where a partial head does not read them."""
    machine = Machine(_native.Pool(threads), isa)
    make_idle_model(tmp_path, SHAPES[name], seed)
    model = Model.open(tmp_path, machine=machine, draft=DraftFormat.MXFP4)
    unread = 2 * PANEL  # the last ids: of one panel, whatever the draws, nothing is listed
    some = [int(i) for i in rng.integers(0, model.vocabulary - unread, 5)]
    model.decoder.partial_head.record(some)
    model.decoder.partial_head.keep([model.vocabulary - 1])
    for lengths, ids in product(([1], [3], [9, 1, 24]), FIRST_IDS):
        model.decoder.partial_head.set_first_ids(ids)
        sequences = [[int(i) for i in rng.integers(0, model.vocabulary, n)] for n in lengths]
        tokens = list(chain.from_iterable(sequences))
        coarse = fp4_logits(model, tmp_path, tokens)
        exact = np.full_like(coarse, np.nan).reshape(len(tokens), -1)
        exact[:, : model.vocabulary] = np.concatenate([model.logits(each) for each in sequences])
        for is_partial in (False, True):
            expected = coarse.copy()
            if is_partial:
                expected[:, ~listed(model)] = -np.inf
                assert not listed(model).all()
            for row, panels in enumerate(expected):
                best = np.argsort(-panels.max(axis=-1), kind="stable")[:BEST_PANELS]
                best = best[np.isfinite(panels[best, 0])]
                panels[best] = exact[row].reshape(panels.shape)[best]
            found = logits_of(model, sequences, is_partial=is_partial)
            expected = expected.reshape(len(tokens), -1)[:, : model.vocabulary]
            np.testing.assert_array_equal(found, expected)


def test_an_exact_precision_after_a_short_one_has_all_its_logits(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    model = Model.open(make_model(tmp_path, SHAPES["llama"], seed), machine=Machine.choose(1))
    tokens = [int(i) for i in rng.integers(0, model.vocabulary, 20)]
    expected = model.logits(tokens)
    model.decoder.partial_head.set_first_ids(1)
    assert np.isneginf(logits_of(model, [tokens], is_partial=True)).any()
    np.testing.assert_array_equal(model.logits(tokens), expected)


def test_bytes_moved_are_those_of_the_panels_read(tmp_path: Path, seed: int) -> None:
    model = Model.open(make_model(tmp_path, SHAPES["llama"], seed), machine=Machine.choose(1))
    model.decoder.partial_head.set_first_ids(130)
    moved = {}
    for rows, is_partial in product((1, 3), (False, True)):
        logits_of(model, [list(range(rows))], is_partial=is_partial)
        moved[rows, is_partial] = model.decoder.moved_bytes
    panels, tiles = -(-1013 // PANEL), 96 // 32
    exact = sum(model.weights.matrices[-1].weight.plane_bytes().values()) * BEST_PANELS / panels
    for rows in (1, 3):
        whole = model.as_draft().bytes_per_forward + rows * exact
        assert moved[rows, False] == pytest.approx(whole, abs=1)
        assert moved[rows, False] - moved[rows, True] == (panels - 9) * tiles * (256 + 16)


# --- No sequence changes --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, seed: int) -> LLM:
    directory = tmp_path_factory.mktemp("head")
    make_model(directory / "target", SHAPES["llama"], seed)
    small = Shape("qwen3", hidden=48, ffn=90, layers=1, vocab=1013, context=256, is_peaked=True)
    make_model(directory / "small", small, seed + 1)
    return LLM(directory / "target", "none", threads=1)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("first_ids", [1, 130, 16384])
def test_a_sequence_is_the_same_with_any_head(
    plain: LLM, first_ids: int, temperature: float
) -> None:
    prompts = [[1, 2, 3], [700, 5], list(range(300, 340)), [9] * 70]
    params = SamplingParams(max_tokens=60, temperature=temperature, seed=7, ignore_eos=True)
    expected = [result.tokens for result in plain.generate(prompts, params)]
    plain.model.decoder.partial_head.set_first_ids(first_ids)
    for drafts in (["fp4:k=4"], ["fp4:k=4", "ngram"]):
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
    model.decoder.partial_head.set_first_ids(64)
    draft, found = model.as_draft(), []
    draft.read_partial_head()
    for drafter in (NoDraft(), Level(draft, NoDraft(), length=5)):
        sequence = Sequence([1, 2, 3], _native.Sampler(), 3, grammar=OnlyHigh())
        level = Level(model, drafter)
        while len(sequence.tokens) < 30:
            [step] = level.advance([DraftRequest(sequence, 30 - len(sequence.tokens))])
            sequence.tokens.extend(step.tokens)
        level.release(sequence)
        found.append(list(sequence.tokens))
    assert found[0] == found[1]
    assert all(640 <= token < 992 for token in found[0][3:])


# --- The list -------------------------------------------------------------------------------------


def test_tokens_that_the_target_samples_are_held(tmp_path: Path, seed: int) -> None:
    """Those of drafts and of their verification by another draft are not."""
    shape = Shape(hidden=32, ffn=32, vocab=8192, layers=2, is_peaked=True)
    model = Model.open(make_model(tmp_path, shape, seed), machine=Machine.choose(1))
    partial_head = model.decoder.partial_head
    partial_head.set_first_ids(1)
    sequence = Sequence([1, 2, 3], _native.Sampler(), 3)
    draft = model.as_draft()
    Level(draft, NoDraft(), length=4).propose([DraftRequest(sequence, 4)])
    assert partial_head.panels(512) == [0]
    [step] = Level(model, NoDraft()).advance([DraftRequest(sequence, 1)])
    assert partial_head.panels(512) == sorted({0, step.tokens[0] // PANEL})
    model.release(sequence)


def test_a_small_model_drafts_by_the_list_of_its_target(plain: LLM) -> None:
    llm = plain.with_draft([str(plain.directory.parent / "small")])
    target, small = (each.model for each in llm.engine.level.levels if isinstance(each, Level))
    expected = plain.generate([[1, 2, 3]], SamplingParams(max_tokens=20))[0].tokens
    assert llm.generate([[1, 2, 3]], SamplingParams(max_tokens=20))[0].tokens == expected
    assert target.decoder.partial_head is small.decoder.partial_head


def test_special_ids_are_always_in_the_list(plain: LLM) -> None:
    panels = plain.model.decoder.partial_head.panels(64)
    assert plain.tokenizer.special_ids
    assert {token // PANEL for token in plain.tokenizer.special_ids} <= set(panels)
