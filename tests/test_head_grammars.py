"""Texts that follow a grammar have the same bits under trained heads and under none."""

from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.engine.generation import GenerationRequest
from support.engines import preempt_at_random, run_to_end
from support.head_texts import random_text
from support.openai_client import NO_WHITE_SPACE, closed
from support.random_dflash import BlockShape, make_drafter
from support.random_heads import HeadShape, make_head, make_knowing_head
from support.random_models import Shape
from support.random_mtp import make_mtp_model

pytest.importorskip("llguidance", reason="needs specqd[serve]")

from specqd.grammars import Grammars

SHAPE = Shape("qwen2", layers=4, context=512, is_peaked=True)
SCHEMAS = (
    closed(sizes={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 9}),
    closed(code={"type": "string", "pattern": "^([a-f]{2}-){3,9}[0-9]$"}),
)
CHAINS = [
    ["mtp:k=4"], ["fp4", "mtp"], ["fp4|mtp|ngram"], ["head:HEAD:k=4"], ["fp4:k=5", "head:KNOWING"],
    ["head:KNOWING:bf16|ngram"], ["head:BLOCKS:k=7"], ["fp4:k=6|head:BLOCKS:k=5", "head:BLOCKS"],
]  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    parent = tmp_path_factory.mktemp("grammars")
    target = make_mtp_model(parent / "target", SHAPE, seed, is_knowing=bool(seed % 2))
    make_head(parent / "HEAD", SHAPE, HeadShape(tokens=97), seed)
    make_knowing_head(parent / "KNOWING", target, SHAPE)
    make_drafter(parent / "BLOCKS", SHAPE, BlockShape(), seed)
    return parent


def written(llm: LLM, rng: np.random.Generator) -> list[tuple[list[int], str]]:
    """Tokens and texts of a batch: one of each schema, greedy and sampled, and one that is free."""
    makers = Grammars(llm.tokenizer, llm.model.vocabulary, llm.model.config.eos_token_ids)
    generations = []
    for temperature in (0.0, 0.8):
        params = SamplingParams(
            temperature=temperature, seed=3, max_tokens=90, n=2,
            logit_bias={int(token): -100.0 for token in NO_WHITE_SPACE},
        )  # fmt: skip
        for schema in (*SCHEMAS, None):
            make = makers.of_schema(schema) if schema else None
            prompt = random_text(rng, SHAPE.vocab, int(rng.integers(1, 80)))
            request = GenerationRequest([prompt], params.resolved(llm.defaults), make)
            generations += llm.engine.submit(request)
    run_to_end(llm.engine)
    return [(each.tokens, llm.tokenizer.decode(each.tokens)) for each in generations]


@pytest.mark.parametrize("words", CHAINS, ids="+".join)
@pytest.mark.parametrize("preempts", [False, True])
def test_texts_of_a_grammar_under_heads_are_those_of_plain_decoding(
    directory: Path,
    words: list[str],
    preempts: bool,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HEAD", "KNOWING", "BLOCKS"):
        words = [word.replace(name, str(directory / name)) for word in words]
    plain = LLM(directory / "target", "none", threads=1)
    drafted = plain.with_draft(words)
    wanted = written(plain, np.random.default_rng(seed))
    assert sum(text.startswith('{"') for _, text in wanted) >= 8  # those with a schema
    if preempts:
        preempt_at_random(drafted.engine, np.random.default_rng(seed), monkeypatch)
    assert written(drafted, np.random.default_rng(seed)) == wanted
    assert drafted.engine.level.stats.drafted
