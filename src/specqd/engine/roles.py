"""Roles that a Python object may have in the core: drafter and grammar."""

from collections.abc import Sequence as SequenceOf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specqd._native import DraftRequest, Proposal, Sequence


class Drafter(Protocol):
    """Proposes tokens. A proposal can be right or wrong, never harmful: it is verified."""

    @property
    def levels(self) -> "tuple[Drafter, ...]":
        """This drafter and those below it, outermost first."""
        ...

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        """One proposal per request, of at most `at_most` tokens; none is a fine answer."""
        ...

    def observe(self, request: DraftRequest, proposal: Proposal, accepted: int) -> None:
        """Learns that verification confirmed the first `accepted` tokens of its proposal."""
        ...

    def values(self, requests: SequenceOf[DraftRequest]) -> list[float]:
        """Seconds that `propose` is expected to save each request, net of all costs. Only a choice
        between drafters asks."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Forgets a sequence that has ended."""
        ...


class Grammar(Protocol):
    """Which tokens may follow."""

    def masks(self, proposal: SequenceOf[int]) -> NDArray[np.uint32]:
        """Bit masks [len(proposal) + 1, ceil(vocab / 32)]: row i allows what may follow the
        accepted tokens and proposal[:i]. A proposal that breaks the rules is cut by its own row;
        the rows after that may allow anything."""
        ...

    def accept(self, token: int) -> None:
        """Takes a token for good: it is the last of the accepted ones from now on."""
        ...
