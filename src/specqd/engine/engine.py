"""Requests in, tokens and text out: rounds, stops, log-probabilities, counts of time and tokens.

Knows a level only as something that advances sequences; knows no files, no HTTP and no terminals.
"""

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
from specqd.engine.prompts import MAX_GAP_S, PromptReader, Reading
from specqd.engine.scheduler import Scheduler
from specqd.errors import RequestError, SpecqdError, TooLongError, shown
from specqd.model.model import Model
from specqd.sampling import SEED_BITS
from specqd.text.channels import HeaderTokens, has_channels
from specqd.text.tokenizer import Tokenizer

Logits = NDArray[np.float32]


@dataclass(slots=True)
class EngineStats:
    """Tokens and seconds of all steps. A step that reads prompts counts entirely as prefill."""

    prompt_tokens: int = 0
    read_tokens: int = 0  # of prompts, those that forwards read; the others were cached
    new_tokens: int = 0
    decoded_tokens: int = 0  # of new_tokens, those that decode_s made
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Engine:
    """Runs any number of requests over one chain of levels.

    max_context: most positions of one sequence, prompt included; None: the model's context. If the
        cache holds fewer for one sequence, that number is the limit.
    max_gap_s: seconds that a step takes at most while it reads prompts beside other sequences, by
        measured costs. It bounds how long those wait, and changes no bit.
    prompt_tokens: tokens of prompts that a step reads, however long that takes; None: as many as
        `max_gap_s` permits.
    """

    def __init__(
        self,
        level: Level,
        tokenizer: Tokenizer,
        *,
        eos_token_ids: Iterable[int] = (),
        max_batch: int = 16,
        max_context: int | None = None,
        max_gap_s: float = MAX_GAP_S,
        prompt_tokens: int | None = None,
        make_seed: Callable[[], int] = lambda: randbits(SEED_BITS),
    ) -> None:
        self.level = level
        self._model: Model = level.model
        self.tokenizer = tokenizer
        self.stats = EngineStats()
        most = level.model.max_rows - 1  # a prompt may need a row for its log-probabilities
        self.scheduler = Scheduler(level, min(max_batch, most))
        self.eos_token_ids = frozenset(eos_token_ids)
        context = min(max_context or self._model.max_positions, self._model.max_positions)
        cached = self.scheduler.max_positions
        self.max_context = min(context, cached)
        limit = "the context has" if context <= cached else "the KV cache has room for"
        self._limit = f"{limit} {self.max_context}"  # for messages
        self._prompts = PromptReader(level, max_gap_s, prompt_tokens)
        self._make_seed = make_seed
        # Keeps anyone from finding two salts with one digest.
        store = self._model.prompt_store
        self._salting_key = token_bytes(16) if store is None else store.salting_key

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    @property
    def prompt_tokens_left(self) -> int:
        """Tokens of running and waiting prompts that are not read yet. Samples of one prompt count
        it once."""
        samples = (*self.scheduler.running, *self.scheduler.waiting)
        own = (each for each in samples if each.leader is None and not each.count)
        return sum(each.sequence.prompt_length - each.prompt_read for each in own)

    def submit(self, request: GenerationRequest) -> list[Generation]:
        """Queues `n` samples of each prompt, in order.

        Raises RequestError for a request that cannot be run, and then queues nothing.
        """
        self._model.check_generates()
        for prompt in request.prompts:
            self.check_length(len(prompt))
            self._model.check_tokens(prompt)
        request.params.check_vocabulary(self._model.config.vocab_size)
        samples = [s for prompt in request.prompts for s in self._samples(prompt, request)]
        self.scheduler.waiting.extend(samples)
        self.stats.prompt_tokens += sum(map(len, request.prompts))
        return samples

    def check_length(self, prompt_tokens: int) -> None:
        """Raises TooLongError if context or cache have no room for the prompt and a new token.

        Clients shorten a conversation if they find "prompt is too long" or "exceeds the available
        context size" in the message.
        """
        if prompt_tokens >= self.max_context:
            raise TooLongError(
                f"the prompt is too long: with {prompt_tokens} tokens it exceeds the available "
                f"context size, as {self._limit}; shorten the prompt"
            )

    def rows_beside(self) -> int | None:
        """The most rows of a forward between two rounds, such that running sequences wait for it
        about `max_gap_s`; None: no sequence runs."""
        return None if self.is_idle else self._prompts.rows_beside()

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
        """Runs one round: admit, read prompts, draft and verify, finish.

        Returns the sequences that got new tokens or ended.
        """
        self.scheduler.preempt()
        admitted = self.scheduler.admit()
        begun = perf_counter()
        readings = self._plan(admitted)
        if not readings:
            return []
        is_prefill = any(each.count or not each.generation.count for each in readings)
        results = self.level.advance(self._requests(readings))
        made = self._finish(readings, results)
        seconds = perf_counter() - begun
        self._prompts.learn(readings, seconds)
        self._count(made, seconds, is_prefill=is_prefill)
        return [each.generation for each in readings if each.is_last]

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
        stream = self.tokenizer.stream(
            skip_special_tokens=params.skip_special_tokens,
            after=() if request.is_answer else prompt,
        )
        most_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        has_headers = bool(params.stop) and request.is_answer and has_channels(self.tokenizer)
        return Generation(
            sequence,
            params,
            seed,
            sample,
            most_tokens,
            stream,
            is_plain=request.is_plain,
            headers=HeaderTokens(self.tokenizer) if has_headers else None,
        )

    def _digest(self, salt: str) -> int:
        digest = blake2b(salt.encode(), digest_size=8, key=self._salting_key).digest()
        return int.from_bytes(digest) if salt else 0

    def _plan(self, admitted: SequenceOf[Generation]) -> list[Reading]:
        """What the round reads. A prompt that waited while another with the same beginning was read
        starts from the pages of that one."""
        while True:
            readings = self._prompts.plan(self.scheduler.running)
            waited = [
                each.generation
                for each in readings
                if not each.generation.count and each.generation not in admitted
            ]
            gains = [self.scheduler.share_again(each) for each in waited]
            if not any(gains):
                return readings

    def _requests(self, readings: SequenceOf[Reading]) -> list[DraftRequest]:
        """What the chain is asked to do in a round."""
        # Counts the sequences whose prompts are still being read: they join the batch soon.
        value_s = self.level.seconds_per_token(len(self.scheduler.running))
        return [
            DraftRequest(
                generation.sequence,
                1 if generation.is_plain else generation.most_tokens - generation.count,
                value_s,
                generation.confidence,
                reads=reading.count,
                scores=reading.scores,
            )
            for reading in readings
            for generation in [reading.generation]
        ]

    def _finish(self, readings: SequenceOf[Reading], results: SequenceOf[Proposal]) -> int:
        """Records what was read and the verified tokens, and ends sequences that are done; returns
        the number of new tokens."""
        before = sum(each.generation.count for each in readings)
        for reading, result in zip(readings, results, strict=True):
            generation = reading.generation
            if reading.scores:
                self._score(generation, self._logits(result.row - reading.scores, result.row))
            self.stats.read_tokens += reading.count
            if reading.is_last:
                self._accept(generation, result)
            else:
                generation.prompt_read = self._num_read(generation)
        return sum(each.generation.count for each in readings) - before

    def _num_read(self, generation: Generation) -> int:
        """Tokens of the prompt that the cache holds."""
        sequence = generation.sequence
        held = len(sequence.tokens) - 1 - self.level.num_unread(sequence)
        return min(held, sequence.prompt_length)

    def _score(self, generation: Generation, rows: Logits) -> None:
        """Adds log-probabilities of the prompt from the logits of the tokens before."""
        known, top = generation.prompt_logprobs, generation.params.prompt_logprobs or 0
        for row in rows:
            known.append(self._logprob(row, generation.sequence.tokens[len(known) + 1], top))

    def _logits(self, first: int, last: int) -> Logits:
        """A copy of rows of the target's last logits: a round may have many that nobody reads."""
        return self._model.decoder.logits(first, last)

    def _accept(self, generation: Generation, result: Proposal) -> None:
        """Adds verified tokens to a sequence, up to the one that ends it."""
        sequence, params, verified = generation.sequence, generation.params, result.tokens
        before = generation.count
        generation.prompt_read = sequence.prompt_length
        if result.drafted:
            generation.acceptance.add(result.drafted, result.accepted)
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
        if params.logprobs is not None:
            rows = self._logits(result.row, result.row + len(taken))
            generation.logprobs += [
                self._logprob(row, token, params.logprobs)
                for row, token in zip(rows, taken, strict=True)
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
