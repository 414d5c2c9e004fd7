"""What a call did: time, tokens and each level's work, as differences of running counts.

Sees engines and levels as things that count; knows nothing of texts or of who shows the numbers.
"""

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from specqd._native import Level
from specqd.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class LevelReport:
    """What one model of a chain did: its forwards, and what it made of its drafter's proposals."""

    name: str
    forwards: int
    rows: int
    seconds: float  # within forwards
    pick_seconds: float  # picking and comparing, after them
    drafted: int  # tokens that its drafter proposed
    accepted: int
    drafted_at: tuple[int, ...]  # by place: the proposals that reached it
    accepted_at: tuple[int, ...]  # by place: those of which it was confirmed
    gigabytes: float  # of weights that its forwards read
    cache_gigabytes: float  # of keys and values, each once a forward
    asked: int  # times that it was asked for a proposal
    token_value_seconds: float  # what an accepted token was worth to whoever asked, over all times

    @classmethod
    def of(cls, level: Level) -> "LevelReport":
        """Since the level was made."""
        counted = level.stats
        return cls(
            level.name,
            counted.forwards,
            counted.rows,
            counted.seconds,
            counted.pick_seconds,
            counted.drafted,
            counted.accepted,
            tuple(counted.drafted_at),
            tuple(counted.accepted_at),
            level.model.bytes_read / 1e9,
            level.model.cache_bytes_read / 1e9,
            counted.asked,
            counted.token_value_seconds,
        )

    def since(self, before: "LevelReport") -> "LevelReport":
        return self._plus(before, -1)

    def __add__(self, other: "LevelReport") -> "LevelReport":
        return self._plus(other, 1)

    def _plus(self, other: "LevelReport", sign: int) -> "LevelReport":
        drafted_at = _places(self.drafted_at, other.drafted_at, sign)
        while drafted_at and not drafted_at[-1]:
            drafted_at.pop()
        accepted_at = _places(self.accepted_at, other.accepted_at, sign)
        return LevelReport(
            self.name,
            self.forwards + sign * other.forwards,
            self.rows + sign * other.rows,
            self.seconds + sign * other.seconds,
            self.pick_seconds + sign * other.pick_seconds,
            self.drafted + sign * other.drafted,
            self.accepted + sign * other.accepted,
            tuple(drafted_at),
            tuple(accepted_at[: len(drafted_at)]),
            self.gigabytes + sign * other.gigabytes,
            self.cache_gigabytes + sign * other.cache_gigabytes,
            self.asked + sign * other.asked,
            self.token_value_seconds + sign * other.token_value_seconds,
        )

    @property
    def acceptance(self) -> float | None:
        """The share of its drafter's tokens that it confirmed; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_at(self) -> tuple[float, ...]:
        """By place in the proposal: how often a token that was drafted there was confirmed."""
        return tuple(a / d for a, d in zip(self.accepted_at, self.drafted_at, strict=True))

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens that a proposal became, on average, the verifier's own next one included.

        Rounds in which nothing was proposed do not count; None where there were no others.
        """
        return 1.0 + self.accepted / self.drafted_at[0] if self.drafted_at else None

    @property
    def gain_s(self) -> float | None:
        """Seconds that one more accepted token of this draft saved, as the economics had it, on
        average; None where nobody asked."""
        return self.token_value_seconds / self.asked if self.asked else None

    @property
    def gb_per_s(self) -> float:
        return self.gigabytes / self.seconds if self.seconds else 0.0

    def described(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "name": self.name,
            "forwards": self.forwards,
            "rows": self.rows,
            "seconds": self.seconds,
            "pick_seconds": self.pick_seconds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance": self.acceptance,
            "acceptance_at": list(self.acceptance_at),
            "drafted_at": list(self.drafted_at),
            "mean_accepted_length": self.mean_accepted_length,
            "gain_s": self.gain_s,
            "gb_per_s": self.gb_per_s,
        }


@dataclass(frozen=True, slots=True)
class Stats:
    """Time and tokens of one call, over all of its prompts."""

    prompt_tokens: int
    new_tokens: int
    decoded_tokens: int  # of the new ones, those that decode_s made; prefill makes the first
    prefill_s: float
    decode_s: float
    levels: tuple[LevelReport, ...]  # the models of the chain, outermost first
    chain: tuple[str, ...]  # the names of all its members: a token's depth counts them

    @classmethod
    def of(cls, engine: Engine) -> "Stats":
        """Since the engine was made."""
        counted, members = engine.stats, engine.level.levels
        return cls(
            counted.prompt_tokens,
            counted.new_tokens,
            counted.decoded_tokens,
            counted.prefill_s,
            counted.decode_s,
            tuple(LevelReport.of(member) for member in members if isinstance(member, Level)),
            chain_of(engine.level),
        )

    def since(self, before: "Stats") -> "Stats":
        return Stats(
            self.prompt_tokens - before.prompt_tokens,
            self.new_tokens - before.new_tokens,
            self.decoded_tokens - before.decoded_tokens,
            self.prefill_s - before.prefill_s,
            self.decode_s - before.decode_s,
            tuple(now.since(then) for now, then in zip(self.levels, before.levels, strict=True)),
            self.chain,
        )

    @property
    def tokens_per_s(self) -> float:
        return self.decoded_tokens / self.decode_s if self.decode_s else 0.0

    def described(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "prefill_s": self.prefill_s,
            "decode_s": self.decode_s,
            "tokens_per_s": self.tokens_per_s,
            "levels": [level.described() for level in self.levels],
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """What the engine did since a request had its first tokens, up to those that come with this."""

    seconds: float
    levels: tuple[LevelReport, ...]
    is_shared: bool  # with other requests: the levels' work is theirs, too

    def described(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "seconds": self.seconds,
            "is_shared": self.is_shared,
            "levels": [
                {
                    "name": level.name,
                    "drafted": level.drafted,
                    "accepted": level.accepted,
                    "forwards": level.forwards,
                    "seconds": level.seconds,
                    "gigabytes": level.gigabytes,
                    "cache_gigabytes": level.cache_gigabytes,
                }
                for level in self.levels
            ],
        }


def chain_of(level: Level) -> tuple[str, ...]:
    """The names of a chain's members, outermost first."""
    return tuple(getattr(member, "name", type(member).__name__) for member in level.levels)


def _places(ours: tuple[int, ...], theirs: tuple[int, ...], sign: int) -> list[int]:
    return [a + sign * b for a, b in zip_longest(ours, theirs, fillvalue=0)]
