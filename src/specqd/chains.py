"""Words on a command line -> a chain of levels. Knows models and levels; knows no requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from specqd.drafters import Drafter, NoDraft
from specqd.errors import RequestError
from specqd.level import Level
from specqd.model import Model, Reading

_AUTO = ("mxfp4",)
_LONGEST = 64


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """One level of a chain: what drafts, and how many tokens (None: as many as pay)."""

    name: str
    length: int | None = None

    @classmethod
    def parse(cls, text: str) -> "DraftSpec":
        """`mxfp4` or `mxfp4:k=8`. Raises RequestError for anything else."""
        name, *options = text.split(":")
        if name != "mxfp4":
            raise RequestError(
                f"--draft {text}: unknown draft {name!r}; known: auto, none, mxfp4, mxfp4:k=N"
            )
        length = None
        for option in options:
            key, _, value = option.partition("=")
            if key != "k" or not value.isdecimal() or not 1 <= int(value) <= _LONGEST:
                raise RequestError(
                    f"--draft {text}: {option!r} is not understood; write k=N, with N <= {_LONGEST}"
                )
            length = int(value)
        return cls(name, length)


def parse_chain(
    drafts: str | Sequence[str] | None, reading: Reading = Reading.EXACT
) -> tuple[DraftSpec, ...]:
    """`auto`, `none` (or None), or levels from the outermost in, for a target of that reading.

    Raises RequestError for what is not understood or cannot draft.
    """
    words = [drafts or "none"] if drafts is None or isinstance(drafts, str) else list(drafts)
    if "none" in words or "auto" in words:
        if len(words) > 1:
            raise RequestError("--draft none and --draft auto stand alone; leave the others out")
        is_auto = words == ["auto"] and reading is Reading.EXACT
        words = list(_AUTO) if is_auto else []
    if words and reading is Reading.DRAFT:
        raise RequestError(
            f"--draft {words[0]}: with --reading draft the MXFP4 reading speaks itself; "
            "use --draft none"
        )
    if len(words) > 1:
        raise RequestError(
            f"--draft {words[1]}: the one MXFP4 reading of a model drafts already; name it once"
        )
    return tuple(DraftSpec.parse(word) for word in words)


def build_chain(target: Model, specs: Sequence[DraftSpec]) -> Level:
    """The target's level over those that draft for it."""
    drafter: Drafter = NoDraft()
    for spec in reversed(specs):
        drafter = Level(target.as_draft(), drafter, length=spec.length)
    return Level(target, drafter)
