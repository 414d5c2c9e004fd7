"""NUMA nodes are found whatever sysfs says, and threads are bound to them."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from specqd import _native
from specqd._native import testing
from specqd.errors import SpecqdWarning
from specqd.model.numa import NUMA, divide, make_pool
from support.command_line import Run
from support.numa import pool_of, write_sysfs
from support.random_models import Shape

ISA = _native.available_isas()[0]
ALL = set(range(64))
WIDE = Shape(hidden=256, heads=8, kv_heads=4, head_dim=32, ffn=608, vocab=1500, is_peaked=True)

linux = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity"
)


def found(
    root: str, cpus: set[int] = ALL, memory_nodes: set[int] = ALL
) -> dict[int, tuple[list[int], int]]:
    """The CPUs and cores of each usable node."""
    nodes = testing.topology(root, cpus, memory_nodes).nodes
    return {node.id: (sorted(node.cpus), node.cores) for node in nodes}


def test_nodes_have_their_cpus_cores_and_memory(tmp_path: Path) -> None:
    """Two nodes of two cores with two hyperthreads each; lists have holes."""
    siblings = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    root = write_sysfs(tmp_path, {0: ("0-1,4-5", 1000), 3: ("2-3,6-7", 500)}, siblings=siblings)
    topology = testing.topology(root, set(range(8)), {0, 3})
    assert found(root, set(range(8)), {0, 3}) == {0: ([0, 1, 4, 5], 2), 3: ([2, 3, 6, 7], 2)}
    assert [node.memory_bytes for node in topology.nodes] == [1024000, 512000]
    assert [node.free_bytes for node in topology.nodes] == [5120, 5120]
    assert topology.unused == []


def test_an_affinity_mask_can_exclude_a_node(tmp_path: Path) -> None:
    root = write_sysfs(tmp_path, {0: ("0-3", 9), 1: ("4-7", 9), 2: ("8-11", 9)})
    assert found(root, {1, 3, 8}) == {0: ([1, 3], 2), 2: ([8], 1)}
    assert testing.topology(root, {1, 3, 8}, ALL).unused == [1]


def test_cpus_of_a_node_without_memory_join_the_nearest(tmp_path: Path) -> None:
    distances = {0: "10 21 31", 2: "21 10 12", 5: "31 12 10"}
    nodes = {0: ("0", 100), 2: ("1", 0), 5: ("2", 100)}
    root = write_sysfs(tmp_path / "none", nodes, distances=distances)
    assert found(root, {0, 1, 2}) == {0: ([0], 1), 5: ([1, 2], 2)}
    full = write_sysfs(tmp_path / "full", nodes | {2: ("1", 100)}, distances=distances)
    assert found(full, {0, 1, 2}, {0, 5}) == {0: ([0], 1), 5: ([1, 2], 2)}  # forbidden by a cgroup
    assert len(found(full, {0, 1, 2})) == 3


def test_nodes_of_memory_only_and_offline_ones_are_not_used(tmp_path: Path) -> None:
    nodes = {0: ("0-1", 9), 1: ("", 9), 2: ("2-3", 9)}
    root = write_sysfs(tmp_path, nodes, online="0-1")
    assert found(root, {0, 1}) == {0: ([0, 1], 2)}
    assert testing.topology(root, {0, 1}, ALL).unused == [1]


HOSTILE: dict[str, Mapping[int, tuple[str, int]]] = {
    "no nodes": {},
    "no list of CPUs": {0: ("", 9), 1: ("", 9)},
    "words": {0: ("zero,one", 9), 1: ("-", 9)},
    "negative": {0: ("-5--1", 9), 1: ("-1", 9)},
    "endless": {0: ("0-99999999999999999999", 9), 1: ("0-4294967295", 9)},
    "backwards": {0: ("7-0", 9), 1: ("3-", 9)},
    "no memory": {0: ("0-3", 0), 1: ("4-7", -9)},
    "too much memory": {0: ("0-3", 1 << 62), 1: ("4-7", 1 << 63)},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_with_no_usable_node_all_cpus_are_one(name: str, tmp_path: Path) -> None:
    root = write_sysfs(tmp_path, HOSTILE[name])
    assert found(root, {2, 9}) == {0: ([2, 9], 2)}
    assert testing.topology(root, {2, 9}, ALL).nodes[0].memory_bytes == -1


def test_without_sysfs_all_cpus_are_one_node(tmp_path: Path) -> None:
    assert found(str(tmp_path / "none"), {0, 1}) == {0: ([0, 1], 2)}
    (tmp_path / "node").write_text("not a directory")
    assert found(str(tmp_path), {0, 1}) == {0: ([0, 1], 2)}


def test_any_sysfs_gives_each_cpu_one_node(tmp_path: Path, rng: np.random.Generator) -> None:
    """CPUs in two nodes, in none, or of nodes without memory; broken lists and distances."""
    for case in range(20):
        nodes = {}
        for node in rng.choice(40, rng.integers(0, 6), replace=False).tolist():
            listed = ",".join(map(str, rng.integers(0, 16, rng.integers(0, 6)).tolist()))
            broken = rng.choice(["", ",", "-", "x", ",,3", "-99999999999"])
            nodes[node] = listed + str(broken), int(rng.integers(-1, 3))
        distances = {node: str(rng.integers(-9, 99, 3))[1:-1] for node in nodes}
        root = write_sysfs(tmp_path / str(case), nodes, distances=distances)
        cpus = set(rng.choice(16, rng.integers(1, 16), replace=False).tolist())
        memories = set(rng.choice(40, 30, replace=False).tolist())
        topology = testing.topology(root, cpus, memories)
        assert topology.nodes
        assert sorted(cpu for node in topology.nodes for cpu in node.cpus) == sorted(cpus)
        assert all(node.cpus and node.cores == len(node.cpus) for node in topology.nodes)


def test_this_machine_has_the_cpus_of_the_mask() -> None:
    nodes = _native.topology().nodes
    if hasattr(os, "sched_getaffinity"):
        assert set().union(*(node.cpus for node in nodes)) == os.sched_getaffinity(0)
    assert sum(node.cores for node in nodes) >= _native.usable_threads()


@pytest.mark.parametrize(
    ("midr", "name"),
    [
        (0x410FD083, "Arm Cortex-A72"),  # Raspberry Pi 4
        (0x414FD0B1, "Arm Cortex-A76"),  # Raspberry Pi 5
        (0x413FD0C1, "Arm Neoverse-N1"),
        (0x411FD401, "Arm Neoverse-V1"),
        (0x511F0011, "Qualcomm Oryon"),
        (0xFFFFFFFF, "ARM CPU 0xffffffff"),
    ],
)
def test_arm_cores_are_named_by_implementer_and_part_of_any_revision(midr: int, name: str) -> None:
    assert testing.arm_core_name(midr) == name
    assert testing.arm_core_name(midr ^ 0x00F0000F) == name.replace("ffffffff", "ff0ffff0")


# --- Threads ------------------------------------------------------------------------------------


def test_threads_are_divided_by_cores(tmp_path: Path, rng: np.random.Generator) -> None:
    root = write_sysfs(tmp_path, {0: ("0-7", 9), 1: ("8-9", 9), 2: ("10-15", 9)})
    nodes = testing.topology(root, set(range(16)), ALL).nodes
    assert [count for _, count, _ in divide(16, nodes)] == [8, 2, 6]
    assert [count for _, count, _ in divide(1, nodes)] == [1]
    for threads in rng.integers(1, 100, 10).tolist():
        counts = {node: count for node, count, _ in divide(threads, nodes)}
        assert sum(counts.values()) == threads
        for node in nodes:
            assert abs(counts.get(node.id, 0) - threads * node.cores / 16) < 1


def test_modes_choose_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "usable_threads", lambda: 8)
    root = write_sysfs(tmp_path, {4: ("0", 9), 7: ("1-3", 9)})
    topology = testing.topology(root, {0, 1, 2, 3}, ALL)
    assert make_pool(8, "auto", topology).nodes == [(4, 2), (7, 6)]
    assert make_pool(8, "spread", topology).nodes == [(4, 2), (7, 6)]
    assert make_pool(5, "one", topology).nodes == [(7, 5)]
    assert make_pool(None, "one", topology).threads <= 3
    pools = {mode: make_pool(8, mode, topology) for mode in ("auto", "spread", "replicate")}
    assert {mode: pool.replicates for mode, pool in pools.items()} == {
        "auto": False, "spread": False, "replicate": True
    }  # fmt: skip
    assert {mode: pool.copies_mapped for mode, pool in pools.items()} == {
        "auto": False, "spread": True, "replicate": True
    }  # fmt: skip


@pytest.mark.parametrize("mode", NUMA)
def test_no_mode_starts_more_threads_than_usable_cores(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "usable_threads", lambda: 3)
    root = write_sysfs(tmp_path, {4: ("0", 9), 7: ("1-2", 9)})
    topology = testing.topology(root, {0, 1, 2}, ALL)
    note = "^threads 999: there are only 3 usable cores, so 3 threads run$"
    with pytest.warns(SpecqdWarning, match=note):
        assert make_pool(999, mode, topology).threads == 3


@pytest.mark.parametrize("mode", ["spread", "replicate"])
def test_one_node_says_that_nothing_is_spread(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "usable_threads", lambda: 2)
    topology = testing.topology(str(tmp_path), {0}, ALL)
    with pytest.warns(SpecqdWarning, match=f"^numa {mode}: there is one usable NUMA node"):
        assert len(make_pool(2, mode, topology).nodes) == 1


def test_the_command_line_names_its_option_in_a_note(
    tmp_path: Path, small_model: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = testing.topology(str(tmp_path), {0}, ALL)
    monkeypatch.setattr(_native, "topology", lambda: topology)
    notes = run("inspect", small_model, "--numa", "spread")[2]
    assert "note: --numa spread: there is one usable NUMA node" in notes


@pytest.mark.parametrize("nodes", [[], [(0, 0, set[int]())], [(0, 2, {0}), (1, 0, {1})]])
def test_a_node_without_threads_is_refused(nodes: list[tuple[int, int, set[int]]]) -> None:
    with pytest.raises(ValueError, match="thread"):
        _native.Pool(nodes)


@linux
def test_threads_are_bound_to_their_node_and_the_caller_is_not() -> None:
    """The caller is bound only during a run."""
    cpus = sorted(os.sched_getaffinity(0))
    before = set(os.listdir("/proc/self/task"))
    pool = _native.Pool([(0, 1, {cpus[0]}), (1, 2, {cpus[-1]})])
    workers = set(os.listdir("/proc/self/task")) - before
    _native.pack(pool, ISA, [np.zeros((64, 32), np.uint16)], False, "fp4")
    assert len(workers) == 2
    for worker in workers:
        assert os.sched_getaffinity(int(worker)) == {cpus[-1]}
    assert sorted(os.sched_getaffinity(0)) == cpus
    assert pool.unbound == 0


@linux
def test_threads_that_the_system_does_not_bind_are_counted() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    absent = 1023
    assert absent not in cpus
    pool = _native.Pool([(0, 1, {cpus[0]}), (1, 3, {absent})])
    _native.pack(pool, ISA, [np.zeros((64, 32), np.uint16)], False, "fp4")
    assert pool.unbound == 3
    assert sorted(os.sched_getaffinity(0)) == cpus


def test_a_run_that_fails_leaves_a_pool_of_nodes_usable() -> None:
    pool, weights = pool_of([2, 1, 2]), np.ones((300, 64), np.uint16)
    for thread in range(5):
        with pytest.raises(MemoryError):
            testing.run_and_throw(pool, thread, thread % 4)
        packed = _native.pack(pool, ISA, [weights], False, "fp4")
        np.testing.assert_array_equal(testing.unpack(packed, ISA), weights)
