"""The small model that `auto` adds: which one, what it changes, and when it is left out."""

import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from specqd import LLM, SamplingParams
from specqd._native import KvCache, Level
from specqd.errors import FieldError, HubError, RequestError, SpecqdError, SpecqdWarning
from specqd.hub import SHORT_NAMES, cached
from specqd.llm.draft_words import DraftSpec, parse_chain
from specqd.model.model import Precision
from specqd.model.weights import _PACKING_HEADROOM, typical_bytes
from specqd.siblings import sibling_of
from support.families import FAMILY_SHAPES
from support.random_heads import HeadShape, make_head
from support.random_models import Shape, make_model, swap_tokens
from support.random_mtp import make_mtp_model
from support.refusals import refused

TARGET = Shape("qwen3", is_peaked=True, layers=3, context=256)
SMALL = Shape("qwen3", hidden=48, ffn=90, layers=1, context=256, is_peaked=True)
LARGE_NAME, SMALL_NAME = "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"
SPEC = DraftSpec("./small", "model", "./small")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    """Holds `target` and `small`, which share a tokenizer."""
    parent = tmp_path_factory.mktemp("models")
    make_model(parent / "target", TARGET, seed)
    make_model(parent / "small", SMALL, seed + 1)
    return parent


Put = Callable[[str, Path], Path]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts a directory into an otherwise empty cache, under the name of a repository. No hub can be
    reached."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def into_cache(name: str, model: Path) -> Path:
        folder = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("abc")
        return Path(shutil.copytree(model, folder / "snapshots" / "abc"))

    return into_cache


def names_of(llm: LLM) -> list[str]:
    return [level.name for level in llm.engine.level.levels if isinstance(level, Level)]


def tokens_of(llm: LLM, seed: int) -> list[list[int]]:
    prompts = ["abcabcab", "the cat"]
    params = [SamplingParams(80, temperature=t, seed=seed, ignore_eos=True) for t in (0.0, 0.8)]
    return [result.tokens for each in params for result in llm.generate(prompts, each)]


# --- Which one ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct"),
        ("Qwen/Qwen2.5-Coder-7B", "Qwen/Qwen2.5-Coder-0.5B"),
        ("Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
        ("Qwen/Qwen3-30B-A3B", SMALL_NAME),
        ("qwen/qwen3-8b", SMALL_NAME),
        ("Qwen/Qwen3-8B-Base", "Qwen/Qwen3-0.6B-Base"),
        ("Qwen/Qwen3-8B-GGUF:Q8_0", SMALL_NAME),
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
        ("google/gemma-3-1b-it", "google/gemma-3-270m-it"),
        ("google/gemma-3-1b-pt", "google/gemma-3-270m"),
        (SMALL_NAME, None),
        ("someone/Qwen3-8B", None),
        ("pycode-28m", None),
    ],
)
def test_a_known_model_has_a_small_one_of_its_kind(name: str, small: str | None) -> None:
    assert sibling_of(name) == small


def test_short_names_of_one_family_have_one_small_model() -> None:
    for name, repository in SHORT_NAMES.items():
        family = {
            each for short, each in SHORT_NAMES.items() if short.split(":")[0] == name.split(":")[0]
        }
        small = sibling_of(repository)
        assert small is None or small in family or name == "llama3.1:8b"
        assert small is None or sibling_of(small) is None


def test_a_path_in_the_cache_has_the_small_model_of_its_repository(
    put: Put, directory: Path
) -> None:
    assert sibling_of(put(LARGE_NAME, directory / "target")) == SMALL_NAME
    assert sibling_of(directory / "target") is None


# --- The tree -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["fp4|ngram", "ngram"]),
        ({"has_mtp": True}, ["fp4|mtp|ngram", "mtp|ngram"]),
        ({"small": SPEC}, ["fp4|./small|ngram", "./small|ngram"]),
        ({"small": SPEC, "has_mtp": True}, ["fp4|mtp|./small|ngram", "mtp|./small|ngram"]),
        ({"small": SPEC, "is_mxfp4": True}, ["./small|ngram"]),
        ({"small": SPEC, "precision": Precision.FP4}, ["./small|ngram"]),
        ({"small": SPEC, "is_mxfp4": True, "has_mtp": True}, ["mtp|./small|ngram"]),
        ({"is_mxfp4": True}, ["ngram"]),
    ],
)
def test_auto_lists_all_drafters_and_again_below_the_own_draft(
    options: dict[str, object], expected: list[str]
) -> None:
    specs = parse_chain("auto", **options)  # type: ignore[arg-type]
    assert ["|".join(each.word for each in spec.members) for spec in specs] == expected
    assert all(spec.precision is Precision.FP4 for spec in specs)


@pytest.mark.parametrize("has_mtp", [False, True])
def test_a_small_model_changes_no_token(
    directory: Path, tmp_path: Path, seed: int, has_mtp: bool
) -> None:
    target = directory / "target"
    if has_mtp:
        shape = Shape("qwen2", layers=3, context=256, is_peaked=True)
        target = make_mtp_model(tmp_path / "target", shape, seed)
    llm = LLM(target, small=directory / "small", threads=1)
    mtp = ["mtp"] if has_mtp else []
    assert names_of(llm) == ["bf16", "fp4", *mtp, "small:fp4"]  # each once, in both places
    assert tokens_of(llm, seed) == tokens_of(llm.with_draft("none"), seed)


@pytest.mark.parametrize("kind", ["qwen3_5_text", "lfm2", "gemma3_text", "qwen3_moe"])
def test_a_small_model_of_any_kind_changes_no_token(tmp_path: Path, seed: int, kind: str) -> None:
    """It has states, windows or experts, and draws from two places in turn."""
    shape = replace(FAMILY_SHAPES[kind], context=256, is_peaked=True)
    target = make_model(tmp_path / "target", shape, seed)
    small = make_model(tmp_path / "small", shape, seed)  # the same: drafts that are accepted
    plain = LLM(target, "none", small=small, threads=1)
    expected = tokens_of(plain, seed)
    forced = [f"fp4:k=4|{small}:k=3", f"{small}:k=2|ngram"]
    for chain in ("auto", forced):
        tree = plain.with_draft(chain)
        assert tokens_of(tree, seed) == expected, chain
        levels = [each for each in tree.engine.level.levels if isinstance(each, Level)]
        caches = [each.model.cache for each in levels]
        assert [each.free_pages for each in caches] == [each.total_pages for each in caches]
    assert levels[2].stats.forwards > 1  # below the own draft


def test_the_small_model_drafts_alone_for_4_bit_weights(directory: Path, seed: int) -> None:
    llm = LLM(directory / "target", small=directory / "small", precision="fp4", threads=1)
    assert names_of(llm) == ["fp4", "small:fp4"]
    assert tokens_of(llm, seed) == tokens_of(llm.with_draft(None), seed)


def test_the_small_model_s_cache_leaves_the_target_its_memory(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def caches(llm: LLM) -> list[KvCache]:
        levels = llm.with_draft("auto").engine.level.levels
        return [each.model.cache for each in levels if isinstance(each, Level)]

    first, second = (
        LLM(directory / "target", "none", small=directory / "small", threads=1) for _ in range(2)
    )
    cache, *_, small = caches(first)
    assert small.total_pages == cache.total_pages
    monkeypatch.setattr("specqd.llm.chains.require_memory", lambda *_: None)
    monkeypatch.setattr("specqd.model.weights.require_memory", lambda *_: None)
    left = cache.total_pages * cache.page_bytes + 8 * small.page_bytes
    monkeypatch.setattr("specqd._native.usable_memory", lambda: left)
    assert caches(second)[-1].total_pages == 4
    both = second.with_draft([str(directory / "small"), str(directory / "small:bf16")])
    levels = [each for each in both.engine.level.levels if isinstance(each, Level)]
    assert [each.model.cache.total_pages for each in levels[1:]] == [4, 2]


def test_the_cache_of_a_head_leaves_that_of_the_small_model_its_memory(
    directory: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = make_head(tmp_path / "head", TARGET, HeadShape(), seed)
    llm = LLM(directory / "target", "none", threads=1)
    words = f"{directory / 'small'}|head:{head}"

    def caches() -> list[KvCache]:
        chain = llm.with_draft(words).engine.level
        [small, below] = chain.drafter.levels[:2]
        return [chain.model.cache, small.model.cache, below.model.cache]

    of_target, of_small, of_head = caches()
    promised = sum(each.total_pages * each.page_bytes for each in (of_target, of_small))
    monkeypatch.setattr("specqd.llm.chains.require_memory", lambda *_: None)
    left = promised + 2 * 5 * of_head.page_bytes
    monkeypatch.setattr("specqd._native.usable_memory", lambda: left)
    assert caches()[2].total_pages == 5 < of_head.total_pages


# --- Named by the caller --------------------------------------------------------------------------


def test_a_named_small_model_that_cannot_draft_is_refused_by_that_name(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, small = directory / "target", directory / "small"
    other = Path(shutil.copytree(small, tmp_path / "other"))
    swap_tokens(other, ord("C"), ord("x"))

    def refusal(problem: type[SpecqdError], small: object, draft: object = "auto") -> str:
        return refused(problem, lambda: LLM(target, draft, small=small))  # type: ignore[arg-type]

    assert refusal(SpecqdError, other).startswith(f"small {other}: its token 67 is 'x'")
    assert refusal(HubError, tmp_path / "none").startswith("small: ")
    assert "already in the chain" in refusal(RequestError, target)
    assert refusal(FieldError, 3).startswith("small: 3 is not a directory")
    assert refusal(RequestError, small, "fp4").startswith(f"small {small}: only auto adds a small")
    monkeypatch.setattr("specqd._native.usable_memory", lambda: 1000)
    assert "GB of memory" in refusal(SpecqdError, small)


def test_other_chains_of_the_same_model_may_use_it_later(directory: Path) -> None:
    plain = LLM(directory / "target", "none", small=directory / "small", threads=1)
    assert names_of(plain) == ["bf16"]
    assert names_of(plain.with_draft("fp4")) == ["bf16", "fp4"]
    assert names_of(plain.with_draft("auto"))[-1] == "small:fp4"


# --- Found in the cache ---------------------------------------------------------------------------


def test_the_library_uses_a_known_small_model_only_from_the_cache(
    put: Put, directory: Path
) -> None:
    put(LARGE_NAME, directory / "target")
    assert names_of(LLM(LARGE_NAME, threads=1)) == ["bf16", "fp4"]
    put(SMALL_NAME, directory / "small")
    own = f"{SMALL_NAME}:fp4"
    for name in (LARGE_NAME, "qwen3:8b"):
        assert names_of(LLM(name, threads=1)) == ["bf16", "fp4", own]
    for small in (None, "none"):
        assert names_of(LLM(LARGE_NAME, small=small, threads=1)) == ["bf16", "fp4"]
    assert names_of(LLM(LARGE_NAME, "fp4", threads=1)) == ["bf16", "fp4"]
    assert names_of(LLM(directory / "target", threads=1)) == ["bf16", "fp4"]


def test_a_half_fetched_model_is_not_cached(put: Put, directory: Path) -> None:
    assert cached(SMALL_NAME) is None
    path = put(SMALL_NAME, directory / "small")
    assert cached(SMALL_NAME) == cached("qwen3:0.6b") == path
    (path / "model.safetensors").unlink()
    assert cached(SMALL_NAME) is None
    assert cached(str(directory / "small")) is None


def test_a_known_small_model_that_cannot_draft_is_left_out_with_a_warning(
    put: Put, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(LARGE_NAME, directory / "target")
    path = put(SMALL_NAME, directory / "small")
    swap_tokens(path, ord("C"), ord("x"))
    begins = f"auto drafts without the small model {SMALL_NAME}: "
    with pytest.warns(SpecqdWarning, match=f"^{begins}its token 67 is 'x'"):
        assert names_of(LLM(LARGE_NAME, threads=1)) == ["bf16", "fp4"]
    swap_tokens(path, ord("C"), ord("x"))
    room = typical_bytes(path) + typical_bytes(directory / "target") + _PACKING_HEADROOM
    monkeypatch.setattr("specqd._native.usable_memory", lambda: room - 1)
    with pytest.warns(SpecqdWarning, match=f"^{begins}.*GB of memory"):
        assert names_of(LLM(LARGE_NAME, threads=1)) == ["bf16", "fp4"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpecqdWarning)
        LLM(LARGE_NAME, small=None, threads=1)
