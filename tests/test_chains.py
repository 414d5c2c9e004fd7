"""Chains of drafts: what the words mean, what is refused, and what is shared."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd._native import Level, NoDraft
from specqd.cli import main
from specqd.engine.reports import chain_of
from specqd.errors import (
    HubError,
    LoadedFormatError,
    RequestError,
    SpecqdError,
    TokenizerError,
)
from specqd.formats.fp4 import DraftFormat
from specqd.llm.draft_words import DraftSpec, parse_chain
from specqd.model.model import Model, Precision
from specqd.text.text_file import json_lines
from support.random_models import Shape, change_model, make_model, swap_tokens
from support.refusals import refused

TARGET = Shape(is_peaked=True, layers=3, context=256)
SMALL = Shape("qwen3", hidden=48, ffn=90, layers=1, context=256, is_peaked=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """Holds `target`, `small` and `other:one`, which share a tokenizer."""
    parent = tmp_path_factory.mktemp("models")
    make_model(parent / "target", TARGET, seed)
    make_model(parent / "small", SMALL, seed + 1)
    make_model(parent / "other:one", SMALL, seed + 2)
    return parent


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return LLM(directory / "target", "none", threads=1)


def models_of(llm: LLM) -> list[Model]:
    return [level.model for level in llm.engine.level.levels if isinstance(level, Level)]


# --- Words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "kind", "source", "precision", "length", "draft"),
    [
        ("fp4", "self", "", Precision.FP4, None, DraftFormat.FP4),
        ("fp4:k=8", "self", "", Precision.FP4, 8, DraftFormat.FP4),
        ("mxfp4", "self", "", Precision.FP4, None, DraftFormat.MXFP4),
        ("mxfp4:k=8", "self", "", Precision.FP4, 8, DraftFormat.MXFP4),
        ("./small", "model", "./small", Precision.FP4, None, None),
        ("./small:fp4", "model", "./small", Precision.FP4, None, DraftFormat.FP4),
        ("./small:mxfp4", "model", "./small", Precision.FP4, None, DraftFormat.MXFP4),
        ("./small:bf16", "model", "./small", Precision.EXACT, None, None),
        ("./small:bf16:k=64", "model", "./small", Precision.EXACT, 64, None),
        ("./small:k=3", "model", "./small", Precision.FP4, 3, None),
        ("./a:b:c:bf16:k=1", "model", "./a:b:c", Precision.EXACT, 1, None),
        ("./a:b", "model", "./a:b", Precision.FP4, None, None),
        ("./fp4", "model", "./fp4", Precision.FP4, None, None),
        ("C:\\models\\small", "model", "C:\\models\\small", Precision.FP4, None, None),
        ("owner/name@main:bf16", "model", "owner/name@main", Precision.EXACT, None, None),
        ("ngram", "ngram", "", Precision.FP4, None, None),
        ("ngram:k=5", "ngram", "", Precision.FP4, 5, None),
        ("ngram:a:b.txt:k=5", "ngram", "a:b.txt", Precision.FP4, 5, None),
    ],
)
def test_a_word_is_a_level(
    word: str,
    kind: str,
    source: str,
    precision: Precision,
    length: int | None,
    draft: DraftFormat | None,
) -> None:
    expected = DraftSpec(word, kind, source, precision, draft, length)  # type: ignore[arg-type]
    assert DraftSpec.parse(word) == expected


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("none", []),
        (None, []),
        ([], []),
        ("fp4", ["fp4"]),
        (["fp4", "./small:fp4", "ngram"], ["fp4", "./small:fp4", "ngram"]),
        (["./a", "./b:bf16", "./c", "./d"], ["./a", "./b:bf16", "./c", "./d"]),
    ],
)
def test_a_chain_is_read_from_the_outermost_in(
    words: str | list[str] | None, found: list[str]
) -> None:
    assert [spec.word for spec in parse_chain(words)] == found


def test_auto_adds_heads_in_both_places() -> None:
    specs = parse_chain(["auto", "head:a", "head:b:k=3"], has_mtp=True)
    found = ["|".join(each.word for each in spec.members) for spec in specs]
    assert found == ["fp4|mtp|head:a|head:b:k=3|ngram", "mtp|head:a|head:b:k=3|ngram"]
    [only] = parse_chain(["auto", "head:a"], is_mxfp4=True)
    assert [each.word for each in only.members] == ["head:a", "ngram"]


def test_the_default_chain_leaves_out_the_precision_of_the_target() -> None:
    assert parse_chain("auto")[0].word == "fp4"
    assert "fp4" not in [spec.word for spec in parse_chain("auto", Precision.FP4)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["none", "fp4"], "only word"),
        (["fp4", "auto"], "only word"),
        (["auto", "./small"], "only word"),
        (["auto", "head:a|ngram"], "only word"),
        (["none", "head:a"], "only word"),
        (["auto:k=4"], "not a draft"),
        (["none:k=4"], "not a draft"),
        ([""], "not a draft"),
        (["fp4:bf16"], "'bf16'"),
        (["fp4:k=0"], "k=0"),
        (["fp4:k=65"], "k=65"),
        (["fp4:k=many"], "k=many"),
        (["fp4:x=1"], "x=1"),
        (["./small:k=²"], "k=²"),
        (["ngram:k=-1"], "k=-1"),
        (["./small", "fp4"], "first"),
        (["fp4", "fp4:k=3"], "once"),
        (["ngram", "./small"], "last"),
        (["fp4", "ngram", "ngram:file"], "once"),
    ],
)
def test_a_chain_without_sense_is_refused(words: list[str], why: str) -> None:
    refusal = refused(RequestError, parse_chain, words)
    assert why in refusal
    assert refusal.startswith("draft")


def test_the_fp4_precision_as_target_has_no_fp4_draft() -> None:
    with pytest.raises(RequestError, match="4-bit weights are the target"):
        parse_chain("fp4", Precision.FP4)


# --- Refusals -------------------------------------------------------------------------------------


def test_another_vocabulary_is_refused_by_its_first_difference(
    llm: LLM, directory: Path, tmp_path: Path
) -> None:
    other = tmp_path / "swapped"
    shutil.copytree(directory / "small", other)
    swap_tokens(other, ord("C"), ord("x"))
    with pytest.raises(TokenizerError, match="its token 67 is 'x' where the model has 'C'"):
        llm.with_draft([str(other)])


def chains_that_cannot_be(directory: Path, scratch: Path) -> dict[str, list[str]]:
    """By what the refusal says."""
    (scratch / "a.jsonl").write_text('{"text": "fine"}\n\n{"id": 3}\n')
    (scratch / "b.jsonl").write_text("not json\n")
    (scratch / "c.txt").write_bytes(b"\xff\xfe")
    shutil.copytree(directory / "small", scratch / "odd")
    change_model(scratch / "odd", model_type="mamba")
    small, target = str(directory / "small"), str(directory / "target")
    return {
        "known drafts: auto, none, fp4": ["int4"],
        "no such file or directory": [small, f"{directory}/missing:bf16"],
        "is a file": [str(scratch / "c.txt")],
        "mamba": [str(scratch / "odd")],
        f"{small}: this model is already in the chain": [small, small],
        "in this place or above it": [f"{small}|ngram", f"ngram|{small}"],
        "name it once": [f"fp4|{small}|{small}:fp4"],
        f"{target}:bf16: this model is already": [f"{target}:bf16"],
        "already in the chain at this precision": ["fp4", f"{target}:fp4"],
        "line 3 has no text": [f"ngram:{scratch}/a.jsonl"],
        "line 1 is not JSON": [f"ngram:{scratch}/b.jsonl"],
        "not UTF-8": [f"ngram:{scratch}/c.txt"],
        "No such file": [f"ngram:{scratch}/missing"],
    }


def test_what_cannot_draft_is_refused_in_one_line_before_anything_is_packed(
    directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Model, "open", lambda *_, **__: pytest.fail("packed"))
    for named, chain in chains_that_cannot_be(directory, tmp_path).items():
        options = [word for draft in chain for word in ("--draft", draft)]
        assert main(["generate", str(directory / "target"), "-p", "ab", *options]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert named in err
        assert err.count("\n") == 1


def test_a_small_model_that_does_not_fit_into_memory_is_refused(
    llm: LLM, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specqd._native.usable_memory", lambda: 1000)
    with pytest.raises(SpecqdError, match=r"other:one.* GB of memory"):
        llm.with_draft([str(directory / "other:one:bf16")])


def test_an_unknown_repository_says_how_a_draft_is_written(llm: LLM) -> None:
    with pytest.raises(HubError, match=r"draft \./nothing:k=2.*MODEL\[:bf16\|:fp4\|:mxfp4\]"):
        llm.with_draft("./nothing:k=2")


def test_chains_of_the_command_line_change_no_text(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, empty, lines = str(directory / "other:one"), tmp_path / "empty", tmp_path / "a.jsonl"
    empty.write_text("")
    lines.write_text('"abc"\n\n{"prompt": "ab", "completion": "cab"}\n{"text": "cabcab"}\n')
    command = ["generate", str(directory / "target"), "-p", "abcab", "-n", "40", "--seed", "3"]
    command += ["--temperature", "0.8", "--threads", "1"]
    texts = set()
    for chain in (
        ["none"],
        ["auto"],
        [small, f"ngram:{empty}:k=2"],
        ["fp4:k=5", f"{small}:bf16:k=3", f"{small}:k=2", f"ngram:{lines}"],
    ):
        assert main([*command, *(word for draft in chain for word in ("--draft", draft))]) == 0
        texts.add(capsys.readouterr().out)
    assert len(texts) == 1


# --- What is shared -------------------------------------------------------------------------------


def test_levels_have_names_and_lengths(llm: LLM, directory: Path) -> None:
    small = str(directory / "small")
    chain = llm.with_draft(["fp4:k=7", f"{small}:bf16", f"{small}:fp4:k=2"])
    levels = chain.engine.level.levels
    names = [level.name for level in levels if isinstance(level, Level)]
    assert names == ["bf16", "fp4", "small:bf16", "small:fp4"]
    assert [level.length for level in levels if isinstance(level, Level)] == [None, 7, None, 2]
    assert isinstance(levels[-1].drafter, NoDraft)


def test_a_model_named_twice_is_packed_once(llm: LLM, directory: Path) -> None:
    small, seen = str(directory / "small"), []
    fresh = LLM(directory / "target", "none", threads=1)
    first = fresh.with_draft(
        [f"{small}:bf16", small], progress=lambda done, total: seen.append((done, total))
    )
    _, exact, draft = models_of(first)
    assert draft.weights is exact.weights
    assert draft.cache is exact.cache  # of the level directly above
    assert seen
    again = fresh.with_draft([small, f"{small}:bf16"], progress=lambda *_: pytest.fail("packed"))
    _, outer, inner = models_of(again)
    assert inner.cache is exact.cache
    assert outer.weights is exact.weights
    assert outer.cache is not exact.cache
    assert outer.precision is Precision.FP4


def test_another_format_needs_another_load(llm: LLM, directory: Path, generate: "Generate") -> None:
    with pytest.raises(LoadedFormatError, match="loaded as fp4; draft with fp4"):
        llm.with_draft("mxfp4")
    seen: list[tuple[int, int]] = []
    other = llm.with_draft("mxfp4", reload=True, progress=lambda *call: seen.append(call))
    assert seen[-1][0] == seen[-1][1] > 0
    assert other.model.weights.draft is DraftFormat.MXFP4
    assert other.model.machine is llm.model.machine
    assert generate(other) == generate(llm)
    other.close()
    assert llm.generate([[1, 2]], SamplingParams(max_tokens=2))


def test_a_model_may_stand_below_a_draft_and_beside_it(
    llm: LLM, directory: Path, generate: "Generate"
) -> None:
    small = str(directory / "small")
    tree = llm.with_draft([f"fp4|{small}|ngram", f"{small}|ngram"])
    assert chain_of(tree.engine.level) == ("bf16", "fp4", "small:fp4", "ngram")
    assert generate(tree) == generate(llm)
    *_, shared = models_of(tree)
    assert shared.cache.free_pages == shared.cache.total_pages


def test_the_target_s_weights_may_draft_further_down(llm: LLM, directory: Path) -> None:
    chain = llm.with_draft([str(directory / "small:bf16"), str(directory / "target")])
    target, _, below = models_of(chain)
    assert below.weights is target.weights
    assert below.cache is not target.cache


def test_the_target_s_own_directory_is_its_own_precision(llm: LLM, directory: Path) -> None:
    target, draft = models_of(llm.with_draft(str(directory / "target")))
    assert draft.cache is target.cache


def test_caches_of_small_models_hold_as_many_positions(llm: LLM, directory: Path) -> None:
    _, small = models_of(llm.with_draft([str(directory / "small")]))
    assert small.cache.total_pages == llm.model.cache.total_pages


def test_the_context_of_a_draft_is_that_of_its_chain(llm: LLM, directory: Path) -> None:
    small = str(directory / "small")
    usual, short = (llm.with_draft(small + options) for options in (":k=2", ":k=2:context=192"))

    def shares_of_cache(chain: LLM) -> float:
        params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
        chain.generate([list(range(240))], params)
        stats = chain.engine.level.levels[1].stats
        return stats.cache_bytes_read / stats.whole_cache_bytes

    assert shares_of_cache(short) < shares_of_cache(usual) == 1


# --- Sequences that a small model cannot follow ---------------------------------------------------

Generate = Callable[[LLM], list[list[int]]]


@pytest.fixture
def generate(seed: int) -> Generate:
    """New tokens of a batch of prompts, greedy and sampled, with a bias to the last tokens."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 300, size=length).tolist() for length in (1, 20, 90)]

    def run(llm: LLM) -> list[list[int]]:
        size = llm.model.config.vocab_size
        bias = dict.fromkeys(range(size - 20, size), 6.0)
        tokens = []
        for temperature in (0.0, 0.8):
            params = SamplingParams(
                max_tokens=100,
                temperature=temperature,
                logit_bias=bias,
                seed=seed,
                ignore_eos=True,
                presence_penalty=0.3,
            )
            tokens += [result.tokens for result in llm.generate(prompts, params)]
        return tokens

    return run


@pytest.mark.parametrize("sizes", [(320, 300), (320, 352), (352, 300, 320), (300, 352, 320)])
def test_padding_of_a_vocabulary_changes_nothing(
    sizes: tuple[int, ...], tmp_path: Path, seed: int, generate: Generate
) -> None:
    """Larger and smaller ones, in all orders; the bias fills sequences with each one's padding."""
    target, *small = sizes
    make_model(tmp_path / "target", Shape(is_peaked=True, vocab=target, context=256), seed)
    for i, size in enumerate(small):
        shape = Shape("qwen2", hidden=48, ffn=90, layers=1, vocab=size, context=256, is_peaked=True)
        make_model(tmp_path / str(i), shape, seed + i)
    plain = LLM(tmp_path / "target", "none", threads=1)
    expected = generate(plain)
    least = min(small)
    assert least >= target or any(token >= least for tokens in expected for token in tokens)
    names = [str(tmp_path / str(i)) for i in range(len(small))]
    for chain in ([*names], ["fp4", *names], [f"{names[0]}:bf16", *names]):
        drafted = plain.with_draft([f"{chain[0]}:k=3", *chain[1:]])
        assert generate(drafted) == expected, chain
        # A draft proposes nothing once a sequence left its vocabulary, be it with the first token.
        has_drafted = drafted.engine.level.stats.drafted > 0
        assert has_drafted or all(tokens[0] >= least for tokens in expected)
        for model in models_of(drafted):
            assert model.cache.free_pages == model.cache.total_pages


def test_masks_of_a_target_hold_for_drafts_with_more_tokens(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("llguidance", reason="needs the extra structured")
    make_model(tmp_path / "target", Shape(is_peaked=True, vocab=320, context=256), seed)
    shape = Shape("qwen2", hidden=48, ffn=90, layers=1, vocab=384, context=256, is_peaked=True)
    small = make_model(tmp_path / "small", shape, seed)
    plain = LLM(tmp_path / "target", "none", threads=1)
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=2, pattern="[a-h]*")
    expected = plain.generate("ab", params)[0].tokens
    for chain in (f"{small}:k=3", "fp4"):
        drafted = plain.with_draft([chain, *([str(small)] if chain == "fp4" else [])])
        assert drafted.generate("ab", params)[0].tokens == expected


def test_a_small_model_of_a_shorter_context_stops_at_its_end(
    directory: Path, tmp_path: Path, seed: int, generate: Generate
) -> None:
    """One sequence begins past it, others cross it."""
    shape = Shape("qwen3", hidden=48, ffn=90, layers=1, context=64, is_peaked=True)
    short = make_model(tmp_path / "short", shape, seed)
    plain = LLM(directory / "target", "none", threads=1)
    expected = generate(plain)
    for chain in ([str(short)], ["fp4", f"{short}:bf16:k=7", str(short)]):
        drafted = plain.with_draft(chain)
        assert generate(drafted) == expected, chain
        assert models_of(drafted)[-1].config.max_positions == 64


def test_lines_of_json_may_hold_other_ends_of_lines() -> None:
    """JSON permits these characters within strings."""
    lines = '{"text": "a\u2028b\u0085"}\r\n\n{"text": "c"}'
    found = [(value["text"], place) for value, place in json_lines(lines, "file")]
    assert found == [("a\u2028b\u0085", "file: line 1"), ("c", "file: line 3")]


def test_added_tokens_without_a_row_in_the_model_are_never_used(tmp_path: Path, seed: int) -> None:
    """Tokenizers of Gemma 3's text models have one of the models with images."""
    pytest.importorskip("llguidance", reason="needs the extra structured")
    directory = make_model(tmp_path / "model", Shape(vocab=320, is_peaked=True), seed)
    content = json.loads((directory / "tokenizer.json").read_text())
    image = content["added_tokens"][0] | {"id": 320, "content": "<image>"}
    content["added_tokens"].append(image)
    (directory / "tokenizer.json").write_text(json.dumps(content))
    llm = LLM(directory, "none", threads=1)
    assert llm.tokenizer.id_of("<image>") == 320
    params = SamplingParams(max_tokens=8, temperature=0, pattern="[a-c]{4}")
    assert set(llm.generate("ab", params)[0].text) <= set("abc")
    assert "320" in refused(RequestError, llm.generate, "<image>", params)
