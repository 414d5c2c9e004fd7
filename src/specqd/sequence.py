"""One text being written: its tokens so far, and how its next one is picked. Knows no models."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specqd import _native

_keys = count()


class Grammar(Protocol):
    """Which tokens may follow."""

    def masks(self, proposal: SequenceOf[int]) -> NDArray[np.uint32]:
        """Bit masks [len(proposal) + 1, ceil(vocab / 32)]: row i allows what may follow the
        accepted tokens and proposal[:i]. A proposal that breaks the rules is cut by its own row."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of one request's sample. While a level drafts, its guesses stand at the end."""

    tokens: list[int]
    picker: _native.Picker
    prompt_length: int
    needs_history: bool = False  # penalties look at all tokens
    grammar: Grammar | None = None
    stop_ids: frozenset[int] = frozenset()
    key: int = field(default_factory=lambda: next(_keys))

    def history(self, proposal: SequenceOf[int]) -> NDArray[np.int32] | None:
        """Tokens so far and then the proposal, where picking needs them."""
        if not self.needs_history:
            return None
        return np.asarray([*self.tokens, *proposal], dtype=np.int32)
