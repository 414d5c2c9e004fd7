"""A model whose next token is any function of the tokens before it, and a drafter that says as
little as one may. They know no arithmetic.

The model's cache remembers which precision wrote each position, so that a level which trusts a
draft's positions, or positions of other tokens, fails here at once.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from specqd._native import Context, DraftRequest, Proposal, Rows, Sequence
from specqd.engine.roles import Drafter
from specqd.model.model import Precision

Rule = Callable[[tuple[int, ...]], int]  # all tokens so far -> the next one


def next_by_hash(vocabulary: int, *, salt: int = 0) -> Rule:
    return lambda prefix: hash((salt, prefix)) % vocabulary


def often(agree: Rule, differ: Rule, *, percent: int) -> Rule:
    """`agree` for that share of prefixes, `differ` for the others."""
    return lambda prefix: (agree if hash((7919, prefix)) % 100 < percent else differ)(prefix)


class FakeDrafter:
    """A drafter by what it answers to one request: nothing, unless a test says more."""

    @property
    def levels(self) -> tuple[Drafter, ...]:
        return (self,)

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        return [self.answer(request) for request in requests]

    def answer(self, request: DraftRequest) -> Proposal:
        return Proposal()

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        pass

    def values(self, requests: SequenceOf[DraftRequest]) -> list[tuple[float, float]]:
        return [(0.0, 0.0)] * len(requests)

    def release(self, sequence: Sequence) -> None:
        pass


class Knowing(FakeDrafter):
    """Proposes at most `length` of the tokens that follow in a known sequence."""

    def __init__(self, known: SequenceOf[int], length: int = 6) -> None:
        self._known, self._length = known, length

    def answer(self, request: DraftRequest) -> Proposal:
        at = len(request.sequence.tokens)
        tokens = list(self._known[at : at + min(request.at_most, self._length)])
        return Proposal(tokens, [0.9] * len(tokens))


@dataclass(slots=True)
class Cells:
    """The positions of one sequence."""

    tokens: list[int] = field(default_factory=list)
    writers: list["FakeModel"] = field(default_factory=list)  # which model wrote each


class FakeModel:
    """The part of a Model that a Level uses."""

    max_positions = 1 << 20
    max_rows = 512

    def __init__(
        self, rule: Rule, vocabulary: int = 64, *, exact: "FakeModel | None" = None
    ) -> None:
        self.rule = rule
        self.vocabulary = vocabulary
        self.precision = Precision.FP4 if exact else Precision.EXACT
        self.forwards: list[list[int]] = []  # rows of each sequence
        self._exact = exact
        self._slots = exact._slots if exact else count()
        self._cells: dict[int, Cells] = exact._cells if exact else {}
        self._contexts: dict[int, Context] = {}
        self._rows: list[list[int]] = []

    def as_draft(self, rule: Rule) -> "FakeModel":
        return FakeModel(rule, self.vocabulary, exact=self)

    @property
    def cached_sequences(self) -> int:
        return len(self._contexts) + len(self._cells)

    @property
    def logit_rows(self) -> int:
        """Of the last forward."""
        return len(self._rows)

    def context(self, sequence: Sequence) -> Context:
        if sequence.key not in self._contexts:
            exact = None if self._exact is None else self._exact.context(sequence)
            slot = next(self._slots) if exact is None else exact.slot
            self._contexts[sequence.key] = Context(slot, exact)
            self._cells.setdefault(slot, Cells())
        return self._contexts[sequence.key]

    def release(self, sequence: Sequence) -> None:
        context = self._contexts.pop(sequence.key, None)
        if self._exact is not None:
            self._exact.release(sequence)
        elif context is not None:
            del self._cells[context.slot]

    def forward(self, batch: SequenceOf[Rows]) -> None:
        self._rows = []
        self.forwards.append([len(rows.tokens) for rows in batch])
        for rows in batch:
            cells, tokens = self._cells[rows.context.slot], rows.tokens
            start, end = rows.start, rows.start + len(tokens)
            assert start <= len(cells.tokens), "a gap in the cache"
            writers = cells.writers[:start]
            assert self._exact is not None or writers.count(self) == start, "a draft's leftovers"
            cells.tokens[start:end] = tokens
            cells.writers[start:end] = [self] * len(tokens)
            self._rows += [cells.tokens[: end - i] for i in range(rows.logits - 1, -1, -1)]
            rows.context.record(start, tokens)

    def verify(
        self, row: int, proposal: SequenceOf[int], sequence: Sequence
    ) -> tuple[list[int], list[float]]:
        masks = sequence.masks(proposal)
        tokens: list[int] = []
        before = sequence.tokens[:]
        for i in range(len(proposal) + 1):
            expected = [*before, *proposal[:i]]
            assert self._rows[row + i] == expected, "the cache holds other tokens"
            token = self._next(tuple(expected), None if masks is None else masks[i])
            if token is None:
                break
            tokens.append(token)
            if i < len(proposal) and token != proposal[i]:
                break
        return tokens, [0.9] * len(tokens)

    def _next(self, prefix: tuple[int, ...], mask: np.ndarray | None) -> int | None:
        """The rule's token, or else the next one that the mask allows."""
        wanted = self.rule(prefix)
        for token in (*range(wanted, self.vocabulary), *range(wanted)):
            if mask is None or mask[token // 32] >> (token % 32) & 1:
                return token
        return None
