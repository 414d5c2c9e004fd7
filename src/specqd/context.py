"""What a cache holds of a sequence, and rows to forward. Knows positions; knows no weights."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass


class Context:
    """What a model's cache holds of one sequence: keys and values of its first tokens.

    A draft reading's context begins where the exact one ends, and ends with the proposal: its
    provisional keys and values are overwritten by verification.
    """

    __slots__ = ("_exact", "_offset", "_settled", "_tokens", "slot")

    def __init__(self, slot: int, exact: "Context | None" = None) -> None:
        self.slot = slot
        self._exact = exact
        self._offset = 0  # positions before _tokens, which the exact context answers for
        self._tokens: list[int] = []
        self._settled = 0  # of _tokens, those that equal accepted ones

    @property
    def length(self) -> int:
        """Positions held."""
        return self._offset + len(self._tokens)

    def begin(self, length: int) -> None:
        """Starts a proposal after `length` tokens.

        It forwards the last of them first, so the exact context keeps only what comes before. A
        reading whose exact one was never forwarded goes on from its own last proposal.
        """
        if self._exact is not None and self._exact.length > 0:
            self._offset = min(self._exact.length, length - 1)
            self._exact.record(self._offset, [])
            self._tokens.clear()
            self._settled = 0

    def match(self, tokens: SequenceOf[int], accepted: int) -> int:
        """Forgets what is not a prefix of `tokens`; returns the positions left.

        The first `accepted` tokens will not change any more, and are not compared again.
        """
        offset, held = self._offset, self._tokens
        limit = min(len(held), len(tokens) - offset)
        at = min(self._settled, limit)
        while at < limit and held[at] == tokens[offset + at]:
            at += 1
        del held[at:]
        self._settled = max(0, min(at, accepted - offset))
        return offset + at

    def record(self, start: int, tokens: SequenceOf[int]) -> None:
        """The cache now holds `tokens` from position `start` on, and nothing after them."""
        del self._tokens[start - self._offset :]
        self._tokens.extend(tokens)
        self._settled = min(self._settled, start - self._offset)


@dataclass(slots=True)  # not frozen: made at every round, and that costs
class Rows:
    """Tokens of one sequence to forward from position `start`; logits of the last `logits`."""

    context: Context
    start: int
    tokens: list[int]
    logits: int
