"""MTP layers: logits against torch's, and exact texts under chains with them."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, _native
from specqd.config import read_config
from specqd.config.families import names_of
from specqd.formats.fp4 import DraftFormat
from specqd.model.dry_run import tensors_read
from specqd.model.heads import Head
from specqd.model.layers import LayerReader
from specqd.model.loader import Loader
from specqd.model.model import Machine, Model, Precision
from specqd.model.mtp import MtpFiles, load_mtp
from specqd.model.weights import open_weights
from support.engines import preempt_at_random
from support.families import FAMILY_SHAPES
from support.head_texts import Text, check_golden, random_text, texts
from support.random_models import Shape
from support.random_mtp import make_mtp_model

GOLDENS = sorted(path.parent for path in Path(__file__).parent.glob("goldens/mtp/*/golden.npz"))
MIMO = Shape("qwen2", layers=3, context=256, vocab=300, is_peaked=True)
FAMILIES = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
FAMILIES |= {name: name for name in ("qwen3_next", "glm4_moe", "glm4_moe_lite", "deepseek_v3")}
SHAPES = {name: replace(FAMILY_SHAPES[kind], context=256) for name, kind in FAMILIES.items()}
SHAPES["mimo"] = MIMO


def open_mtp(directory: Path, above: Model, precision: Precision = Precision.EXACT) -> Head:
    files = MtpFiles.open(directory, above.config)
    return Head(files, load_mtp(files, above, DraftFormat.FP4), above, precision)


# --- Against torch --------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", GOLDENS, ids=lambda path: path.name)
def test_logits_err_no_more_than_torch_in_bf16(directory: Path) -> None:
    model = Model.open(directory, machine=Machine.choose(1))
    check_golden(model, open_mtp(directory, model), np.load(directory / "golden.npz"))


def test_there_are_goldens() -> None:
    assert len(GOLDENS) == 7


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize(
    "field", ["mtp_reads_normed", "mtp_recycles_normed", "mtp_hidden_first", "mtp_blanks_first"]
)
def test_every_field_matters(
    family: str, field: str, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    shape, found = SHAPES[family], []
    tokens, guess = random_text(rng, shape.vocab, 9), int(rng.integers(shape.vocab))
    for value in (False, True):
        directory = make_mtp_model(tmp_path / str(value), shape, seed, **{field: value})
        model = Model.open(directory, machine=Machine.choose(1), cache_positions=256)
        text = Text(model, open_mtp(directory, model), tokens)
        text.read()
        found.append(np.concatenate([text.forward(), text.guess(guess)]))
    assert not np.array_equal(*found)
    if field == "mtp_recycles_normed":  # in guesses alone
        assert np.array_equal(found[0][:-1], found[1][:-1])
    if field == "mtp_blanks_first":  # the first pair's key has no embedding in all rows
        assert not np.array_equal(found[0][0], found[1][0])


@pytest.mark.parametrize("directory", GOLDENS, ids=lambda path: path.name)
def test_a_dry_run_names_the_tensors_that_loading_reads(directory: Path) -> None:
    model, config = Model.open(directory, machine=Machine.choose(1)), read_config(directory)

    def read(loader: Loader) -> None:
        layers = LayerReader(loader, config, names_of(config))
        for index in range(config.num_layers):
            layers.layer(index)

    found, weights = tensors_read(open_weights(directory), read), model.weights
    loaded = {name.partition("[")[0] for each in weights.matrices for name in each.names}
    loaded |= {*weights.unpacked}
    assert found == {name for name in loaded if name.startswith("model.layers.")}


# --- The same bits --------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SHAPES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def directory(family: str, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """Holds models with the MTP layers `random` and `knowing`."""
    parent = tmp_path_factory.mktemp("mtp")
    make_mtp_model(parent / "random", SHAPES[family], seed)
    make_mtp_model(parent / "knowing", SHAPES[family], seed, is_knowing=True)
    return parent


def test_pairs_of_guesses_are_made_again_once_their_features_are_known(
    directory: Path, family: str, rng: np.random.Generator
) -> None:
    model = Model.open(directory / "random", machine=Machine.choose(2), cache_positions=1024)
    head, vocab = open_mtp(directory / "random", model), SHAPES[family].vocab
    tokens = random_text(rng, vocab, 70)  # crosses two anchors of recurrent layers
    fresh = Text(model, head, tokens)
    fresh.read()
    wanted = fresh.forward()
    text = Text(model, head, tokens[:20])
    text.read()
    text.forward()
    while (count := len(text.sequence.tokens)) < len(tokens):
        for token in random_text(rng, vocab, int(rng.integers(1, 4))):
            text.guess(token)
        text.sequence.forget_guesses(len(text.sequence.tokens) - count)
        text.sequence.tokens.extend(tokens[count : count + int(rng.integers(1, 5))])
        text.read()
        assert np.array_equal(text.forward(), wanted[count - 1 : len(text.sequence.tokens) - 1])


def test_pairs_have_the_same_bits_in_parts_in_batches_and_on_all_instruction_sets(
    directory: Path, family: str, rng: np.random.Generator
) -> None:
    vocab, found = SHAPES[family].vocab, {}
    tokens = [random_text(rng, vocab, count) for count in (140, 2, 33)]
    guesses = random_text(rng, vocab, 3)
    for isa in _native.available_isas():
        model = Model.open(
            directory / "random", machine=Machine.choose(2, isa), cache_positions=1024
        )
        head = open_mtp(directory / "random", model)
        together = [Text(model, head, each) for each in tokens]
        for text in together:
            text.read()
        head.forward([text.rows() for text in together])
        rows = head.logits()
        for text, guess in zip(together, guesses, strict=True):
            text.sequence.guess([guess])
        head.forward([text.rows() for text in together])
        found[isa] = np.concatenate([rows, head.logits()])
        parts = Text(model, head, tokens[0][:50])
        parts.read()
        first = parts.forward()
        parts.sequence.tokens.extend(tokens[0][50:])
        parts.read()
        again = np.concatenate([first, parts.forward(), parts.guess(guesses[0])])
        assert np.array_equal(again[:-1], rows[:139])
        assert np.array_equal(again[-1], found[isa][len(rows)])
    first_isa, *others = found
    for isa in others:
        assert np.array_equal(found[isa], found[first_isa]), isa


# --- Texts ----------------------------------------------------------------------------------------

CHAINS = [["mtp"], ["mtp:bf16:k=4"], ["fp4", "mtp"], ["fp4:k=6", "mtp:k=3"], ["mtp:k=2|ngram"]]
CHAINS += [["auto"]]


@dataclass(frozen=True, slots=True)
class Plain:
    """A model without drafts, and its texts by temperature."""

    llm: LLM
    texts: dict[float, list[str]]


@pytest.fixture(scope="module", params=["random", "knowing"])
def plain(request: pytest.FixtureRequest, directory: Path, family: str, seed: int) -> Plain:
    llm, vocab = LLM(directory / str(request.param), "none", threads=1), SHAPES[family].vocab
    made = {t: texts(llm, np.random.default_rng(seed), vocab, t) for t in (0.0, 0.8)}
    return Plain(llm, made)


@pytest.mark.parametrize("words", CHAINS, ids="+".join)
@pytest.mark.parametrize("preempts", [False, True])
def test_texts_under_mtp_layers_are_those_of_plain_decoding(
    plain: Plain,
    family: str,
    words: list[str],
    preempts: bool,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafted, vocab = plain.llm.with_draft(words), SHAPES[family].vocab
    for temperature, wanted in plain.texts.items():
        if preempts:
            preempt_at_random(drafted.engine, np.random.default_rng(seed), monkeypatch)
        assert texts(drafted, np.random.default_rng(seed), vocab, temperature) == wanted
    assert "mtp" in [each.name for each in drafted.engine.level.levels]


def test_a_knowing_layer_is_right_ten_times_as_often_as_by_chance(
    directory: Path, family: str, seed: int
) -> None:
    llm, vocab = LLM(directory / "knowing", "mtp:k=3", threads=1), SHAPES[family].vocab
    for temperature in (0.0, 0.8):  # a greedy text may repeat a few tokens that it does not know
        texts(llm, np.random.default_rng(seed), vocab, temperature)
    stats = llm.engine.level.stats
    assert stats.drafted >= 100
    assert stats.accepted > 10 * stats.drafted / vocab
