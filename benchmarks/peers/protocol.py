"""What a worker process and its master say to each other: one JSON object a line, either way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Run:
    """One completion. `decode_s` begins with the first new token; `wall_s` is all of the call."""

    tokens: list[int]
    prefill_s: float
    decode_s: float
    wall_s: float
    drafted: int | None = None
    accepted: int | None = None

    @property
    def decode_speed(self) -> float:
        """Tokens a second after the first."""
        return (len(self.tokens) - 1) / self.decode_s

    @property
    def wall_speed(self) -> float:
        """Tokens a second, prefill included."""
        return len(self.tokens) / self.wall_s


class Peer(Protocol):
    """An engine with its model loaded."""

    version: str
    notes: str  # how it computes, as it says itself
    bytes_read: dict[str, int]  # by arm, for a token; where it is not the format's size

    def generate(self, arm: str, prompt: Sequence[int], new_tokens: int) -> Run:
        """Greedy completion of token ids."""
        ...
