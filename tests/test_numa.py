"""NUMA: threads read weights on their own node, and no bit changes."""

import json
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import LLM, SamplingParams, _native
from specqd._native import Context, Rows, testing
from specqd.errors import MachineError
from specqd.formats.safetensors import PACKED_WEIGHTS
from specqd.model.model import Machine, Model
from specqd.model.weights import load_weights, require_memory, typical_bytes
from support.command_line import Run
from support.families import FAMILY_SHAPES
from support.numa import pool_of, write_sysfs
from support.random_models import Shape, make_model

ISA = _native.available_isas()[0]
ALL = set(range(64))
WIDE = Shape(hidden=256, heads=8, kv_heads=4, head_dim=32, ffn=608, vocab=1500, is_peaked=True)


def logits_of(model: Model, tokens: list[int]) -> NDArray[np.float32]:
    """The logits of forwards of many rows, of three and of one, and of four rows in fp4."""
    parts = [tokens, tokens[:3], tokens[:1]]
    return np.concatenate([*map(model.logits, parts), model.as_draft().logits(tokens[:4])])


SHAPES = {**FAMILY_SHAPES, "llama": WIDE}
FAMILIES = ["llama", "qwen3_moe", "gpt_oss", "qwen3_5_text", "lfm2", "deepseek_v3"]


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
    """The tokens that LLM(numa=...) generates on four injected nodes."""
    directory = make_model(tmp_path / "model", WIDE, seed)
    prompts = [[1, 2, 3], [9] * 70]
    params = SamplingParams(max_tokens=12, temperature=0.8, seed=seed, ignore_eos=True)

    def texts(llm: LLM) -> list[list[int]]:
        return [each.tokens for each in llm.generate(prompts, params)]

    expected = texts(LLM(directory, "none", 1))
    root = write_sysfs(tmp_path / "sys", {i: (str(i), 9) for i in range(4)})
    topology = testing.topology(root, {0, 1, 2, 3}, ALL)
    monkeypatch.setattr(_native, "topology", lambda: topology)
    monkeypatch.setattr(_native, "usable_threads", lambda: 4)
    for mode, nodes in [("auto", 4), ("replicate", 4)]:
        llm = LLM(directory, "fp4:k=2", 4, numa=mode)
        assert len(llm.model.machine.pool.nodes) == nodes
        assert texts(llm) == expected


# --- Places -------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [[2, 2], [1, 1, 1, 1], [3, 1]])
def test_almost_all_bytes_are_read_on_their_node(
    counts: list[int], tmp_path: Path, seed: int
) -> None:
    """A thread reads at most the last twentieth of the panels of another node."""
    directory = make_model(tmp_path, WIDE, seed)
    pool = pool_of(counts)
    model = Model.open(directory, machine=Machine(pool, ISA), cache_positions=1024)
    testing.tally(pool)
    read = 0
    for length, chosen in product((1, 2, 9, 70), (model, model.as_draft())):
        context = Context(model.cache.create())
        chosen.forward([Rows(context, 0, [7] * length, 1)])
        model.cache.release(context.slot)
        read += model.decoder.moved_bytes
    tally = np.array(testing.tally(pool), float)
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
    """`auto` leaves packed files mapped, because other processes may use the same pages."""
    directory = make_model(tmp_path / "model", SHAPES[name], seed)
    packed = tmp_path / "packed"
    assert run("pack", directory, packed, "--calibrate", "none")[0] == 0
    expected = Model.open(directory, machine=Machine.choose(1), cache_positions=256)
    nodes = [(0, 1, set[int]()), (1, 2, set[int]())]
    pool = _native.Pool(nodes, replicates=mode == "replicate", copies_mapped=mode != "auto")
    model = Model.open(packed, machine=Machine(pool, ISA), cache_positions=256)
    tokens = list(range(50))
    np.testing.assert_array_equal(model.logits(tokens), expected.logits(tokens))
    mapped = ranges_of(packed / PACKED_WEIGHTS)
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


@pytest.mark.skipif(not _native.may_put_on(0), reason="the system forbids mbind")
@pytest.mark.parametrize("mode", ["one", "spread", "replicate"])
def test_pages_of_weights_stay_on_their_node(mode: str, tmp_path: Path, seed: int) -> None:
    """All nodes of the pool are node 0, because machines with one node have no other. The kernel
    never moves pages whose policy is not "default"."""
    directory = make_model(tmp_path, WIDE, seed)
    node = (0, 1, os.sched_getaffinity(0))
    pool = _native.Pool([node] if mode == "one" else [node] * 2, replicates=mode == "replicate")
    model = Model.open(directory, machine=Machine(pool, ISA), cache_positions=256)
    policies = policies_by_address()
    for packed in model.weights.matrices:
        planes = packed.weight.planes()
        for name in ("codes", "scales", "residuals", "patches"):
            middle = planes[name].ctypes.data + planes[name].nbytes // 2
            first = max(each for each in policies if each <= middle)
            assert policies[first] == "prefer:0", name


def policies_by_address() -> dict[int, str]:
    """The NUMA policy of each mapping of this process."""
    lines = Path("/proc/self/numa_maps").read_text().splitlines()
    return {int(line.split()[0], 16): line.split()[1] for line in lines}


def test_many_small_matrices_do_not_use_up_the_mappings_of_a_process() -> None:
    """The system allows 65,530. A model with 94 layers of 128 experts has 24,000 matrices."""
    before = testing.mappings_of_blocks(0, 0, 0)
    count = testing.mappings_of_blocks(12_000, 5 << 20, 8)
    assert count - before < 60_000
    assert testing.mappings_of_blocks(0, 0, 0) == before


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


# --- Commands -----------------------------------------------------------------------------------


def test_inspect_shows_nodes(
    small_model: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_sysfs(tmp_path, {0: ("0", 1 << 20), 2: ("1023", 1 << 21), 5: ("", 9)})
    topology = testing.topology(root, {0, 1023}, ALL)
    monkeypatch.setattr(_native, "topology", lambda: topology)
    monkeypatch.setattr(_native, "usable_threads", lambda: 2)
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
    assert machine["fixes_pages"] is False  # there is no node 2 here
    assert "the system does not fix pages to nodes (mbind), and may move them" in out
    assert "NUMA use          one" in run(*arguments, "--numa", "one")[1]


def test_unknown_uses_of_nodes_are_refused(small_model: Path, run: Run) -> None:
    assert run("inspect", small_model, "--numa", "both")[0] == 2
    with pytest.raises(MachineError, match=r"^numa 'both': not known; choose one of auto, one"):
        LLM(small_model, numa="both")
