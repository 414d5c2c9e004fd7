"""What the core expects of drafters and grammars that are written in Python."""

from collections.abc import Sequence as SequenceOf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specqd._native import DraftRequest, Proposal, Sequence


class Drafter(Protocol):
    """Proposes tokens. A rejected proposal costs time but never changes the output."""

    @property
    def levels(self) -> "tuple[Drafter, ...]":
        """This drafter and those below it, outermost first."""
        ...

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        """One proposal per request, of at most `at_most` tokens. It may be empty."""
        ...

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        """Learns that verification accepted the first `accepted` tokens of its proposal."""
        ...

    def values(self, requests: SequenceOf[DraftRequest]) -> list[tuple[float, float]]:
        """For each request: the seconds that `propose` is expected to save, net of all costs, and
        the tokens of it that are expected to be accepted."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended, or was preempted and will begin again."""
        ...


class Grammar(Protocol):
    """Decides which tokens may follow."""

    def masks(self, proposal: SequenceOf[int]) -> NDArray[np.uint32]:
        """Bit masks [len(proposal) + 1, ceil(vocab / 32)]: row i allows what may follow the
        accepted tokens and proposal[:i]. If a token of the proposal breaks the rules, its own row
        rejects it; the rows after that are unspecified."""
        ...

    def accept(self, token: int) -> None:
        """Appends a token to the accepted ones, for good."""
        ...
