"""Requests in, tokens and text out: scheduling, stops, log-probabilities, statistics.

Knows levels only as something that advances sequences; knows nothing of files, HTTP or terminals.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from secrets import randbits
from time import perf_counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.context import Rows
from specqd.drafters import Ask, Proposal
from specqd.errors import RequestError
from specqd.level import Level
from specqd.sampling import SamplingParams
from specqd.sequence import Grammar, Sequence
from specqd.text_stream import TextStream
from specqd.tokenizer import Tokenizer

Logits = NDArray[np.float32]
FinishReason = Literal["stop", "length", "cancelled", "error"]

# Positions past the last token that a proposal may touch, with a page to spare.
_SPARE_POSITIONS = 2 * _native.PAGE_POSITIONS


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability in the raw logits, and the likeliest tokens at its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a token came from: the level that said it first, counted from the outermost (0: no
    draft proposed it), and the probability that the outermost gave it."""

    depth: int
    probability: float


@dataclass(slots=True, eq=False)
class Generation:
    """One sample of one request, as far as it has come."""

    sequence: Sequence
    params: SamplingParams
    seed: int
    sample: int
    most_tokens: int
    text: str = ""
    confidence: float = 1.0  # in the last token
    cached_prompt_tokens: int = 0  # that another request had read before
    logprobs: list[TokenLogprob] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: RequestError | None = None  # why it ended with the reason "error"
    _stream: TextStream | None = None
    _held_back: str = ""  # certain text that may turn out to begin a stop string
    _leader: "Generation | None" = None  # whose prompt this sample shares

    @property
    def tokens(self) -> list[int]:
        """The new tokens, without the prompt's."""
        return self.sequence.tokens[self.sequence.prompt_length :]

    @property
    def count(self) -> int:
        return len(self.sequence.tokens) - self.sequence.prompt_length


@dataclass(slots=True)
class EngineStats:
    """Time and tokens of all steps; a step that reads a prompt counts as prefill."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    new_tokens: int = 0
    decoded_tokens: int = 0  # of new_tokens, those that decode_seconds made
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


class Engine:
    """Runs any number of requests over one chain of levels.

    max_context: positions of one text at most, prompt included; None: the model's.
    prompt_rows: of all prompts together, what one step reads; None: all of each. It bounds how long
    those that are being written wait for those that begin, and changes no bit.
    """

    def __init__(
        self,
        level: Level,
        tokenizer: Tokenizer,
        *,
        eos_token_ids: SequenceOf[int] = (),
        max_batch: int = 16,
        max_context: int | None = None,
        prompt_rows: int | None = None,
        make_seed: Callable[[], int] = lambda: randbits(63),
    ) -> None:
        self.level = level
        self.tokenizer = tokenizer
        self.stats = EngineStats()
        self.reuses_prefixes = True  # of prompts; a measurement of prefill turns it off
        self.eos_token_ids = frozenset(eos_token_ids)
        self._max_batch = max_batch
        self.max_context = min(max_context or level.model.max_positions, level.model.max_positions)
        self._prompt_rows = prompt_rows
        self._make_seed = make_seed
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def submit(
        self,
        prompt: SequenceOf[int],
        params: SamplingParams,
        make_grammar: Callable[[], Grammar] | None = None,
    ) -> list[Generation]:
        """Queues a request; returns its `n` samples, each under a grammar of its own.

        Raises RequestError for what cannot be run.
        """
        model = self.level.model
        model.check_tokens(prompt)
        params.check_vocabulary(model.config.vocab_size)
        room = self.max_context - len(prompt)
        if room < 1:
            raise RequestError(
                f"the prompt's {len(prompt)} tokens fill the context of {self.max_context}; "
                "shorten the prompt"
            )
        most = room if params.max_tokens is None else min(params.max_tokens, room)
        if self._pages(len(prompt) + most) > model.cache.total_pages:
            capacity = (model.cache.total_pages - 2) * _native.PAGE_POSITIONS
            raise RequestError(
                f"a prompt of {len(prompt)} tokens and {most} new ones need more than the KV "
                f"cache's {capacity} positions; ask for fewer tokens"
            )
        seed = self._make_seed() if params.seed is None else params.seed
        samples = [self._generation(prompt, params, seed, i, most) for i in range(params.n)]
        if make_grammar is not None:
            for sample in samples:
                sample.sequence.grammar = make_grammar()
        for follower in samples[1:]:
            follower._leader = samples[0]
        self._waiting.extend(samples)
        self.stats.prompt_tokens += len(prompt)
        return samples

    def _generation(
        self, prompt: SequenceOf[int], params: SamplingParams, seed: int, sample: int, most: int
    ) -> Generation:
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= self.eos_token_ids
        sequence = Sequence(
            list(prompt),
            params.picker(seed, sample),
            len(prompt),
            is_sampled=bool(params.temperature),
            needs_history=params.needs_history,
            stop_ids=stop_ids,
        )
        stream = self.tokenizer.stream()
        return Generation(sequence, params, seed, sample, most, _stream=stream)

    def cancel(self, generation: Generation) -> None:
        """Ends a generation before its time; what it has stays readable."""
        if generation.finish_reason is not None:
            return
        if generation in self._waiting:
            self._waiting.remove(generation)
            generation.finish_reason = "cancelled"
        else:
            self._finish(generation, "cancelled")

    def step(self) -> list[Generation]:
        """Advances every running request by a round; returns those that have something new."""
        self._admit()
        is_prefill = any(generation.count == 0 for generation in self._running)
        begun = perf_counter()
        ready = self._read_prompts()
        made = self._advance(ready) if ready else 0
        self.stats.new_tokens += made
        seconds = perf_counter() - begun
        if is_prefill:
            self.stats.prefill_seconds += seconds
        else:
            self.stats.decode_seconds += seconds
            self.stats.decoded_tokens += made
        return ready

    def _read_prompts(self) -> list[Generation]:
        """Those of the running that can be written on now. Of the others' prompts it reads a part,
        the oldest first, as far as the rows of this step go."""
        if self._prompt_rows is None:
            return list(self._running)
        model, left = self.level.model, self._prompt_rows
        ready = []
        for generation in self._running:
            context, tokens = model.context(generation.sequence), generation.sequence.tokens
            start = context.length
            unread = max(len(tokens) - 1 - start, 0)
            if unread <= left:
                left -= unread
                ready.append(generation)
            elif left:
                model.forward([Rows(context, start, tokens[start : start + left], 0)])
                left = 0
        return ready

    def _advance(self, ready: list[Generation]) -> int:
        """A round of the chain for each; returns the tokens that they got."""
        asks = [Ask(g.sequence, g.most_tokens - g.count, confidence=g.confidence) for g in ready]
        advanced = self.level.advance(asks)
        logits = None
        if any(g.params.logprobs is not None for g in ready):
            logits = self.level.model.decoder.logits()
        before = sum(g.count for g in ready)
        for generation, result in zip(ready, advanced, strict=True):
            self._accept(generation, result, logits)
        return sum(g.count for g in ready) - before

    def _admit(self) -> None:
        """Starts waiting requests while the batch has places and the cache has pages for all."""
        model = self.level.model
        reserved = sum(self._reserved(g) for g in self._running)
        while self._waiting and len(self._running) < self._max_batch:
            generation = self._waiting[0]
            leader = generation._leader
            if leader is not None and leader.count == 0 and leader.finish_reason is None:
                return  # its prompt will be shared once it is read
            reserved += self._reserved(generation)
            if reserved > model.cache.total_pages:
                return
            self._waiting.popleft()
            if leader is not None and leader in self._running:
                model.fork(leader.sequence, generation.sequence)
            elif self.reuses_prefixes:
                held = model.adopt_prefix(generation.sequence)
                generation.cached_prompt_tokens = held
                self.stats.cached_prompt_tokens += held
            self._running.append(generation)

    def _reserved(self, generation: Generation) -> int:
        return self._pages(generation.sequence.prompt_length + generation.most_tokens)

    @staticmethod
    def _pages(positions: int) -> int:
        return -(-(positions + _SPARE_POSITIONS) // _native.PAGE_POSITIONS)

    def _accept(self, generation: Generation, result: Proposal, logits: Logits | None) -> None:
        """Takes over verified tokens one by one, until one of them ends the text."""
        sequence, params = generation.sequence, generation.params
        if not result.tokens:
            generation.error = RequestError(
                "no token is allowed next (bias, mask or logits exclude all); relax the request"
            )
            self._finish(generation, "error")
            return
        for i, token in enumerate(result.tokens):
            sequence.tokens.append(token)
            if sequence.grammar is not None and token not in sequence.stop_ids:
                sequence.grammar.accept(token)
            generation.confidence = result.confidences[i]
            generation.origins.append(Origin(result.depths[i], result.confidences[i]))
            if params.logprobs is not None and logits is not None:
                generation.logprobs.append(
                    self._logprob(logits[result.row + i], token, params.logprobs)
                )
            if token in sequence.stop_ids or self._take_text(generation, token):
                self._finish(generation, "stop")
            elif generation.count >= generation.most_tokens:
                self._finish(generation, "length")
            if generation.finish_reason is not None:
                return
        self.level.model.forget_unseen(sequence)

    def _logprob(self, row: Logits, token: int, top: int) -> TokenLogprob:
        isa = self.level.model.machine.isa
        logprob = _native.logprob_of(row, token, isa)
        likeliest = _native.top_logprobs(row, min(top, len(row)), isa) if top else []
        return TokenLogprob(token, logprob, tuple(likeliest))

    def _take_text(self, generation: Generation, token: int) -> bool:
        """Adds a token's text; true where a stop string cuts it."""
        assert generation._stream is not None
        pending = generation._held_back + generation._stream.feed(token)
        return self._release_text(generation, pending, is_last=False)

    def _release_text(self, generation: Generation, pending: str, *, is_last: bool) -> bool:
        stops = [stop for stop in generation.params.stop if stop]
        found = [at for stop in stops if (at := pending.find(stop)) >= 0]
        kept = 0
        if found:
            pending = pending[: min(found)]
        elif not is_last:
            kept = max((_overlap(pending, stop) for stop in stops), default=0)
        released = pending[: len(pending) - kept]
        generation._held_back = pending[len(pending) - kept :]
        generation.text += released
        return bool(found)

    def _finish(self, generation: Generation, reason: FinishReason) -> None:
        assert generation._stream is not None
        cut = (
            reason == "stop" and generation.sequence.tokens[-1] not in generation.sequence.stop_ids
        )
        if not cut:
            pending = generation._held_back + generation._stream.finish()
            self._release_text(generation, pending, is_last=True)
        generation.finish_reason = reason
        self._running.remove(generation)
        self.level.model.publish(generation.sequence)
        self.level.release(generation.sequence)


def _overlap(text: str, stop: str) -> int:
    """The longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
