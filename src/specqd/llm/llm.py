"""The Python API: a model directory or repository in, completions out."""

import warnings
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config import read_config, read_generation_defaults
from specqd.engine.chains import Drafts, DraftSpec, draft_format, parse_chain
from specqd.engine.engine import Engine
from specqd.engine.generation import (
    FinishReason,
    Generation,
    GenerationRequest,
    Origin,
    TokenLogprob,
)
from specqd.engine.reports import Stats
from specqd.engine.turns import Turns
from specqd.errors import RequestError, SpecqdWarning, TokenizerError
from specqd.hub import resolve, shipped_model
from specqd.model.loader import Progress
from specqd.model.model import Machine, Model, Precision
from specqd.sampling import SamplingParams
from specqd.text.tokenizer import Tokenizer

Prompt = str | SequenceOf[int]

_ONE_PRECISION = (
    "the weights are MXFP4 already: one precision, for which only n-grams or other models draft"
)


@dataclass(frozen=True, slots=True)
class Completion:
    """One sample. `tokens` holds the new ones, the stop token included."""

    tokens: list[int]
    text: str
    finish_reason: FinishReason
    seed: int
    logprobs: list[TokenLogprob] | None = None
    origins: list[Origin] = field(default_factory=list, compare=False)  # of the tokens


@dataclass(frozen=True, slots=True)
class Result:
    """The `n` completions of one prompt, and the call's statistics."""

    prompt_tokens: list[int]
    completions: list[Completion]
    stats: Stats
    prompt_logprobs: list[TokenLogprob] | None = None  # of all but its first token

    @property
    def text(self) -> str:
        """The first completion's text."""
        return self.completions[0].text

    @property
    def tokens(self) -> list[int]:
        """The first completion's tokens."""
        return self.completions[0].tokens


class Stream:
    """Iterates over pieces of text as they become certain; sets `result` at the end.

    Leaving the loop early cancels the request; `stop()` ends it and keeps the text so far. While
    other threads generate, a loop that is left sets `result` after their current round.
    """

    def __init__(self, llm: "LLM", prompt: list[int], params: SamplingParams) -> None:
        self._llm = llm
        self._prompt = prompt
        self._params = replace(params, n=1)
        self._is_stopped = False
        self.result: Result | None = None

    def stop(self) -> None:
        """Ends the text after the current step. A signal handler or any thread may call it."""
        self._is_stopped = True

    def __iter__(self) -> Iterator[str]:
        llm, turns = self._llm, self._llm.turns
        with turns.alone():
            before = Stats.of(llm.engine)
            [generation] = llm.engine.submit(GenerationRequest([self._prompt], self._params))

        def end() -> None:
            llm.engine.cancel(generation)
            stats = Stats.of(llm.engine).since(before)
            self.result = _result(self._prompt, [generation], stats)

        is_left = False
        try:
            yield from self._pieces(generation)
        except GeneratorExit:
            is_left = True
            raise
        finally:
            if is_left:  # maybe by the garbage collector, which must not wait
                turns.leave(end)
            else:
                with turns.alone():
                    end()

    def _pieces(self, generation: Generation) -> Iterator[str]:
        llm, sent = self._llm, 0

        def has_news() -> bool:
            is_over = generation.finish_reason is not None or self._is_stopped
            return is_over or len(generation.text) > sent

        # The order matters: another thread may add the last text between the two.
        while generation.finish_reason is None or sent < len(generation.text):
            llm.turns.run(llm.step, has_news)
            if self._is_stopped:
                with llm.turns.alone():
                    llm.engine.cancel(generation)
            piece = generation.text[sent:]
            sent += len(piece)
            if piece:
                yield piece
        if generation.error is not None:
            raise generation.error


class LLM:
    """A model that generates, exactly as without drafts.

    Any number of threads may call it at once, also by `asyncio.to_thread`. One engine runs their
    requests in one batch; each gets the tokens that it gets alone, and its statistics count the
    work for all.

    path_or_repo: a Hugging Face directory or `owner/name[@revision]`; None: the shipped model.
    draft: `auto`, `none`, or drafts from the outermost in, such as `["fp4", "./small", "ngram"]`:
        `fp4`, `mxfp4`, `MODEL[:bf16|:fp4|:mxfp4]` or `ngram[:FILE]`, each with an optional `:k=N`.
    threads: of the native core; None: one on each usable core.
    isa: an instruction set to force; None: the fastest.
    precision: `fp4` generates from the 4-bit weights only (not lossless).
    reading: the old spelling of `precision`.
    cache_positions: tokens in the KV cache, over all sequences; None: four contexts, if they fit.
    context: tokens of the longest sequence, prompt included; None: the model's own. It sets the KV
        cache's size and the factors of LongRoPE.
    """

    def __init__(
        self,
        path_or_repo: str | Path | None = None,
        draft: str | SequenceOf[str] | None = "auto",
        threads: int | None = None,
        isa: str | None = None,
        *,
        precision: Precision | str = Precision.EXACT,
        cache_positions: int | None = None,
        context: int | None = None,
        progress: Progress | None = None,
        reading: Precision | str | None = None,
    ) -> None:
        if reading is not None:
            warnings.warn("LLM(reading=...) is now precision=", SpecqdWarning, stacklevel=2)
        precision = Precision.named(reading or precision)
        specs = parse_chain(draft, precision)
        self.directory = shipped_model() if path_or_repo is None else resolve(path_or_repo)
        own = read_config(self.directory)
        _check_context(self.directory, context, own.max_positions)
        if own.is_mxfp4:
            specs = parse_chain(draft, precision, is_mxfp4=True)
            if draft == "auto":
                warnings.warn(f"{self.directory}: {_ONE_PRECISION}", SpecqdWarning, stacklevel=2)
        self.tokenizer = Tokenizer.open(self.directory)
        self.defaults = read_generation_defaults(self.directory)
        self._drafts = Drafts(self.directory, precision, self.tokenizer)
        self._drafts.check(specs)
        self.turns = Turns()
        progress = self._drafts.overall(specs, progress)
        self.model = Model.open(
            self.directory,
            machine=Machine.choose(threads, isa),
            precision=precision,
            draft=draft_format(specs),
            cache_positions=cache_positions,
            context=context,
            progress=progress,
        )
        _check_vocabulary(self.directory, self.tokenizer, self.model)
        self.engine = self._engine(specs, progress)

    def with_draft(
        self, draft: str | SequenceOf[str] | None, *, progress: Progress | None = None
    ) -> "LLM":
        """The same model with other drafts; nothing is loaded twice. Use one of the two at a time:
        they share the KV cache, and each counts on all of it."""
        is_mxfp4 = self.model.config.is_mxfp4
        specs = parse_chain(draft, self.model.precision, is_mxfp4=is_mxfp4)
        with self.turns.alone():
            self._drafts.check(specs)
            other = copy(self)
            other.engine = other._engine(specs, self._drafts.overall(specs, progress))
        return other

    def _engine(self, specs: SequenceOf[DraftSpec], progress: Progress | None) -> Engine:
        eos = self.defaults.eos_token_ids or self.model.config.eos_token_ids
        level = self._drafts.chain(self.model, specs, progress)
        if specs:
            level.measure()
        return Engine(level, self.tokenizer, eos_token_ids=eos)

    def generate(
        self, prompts: Prompt | SequenceOf[Prompt], params: SamplingParams | None = None
    ) -> list[Result]:
        """Completes one prompt or many, each a text or token ids. Results have their order."""
        engine = self.engine
        encoded = [self.encode(prompt) for prompt in _as_many(prompts)]
        resolved = self._resolved(params)
        with self.turns.alone():
            before = Stats.of(engine)
            generations = engine.submit(GenerationRequest(encoded, resolved))
        try:
            self.turns.run(self.step, lambda: all(g.finish_reason is not None for g in generations))
        finally:
            with self.turns.alone():
                for generation in generations:
                    engine.cancel(generation)
                stats = Stats.of(engine).since(before)
        for error in (g.error for g in generations if g.error is not None):
            raise error
        samples = iter(generations)
        return [_result(prompt, list(islice(samples, resolved.n)), stats) for prompt in encoded]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Completes one prompt piece by piece."""
        return Stream(self, self.encode(prompt), self._resolved(params))

    def chat(
        self,
        messages: SequenceOf[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **template_variables: Any,
    ) -> Result:
        """Answers a conversation through the model's chat template."""
        prompt = self.tokenizer.chat(messages, **template_variables)
        return self.generate([prompt], params)[0]

    def logprobs(self, token_ids: SequenceOf[int]) -> NDArray[np.float32]:
        """Log-probabilities of the next token after each of `token_ids`: [n, vocab] float32."""
        with self.turns.alone():
            logits = self.model.logits(token_ids)
        isa = self.model.machine.isa
        return np.stack([_native.log_softmax(row, isa) for row in logits])

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a text as the model expects them; ids pass through."""
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def step(self) -> None:
        """Runs one round for all callers; call it within `turns`. An error ends all requests."""
        try:
            self.engine.step()
        except BaseException as error:
            self.engine.fail(error)
            raise

    def _resolved(self, params: SamplingParams | None) -> SamplingParams:
        return (params or SamplingParams()).resolved(self.defaults)


def _check_context(directory: Path, asked: int | None, own: int) -> None:
    if asked is not None and not 1 <= asked <= own:
        raise RequestError(
            f"{directory}: a context of {asked} tokens was asked for; the model's is {own}, ask "
            "for that at most"
        )


def _check_vocabulary(directory: Path, tokenizer: Tokenizer, model: Model) -> None:
    if tokenizer.vocab_size > model.config.vocab_size:
        raise TokenizerError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} tokens and the model "
            f"{model.config.vocab_size}; they do not belong together"
        )


def _as_many(prompts: Prompt | SequenceOf[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    many: list[Prompt] = []
    ids: list[int] = []
    for prompt in prompts:
        if isinstance(prompt, (int, np.integer)):
            ids.append(int(prompt))
        else:
            many.append(prompt)
    return [*many, ids] if ids else many


def _result(prompt: list[int], generations: SequenceOf[Generation], stats: Stats) -> Result:
    completions = [_completion(generation) for generation in generations]
    is_scored = generations[0].params.prompt_logprobs is not None
    return Result(prompt, completions, stats, generations[0].prompt_logprobs if is_scored else None)


def _completion(generation: Generation) -> Completion:
    assert generation.finish_reason is not None
    return Completion(
        tokens=generation.tokens,
        text=generation.text,
        finish_reason=generation.finish_reason,
        seed=generation.seed,
        logprobs=generation.logprobs if generation.params.logprobs is not None else None,
        origins=generation.origins,
    )
