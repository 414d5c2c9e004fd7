"""NUMA: nodes are found whatever sysfs says, weights are read where they lie, no bit changes."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import LLM, SamplingParams, _native
from specqd._native import testing
from specqd.errors import MachineError, SpecqdWarning
from specqd.model.model import Machine, Model
from specqd.model.numa import divide, make_pool
from specqd.model.packed import WEIGHTS
from specqd.model.weights import load_weights, require_memory, typical_bytes
from support.command_line import Run
from support.family_shapes import FAMILY_SHAPES
from support.random_models import Shape, make_model

ISA = _native.available_isas()[0]
ALL = set(range(64))
WIDE = Shape(hidden=256, heads=8, kv_heads=4, head_dim=32, ffn=608, vocab=1500, is_peaked=True)

linux = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity"
)


def write_sysfs(
    root: Path,
    nodes: Mapping[int, tuple[str, int]],
    *,
    online: str | None = None,
    distances: Mapping[int, str] | None = None,
    siblings: Mapping[int, str] | None = None,
) -> str:
    """A directory like /sys/devices/system, of nodes with CPU lists and kilobytes of memory."""
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


# --- threads ------------------------------------------------------------------------------------


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


def test_modes_choose_nodes(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("mode", ["spread", "replicate"])
def test_one_node_says_that_nothing_is_spread(mode: str, tmp_path: Path) -> None:
    topology = testing.topology(str(tmp_path), {0}, ALL)
    with pytest.warns(SpecqdWarning, match=f"--numa {mode}: there is one usable NUMA node"):
        assert len(make_pool(2, mode, topology).nodes) == 1


@pytest.mark.parametrize("nodes", [[], [(0, 0, set[int]())], [(0, 2, {0}), (1, 0, {1})]])
def test_a_node_without_threads_is_refused(nodes: list[tuple[int, int, set[int]]]) -> None:
    with pytest.raises(ValueError, match="thread"):
        _native.Pool(nodes)


@linux
def test_threads_are_bound_to_their_node_and_the_caller_is_not() -> None:
    """The caller is bound during a run only."""
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


# --- bits ---------------------------------------------------------------------------------------


def pool_of(threads: Sequence[int], mode: str = "spread") -> _native.Pool:
    """A pool with these threads by node; they may be more than cores, and are not bound."""
    nodes = [(node, count, set[int]()) for node, count in enumerate(threads)]
    return _native.Pool(nodes, replicates=mode == "replicate", copies_mapped=True)


def logits_of(model: Model, tokens: list[int]) -> NDArray[np.float32]:
    """Of forwards of many rows, of three and of one, and of four in fp4."""
    parts = [tokens, tokens[:3], tokens[:1]]
    return np.concatenate([*map(model.logits, parts), model.as_draft().logits(tokens[:4])])


SHAPES = {**FAMILY_SHAPES, "llama": WIDE}
FAMILIES = ["llama", "qwen3_moe", "gpt_oss", "qwen3_5_text"]


@pytest.mark.parametrize("name", FAMILIES)
def test_nodes_change_no_bit(name: str, tmp_path: Path, seed: int) -> None:
    shape = SHAPES[name]
    directory = make_model(tmp_path / "model", shape, seed)
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 256, 70).tolist()

    def opened(pool: _native.Pool) -> Model:
        return Model.open(directory, machine=Machine(pool, ISA), cache_positions=2048)

    expected = logits_of(opened(_native.Pool(1)), tokens)
    threads = [[1, 1], [1, 1, 1, 1], rng.integers(1, 3, 3).tolist()]
    for mode, counts in [("spread", each) for each in threads] + [("replicate", [1, 2])]:
        model = opened(pool_of(counts, mode))
        np.testing.assert_array_equal(logits_of(model, tokens), expected, f"{mode} {counts}")
        weight = model.weights.matrices[0].weight
        assert weight.copies == (len(counts) if mode == "replicate" else 1)


def test_drafted_text_is_the_same_on_all_nodes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through LLM(numa=...), of four injected nodes."""
    directory = make_model(tmp_path / "model", WIDE, seed)
    prompts = [[1, 2, 3], [9] * 70]
    params = SamplingParams(max_tokens=12, temperature=0.8, seed=seed, ignore_eos=True)

    def texts(llm: LLM) -> list[list[int]]:
        return [each.tokens for each in llm.generate(prompts, params)]

    expected = texts(LLM(directory, "none", 1))
    root = write_sysfs(tmp_path / "sys", {i: (str(i), 9) for i in range(4)})
    topology = testing.topology(root, {0, 1, 2, 3}, ALL)
    monkeypatch.setattr(_native, "topology", lambda: topology)
    for mode, nodes in [("auto", 4), ("replicate", 4)]:
        llm = LLM(directory, "fp4:k=2", 4, numa=mode)
        assert len(llm.model.machine.pool.nodes) == nodes
        assert texts(llm) == expected


# --- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [[2, 2], [1, 1, 1, 1], [3, 1]])
def test_almost_all_bytes_are_read_on_their_node(
    counts: list[int], tmp_path: Path, seed: int
) -> None:
    """A thread reads no more than the last twentieth of another node's panels."""
    directory = make_model(tmp_path, WIDE, seed)
    pool = pool_of(counts)
    model = Model.open(directory, machine=Machine(pool, ISA), cache_positions=1024)
    testing.tally(pool)
    for length in (1, 2, 9, 70):
        model.logits([7] * length)
        model.as_draft().logits([7] * length)
    tally = np.array(testing.tally(pool), float)
    read = 4 * sum(model.decoder.weight_bytes(is_draft) for is_draft in (False, True))
    assert tally.sum() == pytest.approx(read, rel=0.01)
    assert np.trace(tally) >= 0.95 * tally.sum()
    share = tally.sum(axis=0) / tally.sum()
    np.testing.assert_allclose(share, np.array(counts) / sum(counts), atol=0.05)
    assert not np.array(testing.tally(pool)).any()


def test_with_a_copy_on_each_node_all_bytes_are_local(tmp_path: Path, seed: int) -> None:
    directory, pool = make_model(tmp_path, WIDE, seed), pool_of([2, 1], "replicate")
    model = Model.open(directory, machine=Machine(pool, ISA), cache_positions=1024)
    testing.tally(pool)
    model.logits([7] * 9)
    tally = np.array(testing.tally(pool))
    assert tally.sum() == np.trace(tally) > 0


def test_one_node_counts_nothing(tmp_path: Path, seed: int) -> None:
    directory, pool = make_model(tmp_path, WIDE, seed), pool_of([3])
    Model.open(directory, machine=Machine(pool, ISA), cache_positions=1024).logits([7] * 9)
    assert testing.tally(pool) == [[0]]


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
@pytest.mark.parametrize("mode", ["auto", "spread", "replicate"])
def test_packed_files_are_copied_to_nodes_on_request(
    mode: str, name: str, tmp_path: Path, run: Run, seed: int
) -> None:
    """`auto` leaves them mapped, since other processes may share their pages."""
    directory = make_model(tmp_path / "model", SHAPES[name], seed)
    packed = tmp_path / "packed"
    assert run("pack", directory, packed, "--calibrate", "none")[0] == 0
    expected = Model.open(directory, machine=Machine.choose(1), cache_positions=256)
    nodes = [(0, 1, set[int]()), (1, 2, set[int]())]
    pool = _native.Pool(nodes, replicates=mode == "replicate", copies_mapped=mode != "auto")
    model = Model.open(packed, machine=Machine(pool, ISA), cache_positions=256)
    tokens = list(range(50))
    np.testing.assert_array_equal(model.logits(tokens), expected.logits(tokens))
    mapped = ranges_of(packed / WEIGHTS)
    for own, other in zip(model.weights.matrices, expected.weights.matrices, strict=True):
        assert own.weight.copies == (2 if mode == "replicate" else 1)
        planes = own.weight.planes()
        for plane, bits in other.weight.planes().items():
            np.testing.assert_array_equal(planes[plane], bits)
        is_mapped = any(planes["codes"].ctypes.data in each for each in mapped)
        assert is_mapped == (mode == "auto")


def ranges_of(file: Path) -> list[range]:
    """The addresses at which this process maps a file."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(file)):
            first, last = line.split()[0].split("-")
            found.append(range(int(first, 16), int(last, 16)))
    return found


def test_planes_lie_in_memory_of_this_machine(tmp_path: Path, seed: int) -> None:
    model = Model.open(make_model(tmp_path, WIDE, seed), machine=Machine(pool_of([1, 1]), ISA))
    for packed in model.weights.matrices:
        sizes = {name: plane.nbytes for name, plane in packed.weight.planes().items()}
        sizes.pop("scale_code")
        nodes = packed.weight.plane_nodes()
        if any(nodes.values()):
            assert {name: sum(by_node.values()) for name, by_node in nodes.items()} == sizes
            assert all(min(by_node) >= 0 for by_node in nodes.values())


def test_copies_are_counted_before_they_are_made(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_model(tmp_path, WIDE, seed)
    headroom = 256 << 20
    enough_for_two = 2 * typical_bytes(directory) + headroom
    monkeypatch.setattr(_native, "usable_memory", lambda: enough_for_two)
    require_memory([directory], pool_of([1, 1], "replicate"))
    require_memory([directory], pool_of([1, 1, 1]))
    with pytest.raises(MachineError, match="the packed weights need about"):
        require_memory([directory], pool_of([1, 1, 1], "replicate"))
    config = Model.open(directory, machine=Machine.choose(1), cache_positions=64).config
    with pytest.raises(MachineError, match="the packed weights need about"):
        load_weights(directory, config, pool_of([1, 1, 1], "replicate"), ISA)


# --- commands -----------------------------------------------------------------------------------


def test_inspect_shows_nodes(
    small_model: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_sysfs(tmp_path, {0: ("0", 1 << 20), 2: ("1023", 1 << 21), 5: ("", 9)})
    topology = testing.topology(root, {0, 1023}, ALL)
    monkeypatch.setattr(_native, "topology", lambda: topology)
    arguments = ("inspect", small_model, "--threads", "2")
    machine = json.loads(run(*arguments, "--numa", "replicate", "--json")[1])["machine"]
    assert machine["numa"] == "replicate"
    assert machine["unused_nodes"] == [5]
    first, second = machine["nodes"]
    assert (first["id"], first["cores"], first["threads"]) == (0, 1, 1)
    assert (second["id"], second["memory_bytes"]) == (2, 1 << 31)
    assert first["gb_per_s"] > 0
    status, out, _ = run(*arguments)
    assert status == 0
    assert "NUMA use          spread" in out
    assert "nodes without cores or memory for this process: 5" in out
    assert "the system did not bind 1 threads to their node" in out
    assert "NUMA use          one" in run(*arguments, "--numa", "one")[1]


def test_unknown_uses_of_nodes_are_refused(small_model: Path, run: Run) -> None:
    assert run("inspect", small_model, "--numa", "both")[0] == 2
    with pytest.raises(MachineError, match=r"--numa 'both': not known; choose one of auto, one"):
        LLM(small_model, numa="both")
