"""Who proposes tokens. A drafter can be right or wrong, never harmful: a verifier checks it."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from specqd.economics import RowCosts
from specqd.sequence import Sequence


@dataclass(slots=True)  # not frozen, as below: they are made at every round, and that costs
class Ask:
    """A wish for tokens that continue a sequence, and what they are worth to whoever asks."""

    sequence: Sequence
    at_most: int
    gain: float = inf  # seconds that one more accepted token saves; inf: whatever it costs
    confidence: float = 1.0  # the asker's in the token before, a hint about the next
    costs: RowCosts | None = None  # of the asker's forwards; None: its rows cost nothing
    rows: int = 1  # that it forwards anyway
    sharing: int = 1  # sequences whose proposals it forwards together, this one's among them

    def added_seconds(self, count: float) -> float:
        """What a proposal of so many tokens adds to verification, if the others are as long."""
        if self.costs is None or count <= 0:
            return 0.0
        rows, sharing = self.rows, self.sharing
        all_rows = self.costs.seconds(rows + sharing * count)
        return (all_rows - self.costs.seconds(rows)) / sharing


@dataclass(slots=True)
class Proposal:
    """Tokens that may come next, each with the probability that its proposer gave it."""

    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    row: int = 0  # of the proposer's last logits, for the first token; the others follow
    depths: list[int] = field(default_factory=list)  # by token: levels below its proposer; or none
    # What a level passed on from its own drafter without a look, each with its first token's place.
    passed: list[tuple[int, "Proposal"]] = field(default_factory=list)
    tried: float = inf  # the place from which on it was made to learn whether that pays

    def depths_of(self, verified: SequenceOf[int]) -> list[int]:
        """Of the tokens that a verifier makes of this proposal, as seen from there: what it
        confirms came from below, what follows is its own."""
        if not self.tokens:
            return [0] * len(verified)
        below = self.depths or [0] * len(self.tokens)
        confirmed = [
            depth + 1
            for depth, ours, theirs in zip(below, self.tokens, verified, strict=False)
            if ours == theirs
        ]
        return confirmed + [0] * (len(verified) - len(confirmed))

    def passed_on(self) -> "Proposal":
        """The same, as said by a level above that did not look at it."""
        depths = [depth + 1 for depth in self.depths or [0] * len(self.tokens)]
        tokens, confidences = self.tokens.copy(), self.confidences.copy()
        return Proposal(tokens, confidences, depths=depths, passed=[(0, self)])

    def cut(self, length: int) -> None:
        """Keeps the first tokens only."""
        del self.tokens[length:], self.confidences[length:], self.depths[length:]
        self.passed = [(start, part) for start, part in self.passed if start < length]


NOTHING = Proposal()  # proposed, wherever that is so: never changed


class Drafter(Protocol):
    is_free: bool  # proposals cost nothing to make: they can be weighed before they are used

    def propose(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        """One proposal per ask, of at most `at_most` tokens; none is a fine answer."""
        ...

    def observe(self, ask: Ask, proposal: Proposal, accepted: int) -> None:
        """Learns that verification confirmed the first `accepted` tokens of its proposal."""
        ...

    def chances(self, ask: Ask, proposal: Proposal) -> list[float]:
        """How likely each token of its proposal is right, given that those before it are."""
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

    is_free = True
    levels: tuple[Drafter, ...] = ()

    def propose(self, asks: SequenceOf[Ask]) -> list[Proposal]:
        return [NOTHING] * len(asks)

    def observe(self, ask: Ask, proposal: Proposal, accepted: int) -> None:
        pass

    def chances(self, ask: Ask, proposal: Proposal) -> list[float]:
        return []

    def release(self, sequence: Sequence) -> None:
        pass
