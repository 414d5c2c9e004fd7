"""The exactness harness: decodes the same requests in many ways and compares bits.

A cell of the covering array is one way to decode. In every cell, a request's emissions must have
the bits of its reference: plain decoding alone, with one thread, its prompt in one forward.
"""

import hashlib
import random
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd._native import DraftRequest, Level, Rows, Sequence, testing
from specqd.model.model import MAX_ROWS, Machine, Model
from support.subjects import Request, Subject

# Ways of a prompt into the cache; a preempted sequence leaves it and comes back, again and again.
FEEDINGS = ("whole", "parts", "adopted", "forked", "preempted")
SLOW_ISAS = ("portable", "amx_emulated")  # for small models only
PART_SIZES = (1, 7, 33, 2, 64, 20)  # rows of one sequence in one forward, when fed in parts


# --- The cells ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to decode. The array covers all pairs of values of its fields."""

    isa: str
    draft: str
    model: str
    company: str  # "alone", or in a "batch" with requests of other lengths
    threads: int
    sampling: str
    feeding: str
    stop: str

    def __str__(self) -> str:
        return (
            f"{self.isa}-{self.threads}-{self.model}-{self.draft.replace(':', '_')}"
            f"-{self.company}-{self.sampling}-{self.feeding}-{self.stop}"
        )


def isas() -> list[str]:
    """Instruction sets of this machine, slowest first, and emulated AMX where that works."""
    return list(testing.kernel_names())


# --- Decoding -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Emission:
    """A token, and digests of its row of logits and of their log-softmax."""

    token: int
    logits: bytes
    logprobs: bytes


@dataclass(slots=True)
class Trace:
    """Emissions, and the cache at the end: equal in every cell."""

    emissions: list[Emission] = field(default_factory=list)
    pages: list[bytes | None] = field(default_factory=list)  # full ones; None: freed
    states: dict[int, bytes] = field(default_factory=dict)  # by position; of recurrent layers


@dataclass(slots=True)
class Drafted:
    """Counts of proposals that verification rejected in part and accepted whole."""

    rejected: int = 0
    accepted_tokens: int = 0
    taken_whole: int = 0

    def count(self, proposed: int, accepted: int) -> None:
        self.accepted_tokens += accepted
        self.rejected += accepted < proposed
        self.taken_whole += accepted == proposed > 0


def open_model(subject: Subject, isa: str, threads: int, max_rows: int = MAX_ROWS) -> Model:
    """The subject's model on named kernels, including those that users cannot choose."""
    machine = Machine(_native.Pool(threads), isa)
    positions = 8 * 1024
    return Model.open(
        subject.directory, machine=machine, cache_positions=positions, max_rows=max_rows
    )


class Decoding:
    """Decodes a batch of requests with one level."""

    def __init__(self, level: Level, requests: SequenceOf[Request], feeding: str = "whole") -> None:
        self.level = level
        self.requests = requests
        self.feeding = feeding
        self.traces = [Trace() for _ in requests]
        self.drafted = Drafted()
        self._sequences: dict[int, Sequence] = {}
        self._chance = random.Random(f"{feeding} {requests}")
        self._patience = [cycle(request.patience or (1 << 20,)) for request in requests]
        self._part_sizes = cycle(PART_SIZES)

    def run(self) -> list[Trace]:
        """Decodes all requests to their ends; returns traces in the order of the requests."""
        waiting = sorted(range(len(self.requests)), key=lambda i: self.requests[i].enters)
        turn = 0
        while waiting or self._sequences:
            while waiting and self.requests[waiting[0]].enters <= turn:
                request = waiting.pop(0)
                self._sequences[request] = self.requests[request].sequence()
                feed(self.level.model, self._sequences[request], self.feeding)
            if self._sequences:
                self._advance()
            if self.feeding == "preempted":
                self._preempt()
            turn += 1
        return self.traces

    def _advance(self) -> None:
        """One round of every running request; some may only read a part of their prompts."""
        left = {
            i: self.requests[i].new_tokens - len(self.traces[i].emissions) for i in self._sequences
        }
        asked, running = [], []
        for i, sequence in self._sequences.items():
            unread = self.level.num_unread(sequence)
            reads = min(unread, next(self._part_sizes)) if self.feeding == "parts" else unread
            asked.append(DraftRequest(sequence, min(left[i], next(self._patience[i])), reads=reads))
            if reads == unread:
                running.append(i)
        advanced = zip(self._sequences, self.level.advance(asked), strict=True)
        steps = [step for i, step in advanced if i in running]
        logits = read_logits(self.level.model)
        for i, step in zip(running, steps, strict=True):
            assert step.tokens, "no token was sampled"
            self.drafted.count(step.drafted, len(step.tokens) - 1)
            for row, token in enumerate(step.tokens, step.row):
                self.traces[i].emissions.append(self._emission(token, logits[row]))
            self._sequences[i].tokens.extend(step.tokens)
            if len(step.tokens) == left[i]:
                self.traces[i].pages = page_digests(self.level.model, self._sequences[i])
                self.traces[i].states = state_digests(self.level.model, self._sequences[i])
                self.level.release(self._sequences.pop(i))
            else:
                self.level.model.forget_unseen(self._sequences[i])

    def _preempt(self) -> None:
        """Releases some sequences, which go on from what stays cached of them."""
        for sequence in self._sequences.values():
            if self._chance.random() < 0.05:
                self.level.model.publish(sequence)
                self.level.release(sequence)
                self.level.model.adopt_prefix(sequence)

    def _emission(self, token: int, logits: NDArray[np.float32]) -> Emission:
        logprobs = _native.log_softmax(logits, self.level.model.machine.isa)
        return Emission(token, digest(logits), digest(logprobs))


def feed(model: Model, sequence: Sequence, feeding: str) -> None:
    """Puts part of a new sequence's prompt into the cache; its level prefills the rest."""
    if feeding in ("adopted", "forked"):
        twin = Sequence(list(sequence.tokens), _native.Sampler(), sequence.prompt_length)
        # The state of a recurrent layer is saved where the tokens before it are known to stay.
        leaves_state = not model.cache.has_states or sequence.prompt_length % 2 == 1
        if leaves_state:
            model.context(twin).match(twin.tokens[:], twin.num_accepted)
        model.forward([Rows(model.context(twin), 0, twin.tokens[:], 0)])
        if feeding == "forked":
            model.fork(twin, sequence)
            assert model.context(sequence).length == sequence.prompt_length
            model.forward([Rows(model.context(twin), twin.prompt_length, [*range(70)], 0)])
        else:
            model.publish(twin)
        model.release(twin)
        if feeding == "adopted":
            missed = sequence.prompt_length - 1 - model.adopt_prefix(sequence)
            assert missed < _native.PAGE_POSITIONS or not leaves_state  # other cells may leave some


def read_logits(model: Model) -> NDArray[np.float32]:
    """All rows of logits of the last forward: [rows, vocab]. A test puts another in its place."""
    return model.decoder.logits()


def page_digests(model: Model, sequence: Sequence) -> list[bytes | None]:
    """Digests of the keys and values in the pages that the cached tokens fill."""
    context, cache = model.context(sequence), model.cache
    return [
        digest(cache.page_bits(context.slot, page)) if cache.has_page(context.slot, page) else None
        for page in range(context.length // _native.PAGE_POSITIONS)
    ]


def state_digests(model: Model, sequence: Sequence) -> dict[int, bytes]:
    """Digests of the newest saved state, and of the rows since the last anchor."""
    context, cache = model.context(sequence), model.cache
    if not cache.has_states or not context.length:
        return {}
    position, bits = testing.saved_state(cache, context.slot)
    first = (context.length - 1) // 32 * 32
    rows = testing.state_rows(cache, context.slot, first, context.length)
    return {position: digest(bits), context.length: digest(rows)}


def digest(bits: NDArray[Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(bits).data, digest_size=12).digest()


# --- Comparing ------------------------------------------------------------------------------------


def difference(expected: Trace, found: Trace) -> str | None:
    """A description of the first difference between two traces; None where all bits are equal."""
    for at, (want, got) in enumerate(zip(expected.emissions, found.emissions, strict=False)):
        if want != got:
            parts = [
                name for name in Emission.__slots__ if getattr(want, name) != getattr(got, name)
            ]
            return f"new token {at}: {', '.join(parts)} differ (tokens {want.token}, {got.token})"
    if len(expected.emissions) != len(found.emissions):
        return f"{len(found.emissions)} tokens instead of {len(expected.emissions)}"
    for page, (one, other) in enumerate(zip(expected.pages, found.pages, strict=False)):
        if one is not None and other is not None and one != other:
            return f"page {page} of the cache differs"
    for at in expected.states.keys() & found.states.keys():
        if expected.states[at] != found.states[at]:
            return f"the state at {at} differs"
    return None
