"""Requests in, tokens and text out: scheduling, stops, log-probabilities, statistics.

Knows levels only as something that advances sequences; knows nothing of files, HTTP or terminals.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from hashlib import blake2b
from secrets import randbits, token_bytes
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd._native import DraftRequest, Level, Proposal, Rows, Sequence
from specqd.engine.generation import FinishReason, Generation, TokenLogprob
from specqd.engine.roles import Grammar
from specqd.errors import MachineError, RequestError, TooLongError
from specqd.model.model import Model
from specqd.sampling import SamplingParams
from specqd.text.tokenizer import Tokenizer

Logits = NDArray[np.float32]

# Positions past the last token that a round may write: no proposal is longer than a page.
_ROUND_POSITIONS = _native.PAGE_POSITIONS
_SPARE_PAGES = 2  # of the cache, that no single text may count on
# A text begins where all could write on for a while: or it would soon have to make room again.
_BEGINNING_POSITIONS = 2 * _native.PAGE_POSITIONS


@dataclass(slots=True)
class EngineStats:
    """Time and tokens of all steps; a step that reads a prompt counts as prefill."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    new_tokens: int = 0
    decoded_tokens: int = 0  # of new_tokens, those that decode_seconds made
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    preemptions: int = 0


class Engine:
    """Runs any number of requests over one chain of levels.

    A text begins when the cache has pages for its prompt and some tokens more. Where a round would
    not find the pages that it may need, the newest texts make room: they go back to the head of the
    queue and are read again later, which changes no bit. The oldest never does, so all come to an
    end.

    max_context: positions of one text at most, prompt included; None: the model's. Where the cache
    holds fewer for one text, it is those.
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
        self._model: Model = level.model
        self.tokenizer = tokenizer
        self.stats = EngineStats()
        self.reuses_prefixes = True  # of prompts; a measurement of prefill turns it off
        self.eos_token_ids = frozenset(eos_token_ids)
        self._max_batch = max_batch
        context = min(max_context or self._model.max_positions, self._model.max_positions)
        held = _positions_of_a_text(self._model.cache.total_pages)
        self.max_context = min(context, held)
        limit = "the context has" if context <= held else "the KV cache has room for"
        self._limit = f"{limit} {self.max_context}"  # as messages say it
        self._prompt_rows = prompt_rows
        self._make_seed = make_seed
        self._salting_key = token_bytes(16)  # nobody can find two salts that are taken for one
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
        *,
        cache_salt: str = "",
        is_plain: bool = False,
    ) -> list[Generation]:
        """Queues a request; returns its `n` samples, each under a grammar of its own.

        cache_salt: what was read for requests of another salt is read again, so that nobody learns
        from the time it takes what others asked. It changes no bit.
        is_plain: nothing is drafted for it, so that it takes longer. It changes no bit either.
        Raises RequestError for what cannot be run.
        """
        self._model.check_tokens(prompt)
        params.check_vocabulary(self._model.config.vocab_size)
        self.check_length(len(prompt))
        room = self.max_context - len(prompt)
        most = room if params.max_tokens is None else min(params.max_tokens, room)
        seed = self._make_seed() if params.seed is None else params.seed
        samples = [self._generation(prompt, params, seed, i, most) for i in range(params.n)]
        for sample in samples:
            sample.sequence.cache_salt = self._salt_of(cache_salt)
            sample.is_plain = is_plain
            if make_grammar is not None:
                sample.sequence.grammar = make_grammar()
        for follower in samples[1:]:
            follower.leader = samples[0]
            follower.prompt_logprobs = samples[0].prompt_logprobs
        self._waiting.extend(samples)
        self.stats.prompt_tokens += len(prompt)
        return samples

    def check_length(self, prompt_tokens: int, new_tokens: int = 1) -> None:
        """Raises TooLongError where context or cache have no room for so many."""
        room = self.max_context - prompt_tokens
        if room < 1:
            raise TooLongError(
                f"the prompt has {prompt_tokens} tokens, and {self._limit}; shorten the prompt"
            )
        if new_tokens > room:
            raise TooLongError(
                f"the prompt has {prompt_tokens} tokens, {new_tokens} new ones are asked for, and "
                f"{self._limit}; ask for {room} at most"
            )

    def _salt_of(self, text: str) -> int:
        digest = blake2b(text.encode(), digest_size=8, key=self._salting_key).digest()
        return int.from_bytes(digest) if text else 0

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
        stream = self.tokenizer.stream(skip_special_tokens=params.skip_special_tokens)
        return Generation(sequence, params, seed, sample, most, stream)

    def cancel(self, generation: Generation) -> None:
        """Ends a generation before its time; what it has stays readable."""
        if generation.finish_reason is not None:
            return
        if generation in self._waiting:
            self._waiting.remove(generation)
        self._finish(generation, "cancelled")

    def step(self) -> list[Generation]:
        """Advances every running request by a round; returns those that have something new."""
        self._make_room()
        self._admit()
        begun = perf_counter()
        unread = [self._num_unread(generation) for generation in self._running]
        is_prefill = any(unread) or any(not generation.count for generation in self._running)
        ready = self._read_prompts(unread) if is_prefill else self._running.copy()
        made = self._advance(ready) if ready else 0
        self.stats.new_tokens += made
        seconds = perf_counter() - begun
        if is_prefill:
            self.stats.prefill_seconds += seconds
        else:
            self.stats.decode_seconds += seconds
            self.stats.decoded_tokens += made
        return ready

    def _num_unread(self, generation: Generation) -> int:
        """Tokens that are to be read before the last one, from which the next follows."""
        sequence = generation.sequence
        return max(len(sequence.tokens) - 1 - self._model.context(sequence).length, 0)

    def _read_prompts(self, num_unread: list[int]) -> list[Generation]:
        """Those of the running that can be written on now. Of the others' prompts it reads a part,
        the oldest first, as far as the rows of this step go."""
        left, ready = self._prompt_rows, []
        for generation, unread in zip(self._running, num_unread, strict=True):
            part = unread if left is None else min(unread, left)
            is_left = not generation.count and generation.is_prompt_scored
            if part < unread or not is_left:  # else the round reads it, and goes on from it
                self._read(generation, part)
            if part == unread:
                ready.append(generation)
            if left is not None:
                left -= part
        return ready

    def _read(self, generation: Generation, count: int) -> None:
        """Reads so many tokens; of a prompt whose log-probabilities are asked for, writes them
        down as far as they are not known."""
        model, tokens = self._model, generation.sequence.tokens
        known, top = generation.prompt_logprobs, generation.params.prompt_logprobs
        while count:
            context = model.context(generation.sequence)
            start, is_scored = context.length, generation.is_prompt_scored
            part = count if is_scored else min(count, model.max_rows)
            rows = Rows(context, start, tokens[start : start + part], 0 if is_scored else part)
            model.forward([rows])
            count -= part
            if is_scored or top is None:
                continue
            logits = model.decoder.logits()
            for place in range(len(known), start + part):
                known.append(self._logprob(logits[place - start], tokens[place + 1], top))

    def _advance(self, ready: list[Generation]) -> int:
        """A round of the chain for each; returns the tokens that they got."""
        # While others are being read rounds are long, but only until all write on together.
        value = self.level.seconds_per_token(len(self._running))
        requests = [
            DraftRequest(
                g.sequence, 1 if g.is_plain else g.most_tokens - g.count, value, g.confidence
            )
            for g in ready
        ]
        advanced = self.level.advance(requests)
        logits = None
        if any(g.params.logprobs is not None for g in ready):
            logits = self._model.decoder.logits()
        before = sum(g.count for g in ready)
        for generation, result in zip(ready, advanced, strict=True):
            self._accept(generation, result, logits)
        return sum(g.count for g in ready) - before

    def _make_room(self) -> None:
        """Sends the newest back to the queue until a round finds all pages that it may need."""
        while len(self._running) > 1 and not self._has_pages(self._running, _ROUND_POSITIONS):
            generation = self._running.pop()
            self._leave(generation)
            self._waiting.appendleft(generation)
            generation.preemptions += 1
            self.stats.preemptions += 1

    def _admit(self) -> None:
        """Starts those that wait, in their order, while the batch has places and the cache has
        pages for all to write on."""
        while self._waiting and len(self._running) < self._max_batch:
            generation = self._waiting[0]
            leader = generation.leader
            if leader is not None and leader.count == 0 and leader.finish_reason is None:
                return  # its prompt will be shared once it is read
            held = self._share(generation)
            self._running.append(generation)
            is_alone = len(self._running) == 1  # and fits, as was checked when it was submitted
            if not is_alone and not self._has_pages(self._running, _BEGINNING_POSITIONS):
                self._running.pop()
                self._model.release(generation.sequence)
                return
            self._waiting.popleft()
            if not generation.preemptions:
                generation.cached_prompt_tokens = held
                self.stats.cached_prompt_tokens += held

    def _share(self, generation: Generation) -> int:
        """Lets a text begin with pages that are read already; returns the positions that another
        request left."""
        leader, model = generation.leader, self._model
        if leader is not None and leader in self._running and generation.count == 0:
            model.fork(leader.sequence, generation.sequence)
        elif self.reuses_prefixes and generation.is_prompt_scored:
            return model.adopt_prefix(generation.sequence)
        return 0

    def _has_pages(self, generations: SequenceOf[Generation], ahead: int) -> bool:
        """Whether there are pages for so many positions more of each."""
        model, missing = self._model, 0
        for generation in generations:
            tokens = generation.sequence.tokens
            end = len(tokens) + min(ahead, generation.most_tokens - generation.count)
            # Samples share their prompt's last page until they write it: each may need a copy.
            missing += model.missing_pages(generation.sequence, end) + (generation.params.n > 1)
        return missing <= model.cache.free_pages

    def _leave(self, generation: Generation) -> None:
        """Gives the text's pages back, filled as they are for whoever begins alike."""
        self._model.publish(generation.sequence)
        self.level.release(generation.sequence)

    def _accept(self, generation: Generation, result: Proposal, logits: Logits | None) -> None:
        """Takes over verified tokens, up to the one that ends the text."""
        sequence, params, verified = generation.sequence, generation.params, result.tokens
        if not verified:
            generation.error = RequestError(
                "no token is allowed next (bias, mask or logits exclude all); relax the request"
            )
            self._finish(generation, "error")
            return
        before = generation.count
        reason = generation.take(verified, result.confidences, result.depths)
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
            self._finish(generation, reason)
        else:
            self._model.forget_unseen(sequence)

    def _logprob(self, row: Logits, token: int, top: int) -> TokenLogprob:
        isa = self._model.machine.isa
        logprob = _native.logprob_of(row, token, isa)
        likeliest = _native.top_logprobs(row, min(top, len(row)), isa) if top else []
        return TokenLogprob(token, logprob, tuple(likeliest))

    def _finish(self, generation: Generation, reason: FinishReason) -> None:
        generation.finish(reason)
        if generation in self._running:
            self._running.remove(generation)
            self._leave(generation)


def _positions_of_a_text(pages: int) -> int:
    """That a cache of so many pages can hold of one text."""
    if pages <= _SPARE_PAGES:
        least = (_SPARE_PAGES + 1) * _native.PAGE_POSITIONS
        raise MachineError(
            f"the KV cache has {pages * _native.PAGE_POSITIONS} positions, too few for any text; "
            f"it needs {least} (--cache-positions), and the memory for them"
        )
    return (pages - _SPARE_PAGES) * _native.PAGE_POSITIONS
