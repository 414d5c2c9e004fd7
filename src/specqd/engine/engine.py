"""Requests in, tokens and text out: rounds, stops, log-probabilities, counts of time and tokens.

Knows a level only as something that advances sequences; knows no files, no HTTP and no terminals.
"""

import sys
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from hashlib import blake2b
from secrets import randbits, token_bytes
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd._native import DraftRequest, Level, Proposal, Sequence
from specqd.engine.generation import FinishReason, Generation, GenerationRequest, TokenLogprob
from specqd.engine.scheduler import Scheduler
from specqd.errors import RequestError, SpecqdError, TooLongError, shown
from specqd.model.model import Model
from specqd.text.tokenizer import Tokenizer

Logits = NDArray[np.float32]


@dataclass(slots=True)
class EngineStats:
    """Tokens and seconds of all steps. A step that prefills counts entirely as prefill."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    decoded_tokens: int = 0  # of new_tokens, those that decode_s made
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Engine:
    """Runs any number of requests over one chain of levels.

    max_context: most positions of one sequence, prompt included; None: the model's context. If the
        cache holds fewer for one sequence, that number is the limit.
    prompt_rows: rows of prompts that one step prefills, over all sequences; None: all of them. This
        bounds how long running sequences wait for new prompts, and changes no bit.
    """

    def __init__(
        self,
        level: Level,
        tokenizer: Tokenizer,
        *,
        eos_token_ids: Iterable[int] = (),
        max_batch: int = 16,
        max_context: int | None = None,
        prompt_rows: int | None = None,
        make_seed: Callable[[], int] = lambda: randbits(63),
    ) -> None:
        self.level = level
        self._model: Model = level.model
        self.tokenizer = tokenizer
        self.stats = EngineStats()
        self.scheduler = Scheduler(level, max_batch)
        self.eos_token_ids = frozenset(eos_token_ids)
        context = min(max_context or self._model.max_positions, self._model.max_positions)
        cached = self.scheduler.max_positions
        self.max_context = min(context, cached)
        limit = "the context has" if context <= cached else "the KV cache has room for"
        self._limit = f"{limit} {self.max_context}"  # for messages
        self._prompt_rows = sys.maxsize if prompt_rows is None else prompt_rows
        self._make_seed = make_seed
        self._salting_key = token_bytes(16)  # keeps anyone from finding two salts with one digest

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    def submit(self, request: GenerationRequest) -> list[Generation]:
        """Queues `n` samples of each prompt, in order.

        Raises RequestError for a request that cannot be run, and then queues nothing.
        """
        for prompt in request.prompts:
            self.check_length(len(prompt), request.new_tokens)
            self._model.check_tokens(prompt)
        request.params.check_vocabulary(self._model.config.vocab_size)
        samples = [s for prompt in request.prompts for s in self._samples(prompt, request)]
        self.scheduler.waiting.extend(samples)
        self.stats.prompt_tokens += sum(map(len, request.prompts))
        return samples

    def check_length(self, prompt_tokens: int, new_tokens: int = 1) -> None:
        """Raises TooLongError if context or cache have no room for the tokens."""
        room = self.max_context - prompt_tokens
        if room < 1:
            raise TooLongError(
                f"the prompt has {prompt_tokens} tokens, and {self._limit}; shorten the prompt"
            )
        if new_tokens > room:
            raise TooLongError(
                f"the prompt has {prompt_tokens} tokens, {new_tokens} new ones are requested, and "
                f"{self._limit}; request at most {room}"
            )

    def cancel(self, generation: Generation) -> None:
        """Ends a generation early; its tokens and text stay readable."""
        if generation.finish_reason is None:
            self._end(generation, "cancelled")

    def fail(self, reason: BaseException) -> None:
        """Ends all requests after a round that raised, because it may have left some half done."""
        why = shown(reason) if str(reason) else type(reason).__name__
        self.end_all(
            RequestError(f"a round for several calls failed in another call: {why}; call again")
        )

    def end_all(self, error: SpecqdError) -> None:
        """Ends all requests with this error."""
        for generation in [*self.scheduler.running, *self.scheduler.waiting]:
            generation.error = error
            generation.finish_reason = "error"
            self.scheduler.remove(generation)

    def step(self) -> list[Generation]:
        """Runs one round: admit, prefill, draft and verify, finish.

        Returns the sequences that got new tokens or ended.
        """
        self.scheduler.preempt()
        self.scheduler.admit()
        begun, running = perf_counter(), self.scheduler.running
        is_prefill = any(not each.count or self.num_unread(each) for each in running)
        ready = self._prefill() if is_prefill else running.copy()
        made = self._finish(ready, self._draft_and_verify(ready)) if ready else 0
        self._count(made, perf_counter() - begun, is_prefill=is_prefill)
        return ready

    def num_unread(self, generation: Generation) -> int:
        """Tokens to prefill before the last one, whose row gives the logits of the next token."""
        sequence = generation.sequence
        return max(len(sequence.tokens) - 1 - self._model.context(sequence).length, 0)

    def _samples(self, prompt: SequenceOf[int], request: GenerationRequest) -> list[Generation]:
        """The samples of one prompt. The first one prefills it for all."""
        params = request.params
        seed = self._make_seed() if params.seed is None else params.seed
        samples = [self._generation(prompt, request, seed, i) for i in range(params.n)]
        for follower in samples[1:]:
            follower.leader = samples[0]
            follower.prompt_logprobs = samples[0].prompt_logprobs
        return samples

    def _generation(
        self, prompt: SequenceOf[int], request: GenerationRequest, seed: int, sample: int
    ) -> Generation:
        params, room = request.params, self.max_context - len(prompt)
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= self.eos_token_ids
        sequence = Sequence(
            list(prompt),
            params.sampler(seed, sample),
            len(prompt),
            is_sampled=bool(params.temperature),
            needs_history=params.needs_history,
            grammar=None if request.make_grammar is None else request.make_grammar(),
            stop_ids=stop_ids,
        )
        sequence.cache_salt = self._digest(request.cache_salt)
        stream = self.tokenizer.stream(skip_special_tokens=params.skip_special_tokens)
        most_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        is_plain = request.is_plain
        return Generation(sequence, params, seed, sample, most_tokens, stream, is_plain=is_plain)

    def _digest(self, salt: str) -> int:
        digest = blake2b(salt.encode(), digest_size=8, key=self._salting_key).digest()
        return int.from_bytes(digest) if salt else 0

    def _prefill(self) -> list[Generation]:
        """Prefills up to `prompt_rows` rows, the oldest sequences first; returns the sequences
        that the round can continue."""
        rows_left, ready = self._prompt_rows, []
        for generation in self.scheduler.running:
            unread = self.num_unread(generation)
            part = min(unread, rows_left)
            rows_left -= part
            is_begun = generation.count or not generation.is_prompt_scored
            if part < unread or is_begun:  # else the round's own forward reads these rows too
                self._prefill_rows(generation, part)
            if part == unread:
                ready.append(generation)
        return ready

    def _prefill_rows(self, generation: Generation, count: int) -> None:
        """Prefills `count` tokens and records the prompt log-probabilities that are missing."""
        context, tokens = self._model.context(generation.sequence), generation.sequence.tokens
        context.match(tokens[:], generation.sequence.num_accepted)
        known, top = generation.prompt_logprobs, generation.params.prompt_logprobs or 0
        end = context.length + count
        num_scored = 0 if generation.is_prompt_scored else max(end - len(known), 0)
        for row in self._model.prefill(context, tokens[context.length : end], num_scored):
            known.append(self._logprob(row, tokens[len(known) + 1], top))

    def _draft_and_verify(self, ready: SequenceOf[Generation]) -> list[Proposal]:
        """Runs a round of the chain; returns the verified tokens of each sequence."""
        # Counts the sequences whose prompts are still being read: they join the batch soon.
        value_s = self.level.seconds_per_token(len(self.scheduler.running))
        return self.level.advance(
            [
                DraftRequest(
                    g.sequence, 1 if g.is_plain else g.most_tokens - g.count, value_s, g.confidence
                )
                for g in ready
            ]
        )

    def _finish(self, ready: SequenceOf[Generation], verified: SequenceOf[Proposal]) -> int:
        """Adds the verified tokens to their sequences and ends those that are done; returns the
        number of new tokens."""
        has_logprobs = any(generation.params.logprobs is not None for generation in ready)
        logits = self._model.decoder.logits() if has_logprobs else None
        before = sum(generation.count for generation in ready)
        for generation, result in zip(ready, verified, strict=True):
            self._accept(generation, result, logits)
        return sum(generation.count for generation in ready) - before

    def _accept(self, generation: Generation, result: Proposal, logits: Logits | None) -> None:
        """Adds verified tokens to a sequence, up to the one that ends it."""
        sequence, params, verified = generation.sequence, generation.params, result.tokens
        before = generation.count
        if result.drafted:
            generation.acceptance.add(result.drafted, max(len(verified) - 1, 0))
        try:
            if not verified:
                raise RequestError(
                    "no token is allowed next (bias, mask or logits exclude all); relax the request"
                )
            reason = generation.take(verified, result.confidences, result.depths)
        except SpecqdError as error:
            generation.error = error
            self._end(generation, "error")
            return
        taken = verified[: generation.count - before]
        if (grammar := sequence.grammar) is not None:
            for token in taken:
                if not sequence.is_stop(token):
                    grammar.accept(token)
        if params.logprobs is not None and logits is not None:
            generation.logprobs += [
                self._logprob(logits[result.row + i], token, params.logprobs)
                for i, token in enumerate(taken)
            ]
        if reason is not None:
            self._end(generation, reason)
        else:
            if before == 0:  # from now on others may share the prompt
                self._model.publish(sequence)
            self._model.forget_unseen(sequence)

    def _logprob(self, row: Logits, token: int, top: int) -> TokenLogprob:
        isa = self._model.machine.isa
        logprob = _native.logprob_of(row, token, isa)
        likeliest = _native.top_logprobs(row, min(top, len(row)), isa) if top else []
        return TokenLogprob(token, logprob, tuple(likeliest))

    def _end(self, generation: Generation, reason: FinishReason) -> None:
        generation.finish(reason)
        self.scheduler.remove(generation)

    def _count(self, made: int, seconds: float, *, is_prefill: bool) -> None:
        self.stats.new_tokens += made
        if is_prefill:
            self.stats.prefill_s += seconds
        else:
            self.stats.decode_s += seconds
            self.stats.decoded_tokens += made
