"""Time, tokens and each level's work during one call, as differences of running counts.

Uses engines and levels only as counters. Knows nothing of text or of where numbers are shown.
"""

from dataclasses import asdict, dataclass, fields, replace
from itertools import zip_longest
from typing import Any, TypeVar

from specqd._native import LONGEST_PROPOSAL, BlockDrafter, Level, NoDraft
from specqd.engine.engine import Engine

T = TypeVar("T")

# Properties as JSON names them.
_LEVEL: tuple[str, ...] = ("name", "forwards", "rows", "seconds", "pick_seconds", "drafted")
_LEVEL += ("accepted", "acceptance", "acceptance_at", "drafted_at", "mean_accepted_length")
_STATS = ("prompt_tokens", "read_tokens", "new_tokens", "prefill_s", "decode_s", "tokens_per_s")
_PROGRESS: tuple[str, ...] = ("name", "drafted", "accepted", "forwards", "seconds", "gigabytes")
_PROGRESS += ("cache_gigabytes", "whole_cache_gigabytes")


@dataclass(frozen=True, slots=True)
class LevelReport:
    """The work of one model of a chain: its forwards, and how it verified its drafter's proposals.

    The fields after the first four are those of the core's LevelStats.
    """

    name: str
    gigabytes: float  # of weights that its forwards read
    cache_gigabytes: float  # of keys and values, each once per forward
    whole_cache_gigabytes: float  # the same, if drafts read their whole context
    forwards: int
    rows: int
    seconds: float  # within forwards
    pick_seconds: float  # sampling and comparing, after the forwards
    drafted: int  # tokens that its drafter proposed
    accepted: int
    drafted_at: tuple[int, ...]  # by place: proposals that reached this place
    accepted_at: tuple[int, ...]  # by place: proposals that were accepted up to this place
    asked: int  # times that a proposal was requested from it
    token_value_seconds: float  # value of one more accepted token, summed over these times

    @classmethod
    def of(cls, level: Level | BlockDrafter) -> "LevelReport":
        """Counts since the level was made."""
        counted = level.stats
        names = [each.name for each in fields(cls)[4:]]
        counts: dict[str, Any] = {name: getattr(counted, name) for name in names}
        counts |= {at: tuple(counts[at]) for at in ("drafted_at", "accepted_at")}
        return cls(
            level.name,
            counted.bytes_read / 1e9,
            counted.cache_bytes_read / 1e9,
            counted.whole_cache_bytes / 1e9,
            **counts,
        )

    def since(self, before: "LevelReport") -> "LevelReport":
        return self._plus(before, -1)

    def __add__(self, other: "LevelReport") -> "LevelReport":
        return self._plus(other, 1)

    def _plus(self, other: "LevelReport", sign: int) -> "LevelReport":
        total = _plus_fields(self, other, sign)
        places = sum(map(bool, total.drafted_at))  # without the places of longer, earlier proposals
        drafted_at, accepted_at = total.drafted_at[:places], total.accepted_at[:places]
        return replace(total, drafted_at=drafted_at, accepted_at=accepted_at)

    @property
    def proposals(self) -> int:
        """Proposals of its drafter that are not empty."""
        return self.drafted_at[0] if self.drafted_at else 0

    @property
    def acceptance(self) -> float | None:
        """The acceptance rate: accepted over drafted tokens; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_at(self) -> tuple[float, ...]:
        """The acceptance rate of the tokens at each place of the proposal."""
        return tuple(a / d for a, d in zip(self.accepted_at, self.drafted_at, strict=True))

    @property
    def mean_accepted_length(self) -> float | None:
        """Mean tokens that a round with a proposal made, the verifier's own next one included.

        Rounds without a proposal do not count; None if there were no others.
        """
        return 1.0 + self.accepted / self.proposals if self.proposals else None

    @property
    def token_value_s(self) -> float | None:
        """Mean seconds that one more accepted token of this draft saves, by the estimate of the
        draft policy; None if no proposal was requested."""
        return self.token_value_seconds / self.asked if self.asked else None

    @property
    def cache_share(self) -> float | None:
        """The share of the keys and values of their contexts that its forwards read; None if they
        read none. It is below 1 for drafts of long contexts."""
        whole = self.whole_cache_gigabytes
        return self.cache_gigabytes / whole if whole else None

    @property
    def gb_per_s(self) -> float:
        return self.gigabytes / self.seconds if self.seconds else 0.0

    def described(self) -> dict[str, Any]:
        """The members of its JSON object."""
        rest = {
            "gain_s": self.token_value_s,
            "gb_per_s": self.gb_per_s,
            "cache_share": self.cache_share,
        }
        return _named(self, _LEVEL) | rest


@dataclass(frozen=True, slots=True, repr=False)
class Stats:
    """Time and tokens of one call, over all of its prompts. `EngineStats` describes the counts."""

    prompt_tokens: int
    read_tokens: int
    new_tokens: int
    decoded_tokens: int
    prefill_s: float
    decode_s: float
    levels: tuple[LevelReport, ...]  # the models of the chain, outermost first
    chain: tuple[str, ...]  # the names of all its members; a token's depth is an index into it

    @classmethod
    def of(cls, engine: Engine) -> "Stats":
        """Counts since the engine was made."""
        counts: dict[str, Any] = asdict(engine.stats)
        reports = tuple(LevelReport.of(level) for level in models_of(engine.level))
        return cls(**counts, levels=reports, chain=chain_of(engine.level))

    def __repr__(self) -> str:
        speed = f"{self.tokens_per_s:.1f} tokens/s"
        return f"Stats({self.new_tokens} new tokens, {speed}, {' > '.join(self.chain)})"

    def since(self, before: "Stats") -> "Stats":
        return _plus_fields(self, before, -1)

    def __add__(self, other: "Stats") -> "Stats":
        """The counts of two engines with the same chain, together."""
        return _plus_fields(self, other, 1)

    @property
    def tokens_per_s(self) -> float:
        return self.decoded_tokens / self.decode_s if self.decode_s else 0.0

    def described(self) -> dict[str, Any]:
        """The members of its JSON object."""
        return _named(self, _STATS) | {"levels": [level.described() for level in self.levels]}


@dataclass(frozen=True, slots=True)
class Progress:
    """The engine's work from a request's first tokens up to the tokens that come with it."""

    seconds: float
    levels: tuple[LevelReport, ...]
    is_shared: bool  # other requests shared the levels' work

    def described(self) -> dict[str, Any]:
        """The members of its JSON object."""
        levels = [_named(level, _PROGRESS) for level in self.levels]
        return {"seconds": self.seconds, "is_shared": self.is_shared, "levels": levels}


def models_of(level: Level) -> list[Level | BlockDrafter]:
    """The members of a chain that run forwards of a model, outermost first."""
    return [each for each in level.levels if isinstance(each, (Level, BlockDrafter))]


def chain_of(level: Level) -> tuple[str, ...]:
    """The names of a chain's members, outermost first."""
    return tuple(getattr(member, "name", type(member).__name__) for member in level.levels)


def longest_proposal(level: Level) -> int:
    """Tokens of the longest proposal that the level may verify; 0 if nothing drafts."""
    if isinstance(level.drafter, NoDraft):
        return 0
    return getattr(level.drafter, "length", None) or LONGEST_PROPOSAL


def _named(report: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(report, name) for name in names}


def _plus_fields(ours: T, theirs: T, sign: int) -> T:
    """A report whose numbers are `ours + sign * theirs`; its names are ours."""
    names = [each.name for each in fields(ours)]  # type: ignore[arg-type]
    return type(ours)(*(_plus(getattr(ours, n), getattr(theirs, n), sign) for n in names))


def _plus(ours: Any, theirs: Any, sign: int) -> Any:
    if isinstance(ours, str):
        return ours
    if isinstance(ours, LevelReport):
        return ours.since(theirs) if sign < 0 else ours + theirs
    if isinstance(ours, tuple):
        return tuple(_plus(a, b, sign) for a, b in zip_longest(ours, theirs, fillvalue=0))
    return ours + sign * theirs
