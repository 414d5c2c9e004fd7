"""Drafters with a cache of their own begin with what earlier sequences left there."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM
from specqd._native import DraftRequest, Level, NoDraft, Rows, Sequence
from specqd.formats.fp4 import DraftFormat
from specqd.model.dflash import BlockHead
from specqd.model.heads import Head, keep_prompts
from specqd.model.model import Machine, Model, Precision
from specqd.model.prompt_files import PromptFiles
from specqd.model.prompt_store import PromptStore
from specqd.model.prompt_writer import PromptWriter
from specqd.sampling import SamplingParams as Sampling
from support.dflash_cases import SHAPES, TARGET, Case, block, new_sequence, open_case, read
from support.head_texts import Text, random_text
from support.random_heads import HeadShape, make_head
from support.random_models import make_model
from support.random_mtp import make_mtp_model
from test_heads import open_head

PROMPT = 200  # tokens: three full pages


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """Holds `target`, `small` and the head `head`, and a model `mtp` with an MTP layer."""
    parent = tmp_path_factory.mktemp("prefixes")
    make_model(parent / "target", TARGET, seed)
    make_model(parent / "small", replace(TARGET, layers=1), seed + 1)
    make_head(parent / "head", TARGET, HeadShape(taps=(1, 2, 3)), seed + 2)
    make_mtp_model(parent / "mtp", replace(TARGET, model_type="qwen2"), seed)
    return parent


@pytest.fixture(scope="module")
def model(directory: Path) -> Model:
    return Model.open(directory / "target", machine=Machine.choose(2), cache_positions=4096)


# --- Small models ---------------------------------------------------------------------------------


class Drafted:
    """A model over a small one, whose proposals have a fixed length."""

    def __init__(self, model: Model, directory: Path, precision: Precision) -> None:
        small = Model.open(
            directory / "small",
            machine=model.machine,
            cache_positions=4096,
            precision=precision,
        )
        self.small = Level(small, NoDraft(), length=3)
        self.level = Level(model, self.small)

    def advance(self, sequence: Sequence, count: int) -> int:
        """Makes `count` tokens at least; returns the rows that the small model read for them."""
        before, end = self.small.stats.rows, len(sequence.tokens) + count
        while len(sequence.tokens) < end:
            [step] = self.level.advance([DraftRequest(sequence, 8)])
            sequence.tokens.extend(step.tokens)
        return self.small.stats.rows - before


@pytest.mark.parametrize("precision", Precision)
def test_a_small_model_reads_a_known_beginning_once(
    directory: Path, model: Model, precision: Precision, rng: np.random.Generator
) -> None:
    drafted = Drafted(model, directory, precision)
    prompt = random_text(rng, TARGET.vocab, PROMPT)
    first = new_sequence(prompt)
    assert drafted.advance(first, 12) >= PROMPT
    beside = new_sequence(prompt)  # the first one's prompt is read, and it still runs
    assert drafted.advance(beside, 12) < PROMPT - 128
    for ended in (first, beside):
        drafted.level.release(ended)
    turn = new_sequence([*first.tokens, *random_text(rng, TARGET.vocab, 9)])
    assert drafted.advance(turn, 12) < PROMPT - 128
    drafted.level.release(turn)
    assert turn.tokens[: len(first.tokens)] == first.tokens[:]


def test_a_prompt_of_several_sequences_is_read_once(
    directory: Path, model: Model, rng: np.random.Generator
) -> None:
    drafted = Drafted(model, directory, Precision.EXACT)
    prompt = random_text(rng, TARGET.vocab, PROMPT)
    sequences = [new_sequence(prompt) for _ in range(4)]
    for _ in range(6):
        steps = drafted.level.advance([DraftRequest(each, 8) for each in sequences])
        for each, step in zip(sequences, steps, strict=True):
            each.tokens.extend(step.tokens)
    assert drafted.small.stats.rows < 2 * PROMPT
    assert all(drafted.small.num_unread(each) < 16 for each in sequences)
    for each in sequences:
        drafted.level.release(each)


def test_pages_are_shared_only_within_a_salt_and_where_it_is_allowed(
    directory: Path, model: Model, rng: np.random.Generator
) -> None:
    drafted = Drafted(model, directory, Precision.EXACT)
    prompt = random_text(rng, TARGET.vocab, PROMPT)
    first, salted, unaided = (new_sequence(prompt) for _ in range(3))
    salted.cache_salt, unaided.reuses_prefixes = 7, False
    for sequence in (first, salted, unaided):
        assert drafted.advance(sequence, 4) >= PROMPT
        drafted.level.release(sequence)


def test_a_small_model_proposes_the_same_after_an_adopted_prefix(
    directory: Path, model: Model, rng: np.random.Generator
) -> None:
    drafted = Drafted(model, directory, Precision.EXACT)
    prompt = random_text(rng, TARGET.vocab, PROMPT)
    found = []
    for _ in range(2):
        sequence = new_sequence(prompt)
        while not (proposal := drafted.small.propose([DraftRequest(sequence, 8)])[0]).tokens:
            pass  # the prompt is read in parts
        found.append(proposal.tokens)
        drafted.small.release(sequence)
    assert found[0] == found[1]


# --- Draft heads ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["small", "windows", "yarn"])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> Case:
    return open_case(tmp_path_factory.mktemp("case"), SHAPES[request.param], seed)


def adopt(model: Model, tokens: list[int]) -> Sequence:
    """A sequence that begins with the model's published pages, and whose other tokens are read."""
    sequence = new_sequence(tokens)
    model.adopt_prefix(sequence)
    read(model, sequence)
    return sequence


def end(model: Model, head: Head | BlockHead, sequence: Sequence) -> None:
    """Publishes and releases a sequence, as the engine does."""
    model.publish(sequence)
    head.publish(sequence)
    head.release(sequence)
    model.release(sequence)


def test_blocks_after_an_adopted_prefix_have_the_bits_of_fresh_ones(
    case: Case, rng: np.random.Generator
) -> None:
    tokens = random_text(rng, TARGET.vocab, PROMPT)
    first = new_sequence(tokens)
    read(case.model, first)
    wanted = block(case.head, first, 8)
    end(case.model, case.head, first)
    for _ in range(2):  # the scratch rows of the first block must not be in a shared page
        sequence = adopt(case.model, tokens)
        found = block(case.head, sequence, 8)
        assert case.head.readiness(sequence) == (True, 0, PROMPT - 1, 0)
        assert np.array_equal(found, wanted)
        end(case.model, case.head, sequence)


def test_a_drafter_publishes_what_exact_features_made(case: Case, rng: np.random.Generator) -> None:
    draft = case.model.as_draft()
    head = BlockHead(case.head.files, case.head.decoder, draft, Precision.EXACT)
    tokens = random_text(rng, TARGET.vocab, 150)
    sequence = new_sequence(tokens[:100])
    read(case.model, sequence)
    draft.context(sequence).begin(100)
    sequence.guess(tokens[100:])
    draft.forward([Rows(draft.context(sequence), 99, tokens[99:149], 0)])
    block(head, sequence, 4)
    assert head.readiness(sequence)[2] == 149
    case.model.publish(sequence)
    head.publish(sequence)
    head.release(sequence)
    later = new_sequence(tokens)
    read(case.model, later)
    draft.context(later).begin(len(tokens))
    head.context(later)
    assert head.readiness(later) == (True, 0, 64, 149 - 64)


def test_a_drafter_begins_late_if_it_kept_less_than_the_model(
    case: Case, rng: np.random.Generator
) -> None:
    """It drops the pages that it adopted, and publishes nothing itself."""
    tokens = random_text(rng, TARGET.vocab, PROMPT + 1)[1:]  # another text than the tests above
    first, longer = new_sequence(tokens[:100]), new_sequence(tokens)
    read(case.model, first)
    block(case.head, first, 4)
    end(case.model, case.head, first)
    read(case.model, longer)
    case.model.publish(longer)
    late = adopt(case.model, tokens)
    block(case.head, late, 4)
    assert case.head.readiness(late)[1] == 192
    end(case.model, case.head, late)
    again = adopt(case.model, tokens)
    case.head.context(again)
    assert case.head.readiness(again)[1] == 192
    for sequence in (longer, again):
        end(case.model, case.head, sequence)


def test_pairs_after_an_adopted_prefix_have_the_bits_of_fresh_ones(
    directory: Path, model: Model, rng: np.random.Generator
) -> None:
    head = open_head(directory / "head", model)
    tokens = random_text(rng, TARGET.vocab, PROMPT)
    fresh = Text(model, head, tokens)
    fresh.read()
    wanted = fresh.forward()
    end(model, head, fresh.sequence)
    for _ in range(2):
        text = Text(model, head, tokens)
        assert model.adopt_prefix(text.sequence) == 192
        text.read()
        assert head.context(text.sequence).length == 1 + 192
        assert np.array_equal(text.forward(), wanted[192:])
        end(model, head, text.sequence)


# --- Restarts -------------------------------------------------------------------------------------


def keep(case: Case, kept: Path) -> PromptWriter:
    writer = PromptWriter(PromptFiles(kept))
    case.model.keep_prompts(writer)
    keep_prompts(case.head, case.model, DraftFormat.FP4)
    return writer


@pytest.mark.parametrize("shape", ["small", "windows", "yarn"])
def test_blocks_have_the_same_bits_after_a_restart(
    tmp_path: Path, shape: str, rng: np.random.Generator, seed: int
) -> None:
    tokens = random_text(rng, TARGET.vocab, PROMPT)
    first = open_case(tmp_path, SHAPES[shape], seed)
    writer = keep(first, tmp_path / "kept")
    before = new_sequence(tokens)
    read(first.model, before)
    wanted = block(first.head, before, 8)
    end(first.model, first.head, before)
    writer.flush()
    second = open_case(tmp_path, SHAPES[shape], seed)
    keep(second, tmp_path / "kept")
    sequence = adopt(second.model, tokens)
    assert np.array_equal(block(second.head, sequence, 8), wanted)
    assert second.head.readiness(sequence) == (True, 0, PROMPT - 1, 0)
    others = {  # another drafter of this model, and one that reads its layers in another order
        "weights": (SHAPES[shape], seed + 1),
        "taps": (replace(SHAPES[shape], taps=SHAPES[shape].taps[::-1]), seed),
    }
    for name, (of_other, its_seed) in others.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "target").symlink_to(tmp_path / "target")
        other = open_case(tmp_path / name, of_other, its_seed)
        keep(other, tmp_path / "kept")
        sequence = adopt(other.model, tokens)
        block(other.head, sequence, 8)
        assert other.head.readiness(sequence)[1] == 192  # it begins where the model's pages end


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("target", "{}/small"),
        ("target", "{}/small:fp4"),
        ("target", "head:{}/head"),
        ("mtp", "mtp"),
    ],
)
def test_drafters_go_on_after_a_restart(
    directory: Path,
    target: str,
    words: str,
    tmp_path: Path,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load, loaded = PromptStore._load, []

    def counted(store: PromptStore, slot: int, names: list[str], first: int) -> tuple[int, bool]:
        end, had_room = load(store, slot, names, first)
        loaded.append(end)
        return end, had_room

    monkeypatch.setattr(PromptStore, "_load", counted)
    prompt, texts, reads = random_text(rng, TARGET.vocab, PROMPT), [], []
    params = Sampling(temperature=0.8, seed=4, max_tokens=12, ignore_eos=True)
    draft = words.format(directory)
    for drafts, kept in (("none", None), (draft, tmp_path / "kept"), (draft, tmp_path / "kept")):
        with LLM(directory / target, drafts, threads=1, prompt_cache=kept) as llm:
            texts.append(llm.generate([prompt], params)[0].completions[0].tokens)
            reads += [level.stats.rows for level in llm.engine.level.levels[1:]]
    assert texts[0] == texts[1] == texts[2]
    assert loaded == [0, 0, 3, 3]  # pages of the model and of its drafter
    assert reads[1] < PROMPT - 128 < reads[0]


# --- Texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", ["small", "small:fp4", "head:head"])
def test_conversations_have_the_texts_of_plain_decoding(
    directory: Path, name: str, temperature: float, rng: np.random.Generator
) -> None:
    kind, _, last = name.rpartition(":")
    word = f"head:{directory / last}" if kind == "head" else str(directory / name)
    plain = LLM(directory / "target", "none", threads=1)
    drafted = plain.with_draft([word])
    turns = [random_text(rng, TARGET.vocab, count) for count in (100, 20, 30)]
    params = Sampling(temperature=temperature, seed=4, max_tokens=30, ignore_eos=True)
    tokens: dict[LLM, list[int]] = {}
    for llm in (plain, drafted):
        tokens[llm] = []
        for turn in turns:
            tokens[llm] += turn
            tokens[llm] += llm.generate([tokens[llm]], params)[0].completions[0].tokens
    assert tokens[plain] == tokens[drafted]
