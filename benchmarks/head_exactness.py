"""Compares text under trained heads with plain decoding, bit by bit, until enough was compared.

    python benchmarks/head_exactness.py [--tokens 100000] [--head shipped=DIR]

The models, requests, ways of a prompt into the cache and comparisons are those of
tests/test_exactness.py. Each cell is drawn at random, with a chain that has a head: a random one,
or the trained one that --head names for a model (`shipped`, `tiny1m`, ...). Engines are compared
too, in batches as a server has them: grammars, two samples of each prompt, prompts with cached
beginnings, and requests that come late and are preempted. Every round has new models and prompts.
The first difference ends the run with the seed and the cell.
"""

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from specqd import LLM, SamplingParams
from specqd._native import available_isas
from specqd.engine.generation import Generation, GenerationRequest
from specqd.openai.grammar import JsonGrammars
from support.engines import preempt_at_random, run_to_end
from support.exactness import SLOW_ISAS, Cell, Subject
from support.head_texts import random_text
from support.openai_client import NO_WHITE_SPACE
from test_exactness import FACTORS, TRAINED, Bench
from test_head_grammars import SCHEMAS

CHAINS = (
    "head:HEAD",
    "head:HEAD:k=3",
    "head:HEAD:bf16:k=7",
    "fp4|head:HEAD|ngram",
    "fp4+head:HEAD",
    "fp4:k=5+head:HEAD:bf16:k=2",
    "fp4|ngram+head:HEAD:k=4",
)
NEW_TOKENS = 80  # of a request to an engine


@dataclass(frozen=True, slots=True)
class Served:
    """A chain of an engine, whose requests have grammars, samples, cached beginnings."""

    isa: str
    draft: str
    model: str
    preempts: bool


def cells(chance: random.Random, heads: Collection[str]) -> Iterator[Cell | Served]:
    """Every chain on every instruction set, with the other factors at random; every other cell is
    of a model with a trained head, if there are any. One of an engine follows each fourth."""
    pairs = [(isa, chain) for isa in FACTORS["isa"] for chain in CHAINS]
    chance.shuffle(pairs)

    def model(isa: str, is_headed: bool) -> str:
        name = chance.choice(sorted(heads) if heads and is_headed else FACTORS["model"])
        return "llama" if name in TRAINED and isa in SLOW_ISAS else name

    for number, (isa, chain) in enumerate(pairs):
        other = {name: chance.choice(each) for name, each in FACTORS.items()}
        fixed = {"isa": isa, "draft": chain, "model": model(isa, number % 2 == 0)}
        yield Cell(**other | fixed)
        if number % 4 == 3:
            isa = chance.choice(available_isas())
            drawn = chance.choice(CHAINS), model(isa, number % 8 == 3)
            yield Served(isa, *drawn, preempts=chance.random() < 0.5)


def written(llm: LLM, rng: np.random.Generator) -> list[Generation]:
    """A batch of requests, some of which come late: greedy and sampled, with grammars and free."""
    makers = JsonGrammars(llm.tokenizer, llm.model.vocabulary, llm.model.config.eos_token_ids)
    vocabulary, generations = llm.model.vocabulary, []
    beginning = random_text(rng, vocabulary, 100)
    for temperature in (0.0, 0.8):
        params = SamplingParams(
            temperature=temperature, seed=int(rng.integers(1 << 31)), max_tokens=NEW_TOKENS, n=2,
            logprobs=3, logit_bias={int(token): -100.0 for token in NO_WHITE_SPACE},
        )  # fmt: skip
        for schema in (*SCHEMAS, None, None):
            own = random_text(rng, vocabulary, int(rng.integers(1, 40)))
            prompt = beginning[: int(rng.integers(0, 101))] + own
            make = makers.of_schema(schema) if schema else None
            request = GenerationRequest([prompt], params.resolved(llm.defaults), make)
            generations += llm.engine.submit(request)
            for _ in range(int(rng.integers(0, 9))):
                llm.engine.step()
    run_to_end(llm.engine)
    return generations


def compare_served(cell: Served, subject: Subject, seed: int, done: Counter[str]) -> Iterator[str]:
    """Yields a line for each generation that differs from that of plain decoding."""
    words = [word.replace("HEAD", str(subject.head)) for word in cell.draft.split("+")]
    plain = LLM(subject.directory, "none", threads=1, isa=cell.isa)
    drafted = plain.with_draft(words)
    wanted = written(plain, np.random.default_rng(seed))
    with pytest.MonkeyPatch.context() as patch:
        if cell.preempts:
            preempt_at_random(drafted.engine, np.random.default_rng(seed), patch)
        found = written(drafted, np.random.default_rng(seed))
    for number, (want, got) in enumerate(zip(wanted, found, strict=True)):
        if (want.tokens, want.logprobs) != (got.tokens, got.logprobs):
            yield f"generation {number}: {want.tokens} became {got.tokens}"
        done["preemptions"] += got.preemptions
        done["prompt tokens, cached"] += got.cached_prompt_tokens
        accepted = enumerate(got.acceptance.accepted_counts)
        done["accepted"] += sum(i * times for i, times in accepted)
    grammatical = [each for i, each in enumerate(found) if i // 2 % 4 < len(SCHEMAS)]
    done["tokens of grammars"] += sum(each.count for each in grammatical)
    count(cell, sum(each.count for each in found), done)


def compare_traces(cell: Cell, bench: Bench, done: Counter[str]) -> Iterator[str]:
    """Yields a line for each request whose trace differs from that of plain decoding."""
    traces, drafted = bench.decode(cell)
    yield from bench.differences(cell, traces)
    done += Counter({"rejected rounds": drafted.rejected, "accepted": drafted.accepted_tokens})
    count(cell, sum(len(trace.emissions) for trace in traces), done)


def count(cell: Cell | Served, tokens: int, done: Counter[str]) -> None:
    done += Counter({"tokens": tokens, f"tokens, {cell.isa}": tokens, "cells": 1})
    print(f"{done['tokens']:>8,} {' '.join(map(str, asdict(cell).values()))}", flush=True)


def compare(bench: Bench, heads: dict[str, Path], wanted: int, done: Counter[str]) -> str | None:
    """Decodes a round of cells; returns the first difference."""
    for name in FACTORS["model"]:
        subject = bench.subject(name)
        bench._subjects[name] = replace(subject, head=heads.get(name, subject.head))
    for number, cell in enumerate(cells(random.Random(bench.seed), heads)):
        before = done["tokens"]
        if isinstance(cell, Served):
            lines = compare_served(cell, bench.subject(cell.model), bench.seed + number, done)
        else:
            lines = compare_traces(cell, bench, done)
        for line in lines:
            return f"seed {bench.seed}, {cell}: {line}"
        if cell.model in heads:
            done["tokens, trained heads"] += done["tokens"] - before
        if done["tokens"] >= wanted:
            break
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--head", action="append", default=[], metavar="MODEL=DIR")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    arguments = parser.parse_args()
    heads = {name: Path(path) for name, _, path in (each.partition("=") for each in arguments.head)}
    done: Counter[str] = Counter()
    seed = arguments.seed
    while done["tokens"] < arguments.tokens:
        with tempfile.TemporaryDirectory() as directory:
            problem = compare(Bench(Path(directory), seed), heads, arguments.tokens, done)
        if problem is not None:
            sys.exit(problem)
        seed += 1
    print(", ".join(f"{number:,} {what}" for what, number in sorted(done.items())))
    print(f"no difference; seeds {arguments.seed} to {seed - 1}")


if __name__ == "__main__":
    main()
