"""`specqd models --for`: which models fit a machine's memory, and how fast they can be there."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from specqd.cli.terminal import aligned
from specqd.errors import RequestError

if TYPE_CHECKING:
    from specqd.hub.catalogue import Entry

HERE = "here"
_SYSTEM_GB = 1.5  # that the system and other programs take of a machine's memory
_READ = 512 * 10**6  # bytes that are read to measure the bandwidth


class MemorySize(click.ParamType[str]):
    """The memory of a machine in GB: 16g, or `here`."""

    name = "memory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if str(value).lower() != HERE and not re.fullmatch(r"\d+[gG]", str(value)):
            self.fail(f"{value!r} is not a size such as 16g, and not {HERE}.", param, ctx)
        return str(value).lower()


@dataclass(frozen=True, slots=True)
class Target:
    """A machine: GB that models may take, and the bandwidth of its memory in GB/s."""

    free_gb: float
    bandwidth_gb_s: float
    is_measured: bool

    @classmethod
    def of(cls, size: str, bandwidth: float | None) -> "Target":
        """The machine of that size. Without a bandwidth, that of this machine is measured."""
        from specqd import _native

        if size == HERE:
            free = _native.usable_memory() / 1e9
            if free < 0:
                raise RequestError("--for here: the free memory is unknown; give a size, as 16g")
        else:
            free = float(size.removesuffix("g")) - _SYSTEM_GB
        return cls(free, bandwidth or _measured(), bandwidth is None)


def _measured() -> float:
    from specqd.model.bandwidth import bandwidth_at
    from specqd.model.model import Machine

    return bandwidth_at(Machine.choose(), _READ)


def fitting_lines(target: Target, tokens: int) -> list[str]:
    """The models that fit, the largest first, and what their speeds mean."""
    from specqd.hub.catalogue import ACCEPTANCE, CATALOGUE, fitting

    found = list(fitting(target.free_gb, tokens))
    if not found:
        least = min(each.needed_gb(tokens) for each in CATALOGUE if not each.embeds)
        return [f"no known model fits into {target.free_gb:.1f} GB; the smallest needs {least:.1f}"]
    head = ["model", "weights", "memory GB", "plain tok/s", "drafted tok/s", "drafts"]
    rows = [head, *(_row(each, target.bandwidth_gb_s, tokens) for each in found)]
    origin = "measured here" if target.is_measured else "given"
    return [
        f"Models that fit into {target.free_gb:.1f} GB with {tokens:,} tokens, the largest first:",
        "",
        *aligned(rows),
        "",
        f"Speeds: at most so many tokens/s of one sequence at {target.bandwidth_gb_s:.1f} GB/s "
        f"({origin}); with drafts, if {ACCEPTANCE:.0%} of them are accepted.",
    ]


def described(target: Target, tokens: int) -> dict[str, Any]:
    """The same as the member `for` of the JSON object."""
    from specqd.hub.catalogue import fitting

    speed = target.bandwidth_gb_s
    return {
        "free_gb": target.free_gb,
        "bandwidth_gb_per_s": speed,
        "tokens": tokens,
        "models": [
            {
                "name": each.name,
                "needed_gb": each.needed_gb(tokens),
                "plain_tokens_per_s": each.speed(speed, drafts=False),
                "drafted_tokens_per_s": each.speed(speed, drafts=True),
            }
            for each in fitting(target.free_gb, tokens)
        ],
    }


def drafts_of(entry: "Entry") -> list[str]:
    """What drafts for a model."""
    from specqd.hub import SHORT_NAMES
    from specqd.siblings import sibling_of

    names = {repository: name for name, repository in SHORT_NAMES.items()}
    small = sibling_of(entry.repository)
    return [
        *(["4 bits"] if entry.has_own_draft else ["n-grams"]),
        *(["mtp"] if entry.has_mtp else []),
        *([names.get(small, small)] if small is not None else []),
        *([f"head {entry.head}"] if entry.head is not None else []),
    ]


def _row(entry: "Entry", bandwidth: float, tokens: int) -> list[str]:
    plain, drafted = (entry.speed(bandwidth, drafts=drafts) for drafts in (False, True))
    drafts = ", ".join(drafts_of(entry))
    needed = f"{entry.needed_gb(tokens):.1f}"
    return [entry.name, f"{entry.weights:.2f} G", needed, f"{plain:.1f}", f"{drafted:.1f}", drafts]
