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
        accepted tokens and proposal[:i]. A proposal that breaks the rules is cut by its own row;
        the rows after that may allow anything."""
        ...

    def accept(self, token: int) -> None:
        """Takes a token for good: it is the last of the accepted ones from now on."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of one request's sample. While a level drafts, its guesses stand at the end."""

    tokens: list[int]
    picker: _native.Picker
    prompt_length: int
    is_sampled: bool = False  # with noise: temperature > 0
    needs_history: bool = False  # penalties look at all tokens
    grammar: Grammar | None = None
    stop_ids: frozenset[int] = frozenset()
    cache_salt: int = 0  # keys and values are shared with sequences of the same one
    key: int = field(default_factory=lambda: next(_keys))
    num_guesses: int = 0

    @property
    def num_accepted(self) -> int:
        """Of the tokens, those that the outermost level confirmed: they stay."""
        return len(self.tokens) - self.num_guesses

    def guess(self, tokens: SequenceOf[int]) -> None:
        self.tokens.extend(tokens)
        self.num_guesses += len(tokens)

    def forget_guesses(self, count: int) -> None:
        """Takes the last `count` guesses back."""
        del self.tokens[len(self.tokens) - count :]
        self.num_guesses -= count

    def history(self, proposal: SequenceOf[int]) -> NDArray[np.int32] | None:
        """Tokens so far and then the proposal, where picking needs them."""
        if not self.needs_history:
            return None
        return np.asarray([*self.tokens, *proposal], dtype=np.int32)

    def masks(self, proposal: SequenceOf[int]) -> NDArray[np.uint32] | None:
        """What the grammar allows after each of the proposal's tokens, and before the first."""
        if self.grammar is None:
            return None
        guesses = self.tokens[self.num_accepted :]
        return self.grammar.masks([*guesses, *proposal])[len(guesses) :]
