"""Loading checks the memory for all models of a chain together, and reports one progress."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from specqd import _native
from specqd._native import testing
from specqd.cli import main
from specqd.errors import MachineError, TensorError
from specqd.formats.safetensors import TensorDirectory
from specqd.llm import LLM
from specqd.model.model import Machine, Model
from specqd.model.weights import bytes_to_pack, require_memory
from support.families import FAMILY_SHAPES
from support.random_models import (
    Shape,
    bf16_bits,
    change_model,
    make_config,
    make_model,
    safetensors_header,
    tensor_sizes,
)
from support.slow import values

MEGABYTE = 1 << 20
HEADROOM = 256 * MEGABYTE
SHAPE = Shape("llama", vocab=301)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, seed: int) -> list[Path]:
    directory = tmp_path_factory.mktemp("models")
    return [make_model(directory / name, SHAPE, seed + i) for i, name in enumerate("abc")]


def test_the_models_of_a_chain_must_fit_into_memory_together(
    models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = bytes_to_pack(models[0]) // 16 * 13
    monkeypatch.setattr(_native, "usable_memory", lambda: HEADROOM + 2 * needed)
    for model in models:
        require_memory([model])
    monkeypatch.setattr(Model, "open", lambda *_, **__: pytest.fail("packed"))
    with pytest.raises(MachineError, match=r"GB are available.*smaller models") as caught:
        LLM(models[0], [str(model) for model in models[1:]])
    assert all(str(model) in str(caught.value) for model in models)


def test_only_models_not_yet_loaded_need_memory(
    models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["pack", str(models[1]), str(tmp_path / "packed")]) == 0
    llm = LLM(models[0], [str(models[2])], 1)
    monkeypatch.setattr(_native, "usable_memory", lambda: 1000)
    monkeypatch.setattr("specqd.model.cache_size.pages", lambda *_: 64)
    llm.with_draft(["fp4", str(models[2])])
    llm.with_draft([str(tmp_path / "packed")])
    with pytest.raises(MachineError, match=str(models[1])):
        llm.with_draft([str(models[1])])


def test_one_progress_runs_once_over_all_models_of_a_chain(
    models: list[Path], tmp_path: Path
) -> None:
    assert main(["pack", str(models[2]), str(tmp_path / "packed")]) == 0
    calls: list[tuple[int, int]] = []
    drafts = [str(models[1]), f"{models[1]}:bf16", str(tmp_path / "packed")]
    LLM(models[0], drafts, 1, progress=lambda *call: calls.append(call))
    done, totals = zip(*calls, strict=True)
    assert set(totals) == {2 * bytes_to_pack(models[0])}
    assert list(done) == sorted(set(done))
    assert done[-1] == totals[-1]
    assert len(done) > 4


def test_mapping_a_packed_model_shows_no_progress(models: list[Path], tmp_path: Path) -> None:
    assert main(["pack", str(models[0]), str(tmp_path / "packed")]) == 0
    LLM(tmp_path / "packed", "auto", 1, progress=lambda *_: pytest.fail("nothing is packed"))


@pytest.mark.parametrize(
    ("limit", "usage", "cache"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
    ids=["cgroup v2", "cgroup v1"],
)
def test_cached_files_of_a_container_count_as_free_memory(
    tmp_path: Path, limit: str, usage: str, cache: str
) -> None:
    (tmp_path / usage).write_text("129000000\n")
    assert testing.memory_left_in(str(tmp_path)) == 2**63 - 1
    (tmp_path / limit).write_text("max\n")
    assert testing.memory_left_in(str(tmp_path)) == 2**63 - 1
    (tmp_path / limit).write_text("400000000\n")
    assert testing.memory_left_in(str(tmp_path)) == 271_000_000
    stat = f"anon 4000000\nfile 125000000\nactive_file 1000000\n{cache} 124000000\nslab 9\n"
    (tmp_path / "memory.stat").write_text(stat)
    assert testing.memory_left_in(str(tmp_path)) == 395_000_000
    (tmp_path / "memory.stat").write_text(f"{cache} 130000000\n")  # read a moment later
    assert testing.memory_left_in(str(tmp_path)) == 400_000_000
    (tmp_path / "memory.stat").write_text("")
    (tmp_path / usage).write_text("500000000\n")
    assert testing.memory_left_in(str(tmp_path)) == 0


@contextmanager
def little_address_space(more: int = 512 * MEGABYTE) -> Iterator[None]:
    """Lets this process allocate at most `more` bytes."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


HUGE = {  # sizes in config.json that no file holds
    "phi3": {"intermediate_size": 100_000_000},
    "gpt_neox": {"num_attention_heads": 100_000_000, "num_key_value_heads": None, "head_dim": 24},
    "llama": {"intermediate_size": 100_000_000},
    "mixtral": {"intermediate_size": 100_000_000},
    "gpt_oss": {"intermediate_size": 96_000_000},
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("family", HUGE)
def test_sizes_are_compared_with_the_file_before_memory_is_taken(
    tmp_path: Path, seed: int, family: str, is_packed: bool
) -> None:
    model = make_model(tmp_path / "model", {"llama": SHAPE, **FAMILY_SHAPES}[family], seed)
    if is_packed:
        assert main(["pack", str(model), str(tmp_path / "packed"), "--calibrate", "none"]) == 0
        model = tmp_path / "packed"
    change_model(model, **HUGE[family])
    machine = Machine.choose(1)
    with little_address_space(), pytest.raises(TensorError, match=r"was expected|match its rows"):
        Model.open(model, machine=machine)


LOADING = Path(__file__).resolve().parents[1] / "benchmarks" / "loading.py"


@pytest.fixture(scope="module", params=values("half of it pruned", slow=["gaussian"]))
def large(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> Path:
    """About 50 M weights, most of them in two matrices."""
    directory = tmp_path_factory.mktemp("large")
    shape = Shape("llama", hidden=512, ffn=1024, vocab=44_000)
    make_model(directory, Shape("llama", vocab=301), seed)  # its tokenizer is not read
    (directory / "config.json").write_text(json.dumps(make_config(shape)))
    rng = np.random.default_rng(seed)
    noise = bf16_bits(rng.standard_normal(1 << 20, np.float32))
    if request.param != "gaussian":
        noise[::2] = 0
    sizes = dict(tensor_sizes(shape))
    with (directory / "model.safetensors").open("wb") as file:
        file.write(safetensors_header(sizes))
        for size in sizes.values():
            file.write(np.resize(noise, size).astype("<u2").tobytes())
    return directory


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc/self/status here")
def test_loading_takes_little_more_memory_than_the_packed_weights(
    large: Path, tmp_path: Path
) -> None:
    def measured(directory: Path) -> dict[str, float]:
        """Of a process of its own, in MB."""
        command = [sys.executable, LOADING, directory, "--once", "--threads", "2"]
        return dict(json.loads(subprocess.check_output(command, text=True)))

    found = measured(large)
    bf16 = sum(view.data.nbytes for view in TensorDirectory.open(large).values()) / 1e6
    assert found["stored"] < 1.3 * bf16
    assert found["kept"] < found["stored"] + 16
    # In addition: patches of one matrix before they are joined, or residuals of one matrix that did
    # not nest; huge pages round up.
    assert found["peak"] < found["stored"] + bf16 / 3 + 32
    assert main(["pack", str(large), str(tmp_path / "packed"), "--calibrate", "none"]) == 0
    packed = measured(tmp_path / "packed")
    assert max(packed["peak"], packed["kept"]) < 8
