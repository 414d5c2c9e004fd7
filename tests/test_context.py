"""A chosen context limits sequences, the cache and the choice of rope factors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from specqd import LLM, SamplingParams, _native
from specqd.cli import main
from specqd.errors import RequestError
from support.families import FAMILY_SHAPES
from support.fixtures import a_model
from support.random_models import Shape, make_model

GREEDY = SamplingParams(max_tokens=None, temperature=0, ignore_eos=True)


phi = a_model(FAMILY_SHAPES["phi3"])  # trained on 64 positions; long factors stretch it to 1024


def with_rope(model: Path, to: Path, change: Callable[[dict[str, object]], object]) -> Path:
    shutil.copytree(model, to)
    config = json.loads((to / "config.json").read_text())
    change(config["rope_scaling"])
    (to / "config.json").write_text(json.dumps(config))
    return to


@pytest.mark.parametrize(("context", "factors"), [(64, "short_factor"), (65, "long_factor")])
def test_longrope_uses_the_factors_of_the_context(
    phi: Path, tmp_path: Path, context: int, factors: str
) -> None:
    def only(rope: dict[str, object]) -> None:
        rope["short_factor"] = rope["long_factor"] = rope[factors]

    expected = LLM(with_rope(phi, tmp_path / "m", only), "none", 1).generate(
        [[65, 66]], SamplingParams(max_tokens=context - 2, temperature=0, ignore_eos=True)
    )[0]
    llm = LLM(phi, threads=1, context=context)
    assert llm.generate([[65, 66]], GREEDY)[0].tokens == expected.tokens
    assert len(expected.tokens) == context - 2


def test_the_cache_holds_four_sequences_of_that_length(phi: Path) -> None:
    page = _native.PAGE_POSITIONS
    for context in (1, page, 5 * page + 1):
        pages = -(-context // page)
        assert LLM(phi, "none", 1, context=context).model.cache.total_pages == 4 * (pages + 1)


def test_drafts_keep_to_the_context(phi: Path, tmp_path: Path, seed: int) -> None:
    small = make_model(tmp_path / "small", Shape(vocab=269, context=2048, layers=1), seed)
    prompt = [list(range(65, 90))]
    plain = LLM(phi, "none", 1, context=100).generate(prompt, GREEDY)[0]
    drafted = LLM(phi, ["fp4", str(small), "ngram"], 1, context=100)
    assert drafted.generate(prompt, GREEDY)[0].tokens == plain.tokens
    levels = drafted.engine.level.levels[:3]
    assert [level.model.max_positions for level in levels] == [100] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("context", [0, -1, 1025])
def test_a_context_that_the_model_does_not_have_is_refused(phi: Path, context: int) -> None:
    with pytest.raises(RequestError, match=rf"context of {context} tokens .* model's is 1024"):
        LLM(phi, threads=1, context=context)


def test_a_prompt_that_fills_the_context_is_refused(phi: Path) -> None:
    llm = LLM(phi, "none", 1, context=8)
    with pytest.raises(
        RequestError,
        match="with 8 tokens it exceeds the available context size, as the context has 8; shorten",
    ):
        llm.generate([[65] * 8], GREEDY)


def test_the_command_line_has_the_option(phi: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(phi), "-p", "abc", "-n", "50", "--threads", "1", "--context"]
    assert main([*command, "16"]) == 0
    assert f"specqd: {16 - 3} tokens" in capsys.readouterr().err
    assert main([*command, "4096"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*command, "0"]) == 2
