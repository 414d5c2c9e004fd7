"""SpecQD: its arms over one loaded model."""

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

from arms import SMALL, Arm
from protocol import Run, weight_files
from synthetic import SyntheticDrafter

from specqd._native import Level, NoDraft
from specqd.engine.engine import Engine
from specqd.engine.generation import GenerationRequest
from specqd.llm import LLM
from specqd.llm.draft_words import auto_words
from specqd.sampling import SamplingParams


class Ours:
    def __init__(self, arms: Sequence[Arm], model: Path, folder: Path, threads: int) -> None:
        """A packed model and the small one are in `folder`, with the peers' files."""
        is_mxfp4 = any("mxfp4" in (arm.weights, arm.draft) for arm in arms)
        directory = folder / "packed" if arms[0].weights == "packed" else model
        loaded = LLM(directory, draft="mxfp4" if is_mxfp4 else "fp4", threads=threads)
        self._llm, self._folder = loaded.with_draft("none"), folder
        self._engines = {arm.name: self._engine(arm) for arm in arms}
        self._futures: dict[tuple[int, ...], list[int]] = {}  # by prompt: its continuation
        self.process = os.getpid()
        self.stored_bytes = weight_files(directory)
        self.version = _version()
        self.notes = f"isa {self._llm.model.machine.isa}"
        self.bytes_read = {
            name: engine.level.model.bytes_per_forward for name, engine in self._engines.items()
        }

    def _engine(self, arm: Arm) -> Engine:
        model = self._llm.model
        if arm.weights == "mxfp4":
            level = Level(model.as_draft(), NoDraft())
        elif arm.acceptance is not None:
            own = Level(model.as_draft(), NoDraft(), length=arm.length)
            level = Level(model, SyntheticDrafter(own, arm.acceptance))
            level.measure()
            own.measure()
        else:
            return self._llm.with_draft(self._words(arm.draft)).engine
        return Engine(level, self._llm.tokenizer, eos_token_ids=model.config.eos_token_ids)

    def _words(self, draft: str) -> str | list[str]:
        """The small model drafts for the target and for its 4-bit weights, whichever pays."""
        if not draft.startswith(SMALL):
            return draft
        return auto_words(str(self._folder / draft))

    def generate(self, arm: str, prompt: Sequence[int], new_tokens: int) -> Run:
        engine = self._engines[arm]
        drafter = engine.level.drafter
        if isinstance(drafter, SyntheticDrafter):
            drafter.future = self._future(prompt, new_tokens)
        return self._timed(engine, prompt, new_tokens)

    def _future(self, prompt: Sequence[int], new_tokens: int) -> list[int]:
        """The continuation by plain decoding, for the synthetic drafter."""
        key = tuple(prompt)
        if key not in self._futures:
            plain = self._llm.engine
            self._futures[key] = self._timed(plain, prompt, new_tokens).tokens
        return self._futures[key]

    def _timed(self, engine: Engine, prompt: Sequence[int], new_tokens: int) -> Run:
        engine.scheduler.reuses_prefixes = False
        before = engine.level.stats
        begun = perf_counter()
        params = SamplingParams(max_tokens=new_tokens, temperature=0.0, seed=0, ignore_eos=True)
        [generation] = engine.submit(
            GenerationRequest([prompt], params.resolved(self._llm.defaults))
        )
        while generation.count == 0:
            engine.step()
        first = perf_counter()
        while generation.finish_reason is None:
            engine.step()
        ended = perf_counter()
        after = engine.level.stats
        return Run(
            generation.tokens,
            first - begun,
            ended - first,
            ended - begun,
            after.drafted - before.drafted,
            after.accepted - before.accepted,
        )


def _version() -> str:
    try:
        return version("specqd")
    except PackageNotFoundError:
        return "working tree"


def open_peer(arms: Sequence[Arm], model: Path, work: Path, threads: int) -> Ours:
    return Ours(arms, model, work / model.name, threads)
