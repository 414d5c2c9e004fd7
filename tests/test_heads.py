"""Trained heads: logits against torch's, the same bits however rows are grouped, exact texts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, _native
from specqd._native import DraftRequest, Level, NoDraft, Rows, Sequence
from specqd.formats.fp4 import DraftFormat
from specqd.model.heads import Head, HeadFiles, load_head
from specqd.model.model import Machine, Model, Precision
from specqd.sampling import SamplingParams as Sampling
from support.engines import preempt_at_random
from support.head_texts import Text, check_golden, random_text, texts
from support.random_heads import HeadShape, make_head, make_knowing_head
from support.random_models import Shape, make_model

GOLDENS = Path(__file__).parent / "goldens" / "heads"
NAMES = sorted(path.parent.name for path in GOLDENS.glob("*/golden.npz"))

TARGET = Shape(layers=4, context=256, is_peaked=True)
HEAD = HeadShape(taps=(1, 2, 3), heads=7, kv_heads=1, head_dim=40, tokens=97)


def open_head(directory: Path, above: Model, precision: Precision = Precision.EXACT) -> Head:
    files = HeadFiles.open(directory, above.config)
    return Head(files, load_head(files, above, DraftFormat.FP4), above, precision)


# --- Against torch --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_logits_err_no_more_than_torch_in_bf16(name: str) -> None:
    golden = np.load(GOLDENS / name / "golden.npz")
    model = Model.open(GOLDENS / "target", machine=Machine.choose(1))
    check_golden(model, open_head(GOLDENS / name, model), golden)


def test_there_are_goldens() -> None:
    assert len(NAMES) >= 5


# --- The same bits --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """Holds `target`, the random heads `head` and `shared`, and `knowing`."""
    parent = tmp_path_factory.mktemp("heads")
    target = make_model(parent / "target", TARGET, seed)
    make_head(parent / "head", TARGET, HEAD, seed + 1)
    make_head(parent / "shared", TARGET, replace(HEAD, tokens=None, taps=(1, 4)), seed + 2)
    make_knowing_head(parent / "knowing", target, TARGET)
    return parent


@pytest.fixture(scope="module")
def model(directory: Path) -> Model:
    return Model.open(directory / "target", machine=Machine.choose(2), cache_positions=4096)


@pytest.fixture(scope="module")
def head(directory: Path, model: Model) -> Head:
    return open_head(directory / "head", model)


def test_pairs_have_the_same_bits_in_parts_and_in_batches(
    model: Model, head: Head, rng: np.random.Generator
) -> None:
    texts = [random_text(rng, TARGET.vocab, count) for count in (150, 2, 40)]
    alone = []
    for tokens in texts:
        text = Text(model, head, tokens)
        text.read()
        alone.append(text.forward())
        assert len(alone[-1]) == len(tokens) - 1
    together = [Text(model, head, tokens) for tokens in texts]
    for text in together:
        text.read()
    head.forward([text.rows() for text in together])
    assert np.array_equal(head.logits(), np.concatenate(alone))
    parts = Text(model, head, texts[0][:30])
    parts.read()
    first = parts.forward()
    parts.sequence.tokens.extend(texts[0][30:])
    while model.context(parts.sequence).length < len(texts[0]) - 1:
        parts.read(int(rng.integers(1, 40)))
    assert np.array_equal(np.concatenate([first, parts.forward()]), alone[0])


def test_pairs_of_guesses_are_made_again_once_their_features_are_known(
    model: Model, head: Head, rng: np.random.Generator
) -> None:
    tokens = random_text(rng, TARGET.vocab, 60)
    fresh = Text(model, head, tokens)
    fresh.read()
    wanted = fresh.forward()
    text = Text(model, head, tokens[:20])
    text.read()
    text.forward()
    while (count := len(text.sequence.tokens)) < len(tokens):
        accepted = int(rng.integers(0, 4))
        right = tokens[count : count + accepted]
        for token in [*right, *random_text(rng, TARGET.vocab, 2)]:
            text.guess(token)
        text.sequence.forget_guesses(len(right) + 2)
        text.sequence.tokens.extend(tokens[count : count + accepted + 1])
        context = model.context(text.sequence)
        rejected = random_text(rng, TARGET.vocab, 3)  # their features must not be read
        new = text.sequence.tokens[context.length : -1]
        model.forward([Rows(context, context.length, [*new, *rejected], 1)])
        context.record(len(text.sequence.tokens) - 1, [])
        assert np.array_equal(text.forward(), wanted[count - 1 : count + len(right)])


def test_a_head_of_the_fp4_precision_reads_exact_features_after_verification(
    directory: Path, model: Model, rng: np.random.Generator
) -> None:
    draft = model.as_draft()
    head = open_head(directory / "head", draft)
    tokens = random_text(rng, TARGET.vocab, 30)
    text = Text(model, head, tokens)
    text.read()
    draft.context(text.sequence).begin(len(tokens))
    before = text.forward()
    text.sequence.guess(guesses := random_text(rng, TARGET.vocab, 2))
    context = draft.context(text.sequence)
    draft.forward([Rows(context, len(tokens) - 1, [tokens[-1], guesses[0]], 1)])
    drafted = text.forward()  # from features of the fp4 precision
    text.sequence.forget_guesses(2)
    text.sequence.tokens.extend(guesses)
    exact = model.context(text.sequence)
    model.forward([Rows(exact, len(tokens) - 1, [tokens[-1], guesses[0]], 1)])
    draft.context(text.sequence).begin(len(tokens) + 2)
    settled = text.forward()
    fresh = Text(model, open_head(directory / "head", model), [*tokens, *guesses])
    fresh.read()
    wanted = fresh.forward()
    assert np.array_equal(before, wanted[: len(tokens) - 1])
    assert np.array_equal(settled, wanted[len(tokens) - 1 :])
    assert not np.array_equal(drafted, settled)


def test_a_head_begins_late_behind_an_adopted_prefix(
    model: Model, head: Head, rng: np.random.Generator
) -> None:
    tokens = random_text(rng, TARGET.vocab, 100)
    first = Text(model, head, tokens)
    first.read()
    model.publish(first.sequence)
    model.release(first.sequence)
    text = Text(model, head, tokens)
    assert model.adopt_prefix(text.sequence) == _native.PAGE_POSITIONS
    text.read()
    assert head.context(text.sequence).length == _native.PAGE_POSITIONS + 1
    assert len(text.forward()) == 100 - _native.PAGE_POSITIONS - 1
    head.release(text.sequence)


def test_a_head_begins_late_where_the_log_is_too_short(directory: Path) -> None:
    long = Model.open(
        directory / "target", machine=Machine.choose(1), cache_positions=2048, max_rows=64
    )
    head = open_head(directory / "head", long)
    text = Text(long, head, [1] * 255)
    for _ in range(8):  # the model's context is short, so positions are written again and again
        text.read()
        long.context(text.sequence).record(0, [])
    text.read()
    assert len(text.forward()) == 254


def test_a_head_without_features_still_proposes(
    model: Model, head: Head, rng: np.random.Generator
) -> None:
    tokens = random_text(rng, TARGET.vocab, 129)
    first = Text(model, head, tokens)
    first.read()
    model.publish(first.sequence)
    text = Text(model, head, tokens)
    assert model.adopt_prefix(text.sequence) == 128
    level = Level(head, NoDraft(), length=3, name="head")
    [proposal] = level.propose([DraftRequest(text.sequence, 5)])
    assert len(proposal.tokens) == 3
    for each in (first, text):
        head.release(each.sequence)
        model.release(each.sequence)


def test_a_knowing_head_is_mostly_right_and_proposes_ids_of_the_target(
    directory: Path, model: Model, rng: np.random.Generator
) -> None:
    other = Model.open(directory / "target", machine=Machine.choose(2), cache_positions=1024)
    level = Level(
        other, Level(open_head(directory / "knowing", other), NoDraft(), length=3, name="h")
    )
    for _ in range(8):  # a text may end in a cycle in which the head is always wrong
        sequence = Sequence(random_text(rng, TARGET.vocab, 10), Sampling().sampler(0, 0), 10)
        for _ in range(10):
            [made] = level.advance([DraftRequest(sequence, 8)])
            sequence.tokens.extend(made.tokens)
        level.release(sequence)
    assert level.stats.drafted >= 200
    assert level.stats.accepted > 0.2 * level.stats.drafted


# --- Texts ----------------------------------------------------------------------------------------

CHAINS = [
    ["head:HEAD"],
    ["head:HEAD:bf16:k=4"],
    ["head:KNOWING:k=5"],
    ["fp4", "head:KNOWING"],
    ["fp4:k=6", "head:HEAD:k=3"],
    ["head:SHARED:k=2|ngram"],
    ["fp4|head:KNOWING|ngram"],
]


@pytest.mark.parametrize("words", CHAINS, ids="+".join)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("preempts", [False, True])
def test_texts_under_heads_are_those_of_plain_decoding(
    directory: Path,
    words: list[str],
    temperature: float,
    preempts: bool,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {name.upper(): str(directory / name) for name in ("head", "knowing", "shared")}
    for name, path in files.items():
        words = [word.replace(name, path) for word in words]
    plain = LLM(directory / "target", "none", threads=1)
    drafted = plain.with_draft(words)
    wanted = texts(plain, np.random.default_rng(seed), TARGET.vocab, temperature)
    if preempts:
        preempt_at_random(drafted.engine, np.random.default_rng(seed), monkeypatch)
    assert texts(drafted, np.random.default_rng(seed), TARGET.vocab, temperature) == wanted
    chain = [each.name for each in drafted.engine.level.levels]
    assert any(name.startswith("head:") for name in chain)
