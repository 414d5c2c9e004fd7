"""Who proposes tokens. A drafter can be right or wrong, never harmful: a verifier checks it."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from specqd.economics import RowCosts
from specqd.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Ask:
    """A wish for tokens that continue a sequence, and what they are worth to whoever asks."""

    sequence: Sequence
    at_most: int
    gain: float = inf  # seconds that one more accepted token saves; inf: whatever it costs
    row_seconds: float = 0.0  # that each proposed token adds to verification
    confidence: float = 1.0  # the asker's in the token before, a hint about the next
    costs: RowCosts | None = None  # the asker's forwards, where known: rows are not equally dear
    rows: int = 1  # that it forwards anyway

    def added_seconds(self, count: int) -> float:
        """What a proposal of so many tokens adds to verification."""
        if self.costs is None:
            return count * self.row_seconds
        return self.costs.seconds(self.rows + count) - self.costs.seconds(self.rows)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that may come next, each with the probability that its proposer gave it."""

    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    row: int = 0  # of the proposer's last logits, for the first token; the others follow
    depths: list[int] = field(default_factory=list)  # by token: levels below its proposer

    def __post_init__(self) -> None:
        self.depths.extend([0] * (len(self.tokens) - len(self.depths)))

    def depths_of(self, verified: SequenceOf[int]) -> list[int]:
        """Of the tokens that a verifier makes of this proposal, as seen from there: what it
        confirms came from below, what follows is its own."""
        confirmed = [
            depth + 1
            for depth, ours, theirs in zip(self.depths, self.tokens, verified, strict=False)
            if ours == theirs
        ]
        return confirmed + [0] * (len(verified) - len(confirmed))


class Drafter(Protocol):
    def propose(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        """One proposal per ask, of at most `at_most` tokens; none is a fine answer."""
        ...

    def observe(self, ask: Ask, proposal: Proposal, accepted: int) -> None:
        """Learns that verification confirmed the first `accepted` tokens of its proposal."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended."""
        ...

    @property
    def levels(self) -> tuple["Drafter", ...]:
        """This drafter and those below it, outermost first."""
        ...


class NoDraft:
    """Plain decoding: nothing is ever proposed."""

    levels: tuple[Drafter, ...] = ()

    def propose(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        return [Proposal() for _ in asks]

    def observe(self, ask: Ask, proposal: Proposal, accepted: int) -> None:
        pass

    def release(self, sequence: Sequence) -> None:
        pass
