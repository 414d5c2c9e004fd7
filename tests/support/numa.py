"""Injected NUMA topologies, and pools of threads on their nodes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from specqd import _native


def write_sysfs(
    root: Path,
    nodes: Mapping[int, tuple[str, int]],
    *,
    online: str | None = None,
    distances: Mapping[int, str] | None = None,
    siblings: Mapping[int, str] | None = None,
) -> str:
    """Writes files like those of /sys/devices/system. A node has a list of CPUs and kilobytes."""
    for node, (cpus, kilobytes) in nodes.items():
        directory = root / "node" / f"node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(cpus + "\n")
        lines = [f"Node {node} MemTotal: {kilobytes} kB", f"Node {node} MemFree: 5 kB"]
        (directory / "meminfo").write_text("\n".join(lines) + "\n")
        (directory / "distance").write_text((distances or {}).get(node, "") + "\n")
    (root / "node").mkdir(parents=True, exist_ok=True)
    listed = ",".join(map(str, sorted(nodes))) if online is None else online
    (root / "node" / "online").write_text(listed + "\n")
    for cpu, text in (siblings or {}).items():
        directory = root / "cpu" / f"cpu{cpu}" / "topology"
        directory.mkdir(parents=True)
        (directory / "thread_siblings_list").write_text(text + "\n")
    return str(root)


def pool_of(threads: Sequence[int], mode: str = "spread") -> _native.Pool:
    """A pool with these numbers of threads per node. They are not bound, so any number may run."""
    nodes = [(node, count, set[int]()) for node, count in enumerate(threads)]
    return _native.Pool(nodes, replicates=mode == "replicate", copies_mapped=True)
