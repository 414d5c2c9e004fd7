"""Chooses the NUMA nodes of threads, and reports which nodes hold packed weights."""

import sys
import warnings
from collections import Counter
from collections.abc import Iterable

from specqd import _native
from specqd.errors import MachineError, SpecqdWarning, shown

NUMA = ("auto", "one", "spread", "replicate")

NodeThreads = tuple[int, int, set[int]]  # a node's id, its threads, and their CPUs


def make_pool(
    threads: int | None, numa: str = "auto", topology: _native.Topology | None = None
) -> _native.Pool:
    """A pool of `threads` threads, by default one per usable core. Raises MachineError.

    There is at most one thread per usable core; a warning says so if more are requested. More would
    be slower, because each part of a forward waits for the last thread.

    `numa` is one of:
    one: threads run on one node only.
    spread: weights are divided among the nodes.
    replicate: each node has a copy of all weights.
    auto: spread if there are several nodes, but mapped files stay where they are.
    """
    if numa not in NUMA:
        raise MachineError(f"not known; choose one of {', '.join(NUMA)}", "numa", shown(numa))
    if threads is not None and not 1 <= threads <= 1024:
        raise MachineError("choose a number from 1 to 1024", "threads", str(threads))
    topology = topology or _native.topology()
    usable = _native.usable_threads()
    if threads is not None and threads > usable:
        problem = f"there are only {usable} usable cores, so {usable} threads run"
        warnings.warn(SpecqdWarning(problem, "threads", str(threads)), stacklevel=2)
        threads = usable
    if len(topology.nodes) == 1:
        if numa in ("spread", "replicate"):
            has_nodes = sys.platform == "linux"
            known = "there is one usable NUMA node" if has_nodes else "NUMA nodes need Linux"
            problem = f"{known}, so it changes nothing"
            warnings.warn(SpecqdWarning(problem, "numa", numa), stacklevel=2)
        return _native.Pool(threads or usable)
    if numa == "one":
        node = max(topology.nodes, key=lambda each: (each.cores, each.free_bytes))
        return _native.Pool([(node.id, threads or min(usable, node.cores), node.cpus)])
    return _native.Pool(
        divide(threads or usable, topology.nodes),
        replicates=numa == "replicate",
        copies_mapped=numa != "auto",
    )


def divide(threads: int, nodes: Iterable[_native.NumaNode]) -> list[NodeThreads]:
    """Divides threads among nodes in proportion to their cores; leaves out nodes without any."""
    nodes = list(nodes)
    cores = sum(node.cores for node in nodes)
    found, before = [], 0
    for node in nodes:
        after = before + node.cores
        count = threads * after // cores - threads * before // cores
        if count:
            found.append((node.id, count, node.cpus))
        before = after
    return found


def bytes_by_node(weights: Iterable[_native.PackedWeight]) -> dict[int, int]:
    """Bytes of planes by node; -1: not in memory. Empty if the system does not say."""
    found: Counter[int] = Counter()
    for weight in weights:
        for nodes in weight.plane_nodes().values():
            found.update(nodes)
    return dict(sorted(found.items()))
