"""Runs in a guest of .ci/numa. Prints for each use of NUMA nodes a digest of logits, the shares of
planes and reads that are local, and what /proc/self/numa_maps says. Fails below 95 %.

The kernel's automatic balancing is on and made eager. Between two looks at the planes, one thread
reads all of them again and again, so that pages without a policy would move to it.
"""

import hashlib
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from specqd import _native
from specqd._native import testing
from specqd.model.model import Machine, Model
from specqd.model.numa import NUMA
from support.random_models import Shape, make_model

SHAPE = Shape(
    hidden=512, heads=4, kv_heads=4, head_dim=128, ffn=1024, layers=1, vocab=1024, context=512
)
PANEL = 16
TOKENS = 20
SECONDS = 2  # of reading by one thread
EAGER = {"scan_delay_ms": 50, "scan_period_min_ms": 50, "scan_period_max_ms": 100}
BALANCING = Path("/sys/kernel/debug/sched/numa_balancing")


def local_planes(model: Model) -> float:
    """The share of planes' bytes that lie on the node to which their panels belong."""
    local = total = 0
    nodes = model.machine.pool.nodes
    threads = sum(count for _, count in nodes)
    for packed in model.weights.matrices:
        panels = -(-packed.weight.rows // PANEL)
        for name, plane in packed.weight.planes().items():
            if name in ("scale_code", "patches"):  # patches are not equally many by panel
                continue
            before = 0
            for node, count in nodes:
                first, last = (
                    panels if part == threads else panels * part // threads // 2 * 2
                    for part in (before, before + count)
                )
                size = len(plane) // panels
                own = np.ascontiguousarray(plane[first * size : last * size]).view(np.uint8)
                found = testing.nodes_of(own)
                local += found.get(node, 0)
                total += sum(found.values())
                before += count
    return local / total


def anonymous() -> Counter[tuple[str, str]]:
    """Bytes of anonymous pages by policy and node, as /proc/self/numa_maps tells."""
    found: Counter[tuple[str, str]] = Counter()
    for line in Path("/proc/self/numa_maps").read_text().splitlines():
        _, policy, *rest = line.split()
        words = dict(word.split("=") for word in rest if "=" in word)
        for key, count in words.items():
            if "anon" in words and key[0] == "N" and key[1:].isdigit():
                found[policy, key] += int(count) * int(words["kernelpagesize_kB"]) << 10
    return found


def local_pages(pages: Counter[tuple[str, str]]) -> float:
    """The share of pages put on a node that lie there."""
    placed = {key: size for key, size in pages.items() if key[0].startswith("prefer:")}
    local = sum(size for (policy, node), size in placed.items() if policy[7:] == node[1:])
    return local / max(1, sum(placed.values()))


def read_all(model: Model) -> None:
    planes = [plane for each in model.weights.matrices for plane in each.weight.planes().values()]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for plane in planes:
            if isinstance(plane, np.ndarray):
                np.ascontiguousarray(plane).view(np.uint8)[::512].sum()


def show(mode: str, directory: Path, tokens: list[int], nodes: int) -> None:
    machine = Machine.choose(max(2, nodes), None, mode)
    model = Model.open(directory, machine=machine, cache_positions=256)
    testing.tally(machine.pool)
    logits = [model.logits(tokens), model.logits(tokens[:1]), model.as_draft().logits([5] * 4)]
    digest = hashlib.sha256(np.concatenate(logits).tobytes()).hexdigest()[:16]
    read = np.array(testing.tally(machine.pool), float)
    reads = np.trace(read) / read.sum() if read.any() else 1.0
    first = local_planes(model)
    read_all(model)
    then, pages = local_planes(model), anonymous()
    placed = local_pages(pages)
    shown = ", ".join(f"{policy} {node} {size >> 10} kB" for (policy, node), size in pages.items())
    print(
        f"{mode}: planes local {first:.3f}, then {then:.3f}, of numa_maps {placed:.3f}, reads "
        f"local {reads:.3f}, unbound {machine.pool.unbound}; digest {digest}\n  {shown}",
        flush=True,
    )
    assert reads >= 0.95
    if nodes > 1:
        assert placed >= 0.95
    if mode != "replicate":  # whose first copy lies on the first node
        assert min(first, then) >= 0.95


def main() -> None:
    nodes = _native.topology().nodes
    print(f"nodes {[(node.id, sorted(node.cpus), node.memory_bytes >> 20) for node in nodes]}")
    for name, value in EAGER.items():
        if (file := BALANCING / name).exists():
            file.write_text(str(value))
    directory = make_model(Path("/tmp/model"), SHAPE, 1)
    tokens = np.random.default_rng(1).integers(0, 256, TOKENS).tolist()
    warnings.simplefilter("ignore")
    for mode in NUMA:
        show(mode, directory, tokens, len(nodes))


main()
