"""The protocol of a worker process and its parent: one JSON object per line, both ways."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Run:
    """One completion. `decode_s` starts at the first new token; `wall_s` is the whole call."""

    tokens: list[int]
    prefill_s: float
    decode_s: float
    wall_s: float
    drafted: int | None = None
    accepted: int | None = None

    @property
    def decode_speed(self) -> float:
        """Tokens/s after the first token."""
        return (len(self.tokens) - 1) / self.decode_s

    @property
    def wall_speed(self) -> float:
        """Tokens/s, prefill included."""
        return len(self.tokens) / self.wall_s


REPORTED = ("version", "notes", "process", "stored_bytes", "bytes_read")


def weight_files(model: Path) -> int:
    """Bytes of the safetensors files of a directory."""
    return sum(file.stat().st_size for file in model.glob("*.safetensors"))


class Peer(Protocol):
    """An engine with its model loaded."""

    version: str
    notes: str  # its settings, as the engine reports them
    process: int  # the id of the process that holds the weights
    stored_bytes: int  # of the file of weights
    bytes_read: dict[str, int]  # by arm, per token, if it differs from the format's size

    def generate(self, arm: str, prompt: Sequence[int], new_tokens: int) -> Run:
        """Greedy completion of token ids."""
        ...
