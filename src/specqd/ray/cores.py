"""Gives each replica on a machine its own cores, from a single NUMA node if that has enough."""

import os
import re
from pathlib import Path

_NODES = Path("/sys/devices/system/node")


def take_cores(count: int, place: int) -> None:
    """Limits all threads of this process to `count` cores.

    place: the replica's number on this machine. While an update runs old and new replicas at the
    same time, they share cores.
    """
    chosen = chosen_cores(os.sched_getaffinity(0), count, place, _nodes())
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), chosen)


def chosen_cores(usable: set[int], count: int, place: int, nodes: list[set[int]]) -> set[int]:
    """Returns `count` cores. Different places get different cores until all are taken."""
    groups = [group for node in nodes for group in _groups(usable & node, count)]
    groups += _groups(usable.difference(*groups), count)  # cores left over on several nodes
    return groups[place % len(groups)] if groups else usable


def _groups(cores: set[int], count: int) -> list[set[int]]:
    ordered = sorted(cores)
    return [set(ordered[i : i + count]) for i in range(0, len(ordered) - count + 1, count)]


def _nodes() -> list[set[int]]:
    return [_cores(path.read_text()) for path in sorted(_NODES.glob("node[0-9]*/cpulist"))]


def _cores(text: str) -> set[int]:
    """Returns the numbers of a list such as `0-3,8`."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found
