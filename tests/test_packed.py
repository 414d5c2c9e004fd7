"""Packed models have the bits of their model, and damaged files are refused in one line."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specqd import _native
from specqd._native import testing
from specqd.cli import main
from specqd.config import read_config
from specqd.errors import TensorError
from specqd.formats.fp4 import DraftFormat
from specqd.formats.mapped import MappedFile
from specqd.formats.safetensors import PACKED_WEIGHTS, TensorDirectory
from specqd.llm import LLM
from specqd.model.model import Machine, Model
from specqd.model.packed import PackedFile, write_packed
from specqd.model.weights import load_weights
from specqd.sampling import SamplingParams
from support.command_line import Refuse, Run
from support.families import FAMILY_SHAPES
from support.kernel_values import assert_same_bits, each_isa
from support.random_models import (
    BOS,
    PACKED_SHAPE,
    Shape,
    change_model,
    make_model,
    make_tensors,
    put,
    write_safetensors,
)
from support.refusals import done_or_refused, refused
from support.writers import bf16_bits, read_raw, write_raw

POOL = _native.Pool(2)
ISA = _native.available_isas()[0]
SHAPES = {
    "llama": PACKED_SHAPE,
    "narrow": Shape("llama", hidden=70, heads=7, kv_heads=1, head_dim=10, ffn=33, vocab=259),
    "tied": Shape("qwen3", hidden=100, head_dim=24, ffn=172, vocab=283, is_tied=True),
}
PLAIN = ("model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight")
OUTPUT = "model.layers.0.self_attn.o_proj.weight"


PACKED_FAMILIES = (
    "phi3",
    "granitemoehybrid",
    "glm4",
    "gpt_neox",
    "stablelm",
    "qwen3_moe",
    "gpt_oss",
    "qwen3_5_moe_text",
    "qwen3_next",
    "lfm2",
    "lfm2_moe",
    "gemma4_text, experts",
    "glm4_moe",
    "glm4_moe_lite",
    "deepseek_v3",
)


@pytest.fixture(scope="module", params=SHAPES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> tuple[Path, Path]:
    """A model with some matrices that do not nest, and its packed form."""
    directory, shape = tmp_path_factory.mktemp("pair"), SHAPES[request.param]
    model = make_model(directory / "model", shape, seed)
    for name in PLAIN:
        change_model(model, put(name, slice(shape.ffn // 4 * 3), 0))
    assert main(["pack", str(model), str(directory / "packed"), "--calibrate", "none"]) == 0
    return model, directory / "packed"


def opened(directory: Path, isa: str = ISA) -> Model:
    return Model.open(directory, machine=Machine(POOL, isa), cache_positions=256, max_rows=16)


# --- The same bits --------------------------------------------------------------------------------


def test_packed_matrices_unpack_to_the_bits_of_their_model(pair: tuple[Path, Path]) -> None:
    model, packed = pair
    config, tensors = read_config(model), TensorDirectory.open(model)
    weights = load_weights(packed, config, POOL, ISA)
    assert {each.weight.is_nested for each in weights.matrices} == {True, False}
    for each in weights.matrices:
        stacked = np.concatenate([tensors[name].data for name in each.names])
        np.testing.assert_array_equal(testing.unpack(each.weight, ISA), stacked, str(each.names))


def test_an_output_head_in_the_file_is_used_even_if_the_configuration_ties_it(
    tmp_path: Path, seed: int
) -> None:
    untied = make_model(tmp_path / "untied", Shape(), seed)
    tied, packed = make_model(tmp_path / "tied", Shape(is_tied=True), seed), tmp_path / "packed"
    write_safetensors(tied / "model.safetensors", make_tensors(Shape(), seed))
    assert main(["pack", str(tied), str(packed), "--calibrate", "none"]) == 0
    expected = opened(untied).logits([1, 2, 3])
    for directory in (tied, packed):
        assert np.array_equal(opened(directory).logits([1, 2, 3]), expected)


def test_a_tied_model_may_have_the_name_of_its_output_head(tmp_path: Path, seed: int) -> None:
    tied = make_model(tmp_path / "tied", Shape(is_tied=True), seed)
    expected, packed = opened(tied).logits([1, 2, 3]), tmp_path / "packed"
    tensors = make_tensors(Shape(is_tied=True), seed)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    write_safetensors(tied / "model.safetensors", tensors)
    assert main(["pack", str(tied), str(packed), "--calibrate", "none"]) == 0
    for directory in (tied, packed):
        assert np.array_equal(opened(directory).logits([1, 2, 3]), expected)


@each_isa
def test_both_precisions_of_a_packed_model_give_the_logits_of_its_model(
    isa: str, pair: tuple[Path, Path], rng: np.random.Generator
) -> None:
    model, packed = (opened(directory, isa) for directory in pair)
    tokens = [BOS, *map(int, rng.integers(0, 256, 20))]
    np.testing.assert_array_equal(packed.logits(tokens), model.logits(tokens))
    draft = packed.as_draft().logits(tokens)
    np.testing.assert_array_equal(draft, model.as_draft().logits(tokens))


@pytest.mark.parametrize("name", PACKED_FAMILIES)
def test_fused_tensors_and_experts_are_packed_and_mapped(
    name: str, tmp_path: Path, seed: int, rng: np.random.Generator, run: Run
) -> None:
    model = make_model(tmp_path / "model", FAMILY_SHAPES[name], seed)
    status, _, err = run("pack", model, tmp_path / "packed", "--calibrate", "none")
    assert (status, err) == (0, "")  # nothing is left out
    tokens = [BOS, *map(int, rng.integers(0, 256, 20))]
    found, expected = opened(tmp_path / "packed"), opened(model)
    np.testing.assert_array_equal(found.logits(tokens), expected.logits(tokens))
    assert found.weights.parameters == expected.weights.parameters
    assert found.bytes_per_forward == expected.bytes_per_forward


def test_packed_models_generate_the_same_tokens_and_may_be_drafts(
    pair: tuple[Path, Path],
) -> None:
    model, packed = map(str, pair)
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=7, ignore_eos=True)
    written = [
        LLM(path, draft, 2).generate("abcab", params)[0].tokens
        for path, draft in ((model, "none"), (packed, "auto"), (packed, [model]), (model, [packed]))
    ]
    assert all(tokens == written[0] for tokens in written)


def test_planes_are_mapped_and_not_copied(packed: Path) -> None:
    file = PackedFile.open(packed)
    weight = file.matrix(POOL, [OUTPUT], [64], 64, interleaved=False)
    planes = weight.planes()
    assert planes.pop("scale_code").tolist()[0] == 20  # two numbers, which the weight holds itself
    for plane, array in planes.items():
        mapped = file.tensors[f"{OUTPUT}.{plane}"].data
        assert array.__array_interface__["data"][0] == mapped.__array_interface__["data"][0]
        assert not array.flags.writeable


def test_a_mapped_weight_keeps_its_file_open(packed: Path) -> None:
    weight = PackedFile.open(packed).matrix(POOL, [OUTPUT], [64], 64, interleaved=False)
    bits = testing.unpack(weight, ISA)
    np.testing.assert_array_equal(bits, testing.unpack(weight, "portable"))


def test_a_packed_file_keeps_its_draft_format(
    pair: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    model, _ = pair
    assert run("pack", model, tmp_path / "floor", "--format", "mxfp4-floor")[0] == 0
    status, out, _ = run("inspect", tmp_path / "floor", "--json")
    assert status == 0
    expected = {"is_packed_file": True, "draft_format": "mxfp4-floor", "calibration": "none"}
    assert json.loads(out)["weights"] == expected
    with pytest.raises(TensorError, match="are packed as mxfp4-floor; draft with mxfp4-floor"):
        Model.open(tmp_path / "floor", draft=DraftFormat.FP4)
    status, out, _ = run("inspect", tmp_path / "floor")
    assert status == 0
    assert "mapped from a packed file, calibration 'none', draft weights in mxfp4-floor" in out


# --- Writing --------------------------------------------------------------------------------------


def test_nothing_is_overwritten_or_packed_twice(
    packed: Path, tmp_path: Path, refuse: Refuse
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("mine")
    model = packed.parent / "model"
    for name in ("file", "used"):
        assert "exists already" in refuse("pack", model, tmp_path / name)
    assert "is packed already" in refuse("pack", packed, tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "used"]


def test_a_model_that_cannot_be_packed_leaves_no_file(tmp_path: Path, refuse: Refuse) -> None:
    model = make_model(tmp_path / "model", SHAPES["llama"], seed=1)
    change_model(model, put("lm_head.weight", (3, 4), 0x7FC0))
    assert "lm_head.weight[3, 4]" in refuse("pack", model, tmp_path / "packed")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_packed_weights_next_to_a_safetensors_file_are_refused(copy: Path) -> None:
    shutil.copy(copy / PACKED_WEIGHTS, copy / "model.safetensors")
    with pytest.raises(TensorError, match="which may differ"):
        opened(copy)


# --- Damaged files --------------------------------------------------------------------------------


def rewrite(
    directory: Path, change: Callable[[dict[str, Any]], None], data: bytes | None = None
) -> None:
    """Changes the file's header."""
    found, old = read_raw(directory / PACKED_WEIGHTS)
    header = json.loads(found)
    change(header)
    text = json.dumps(header).encode()
    write_raw(directory / PACKED_WEIGHTS, text + b" " * (-(8 + len(text)) % 64), data or old)


def metadata(**changed: str) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["__metadata__"].update(changed)


def plane_as(plane: str, **changed: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[f"{OUTPUT}.{plane}"].update(changed)


def renamed(plane: str) -> Callable[[dict[str, Any]], None]:
    return lambda header: header.update(away=header.pop(f"{OUTPUT}.{plane}"))


CHANGES = {
    "another version": (metadata(version="1"), "version '1' of the packed format"),
    "another format": (metadata(format="pt"), "is not a packed model"),
    "no metadata": (lambda header: header.pop("__metadata__"), "is not a packed model"),
    "another draft": (metadata(draft_format="best"), "draft_format 'best' is not known"),
    "missing codes": (renamed("codes"), "is missing"),
    "missing scales": (renamed("scales"), "is missing"),
    "missing residuals": (renamed("residuals"), "do not match its rows"),
    "missing starts": (renamed("patch_starts"), "do not match its rows"),
    "other dtype": (plane_as("codes", dtype="I8"), "its codes are I8"),
    "other tiles": (plane_as("codes", shape=[16, 128]), "its codes are U8"),
    "flat": (plane_as("scales", shape=[128]), "its scales are U8"),
    "deep patches": (plane_as("patch_starts", shape=[9, 1]), "its patch_starts are U32"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_wrong_header_is_refused(case: str, copy: Path, refuse: Refuse) -> None:
    change, mention = CHANGES[case]
    rewrite(copy, change)
    assert mention in refuse("generate", copy, "-p", "ab")


def test_unaligned_planes_are_refused(copy: Path) -> None:
    header, planes = read_raw(copy / PACKED_WEIGHTS)
    write_raw(copy / PACKED_WEIGHTS, header + b" " * 4, planes)
    with pytest.raises(TensorError, match="not aligned"):
        opened(copy)


def test_a_truncated_file_is_refused(copy: Path) -> None:
    os.truncate(copy / PACKED_WEIGHTS, (copy / PACKED_WEIGHTS).stat().st_size - 1)
    with pytest.raises(TensorError, match="truncated"):
        opened(copy)


def test_planes_of_another_model_are_refused(copy: Path) -> None:
    change_model(copy, intermediate_size=128)
    with pytest.raises(TensorError, match="do not match its rows"):
        opened(copy)


def write_plane(directory: Path, plane: str, at: int, value: int) -> None:
    """Overwrites one element of a plane of the output projection."""
    header, planes = read_raw(directory / PACKED_WEIGHTS)
    entry = json.loads(header)[f"{OUTPUT}.{plane}"]
    begin, end = entry["data_offsets"]
    size = {"U32": 4, "U8": 1}[entry["dtype"]]
    place = begin + at % ((end - begin) // size) * size
    changed = planes[:place] + value.to_bytes(size, "little") + planes[place + size :]
    write_raw(directory / PACKED_WEIGHTS, header, changed)


@pytest.mark.parametrize(
    ("plane", "at", "value", "mention"),
    [
        ("patch_starts", 0, 1, "not in order"),
        ("patch_starts", 3, 0xFFFFFFFF, "not in order"),
        ("patch_starts", 4, 0, "not in order"),
        ("patch_starts", -1, 0x7FFFFFFF, "not in order"),
        ("scale_code", 0, 21, "a scale is out of range"),
        ("scale_code", 0, 23, "a scale is out of range"),
        ("scale_code", 1, 31 << 20, "a scale is out of range"),
        ("scale_code", 1, (2000 - 254) << 20, "a scale is out of range"),
        ("scale_code", 1, (100 << 20) + 1, "a scale is out of range"),
    ],
)
def test_patches_and_scales_out_of_bounds_are_refused(
    plane: str, at: int, value: int, mention: str, copy: Path
) -> None:
    write_plane(copy, plane, at, value)
    message = refused(TensorError, opened, copy)
    assert mention in message
    assert OUTPUT in message


def decode_or_refuse(directory: Path, isa: str) -> None:
    """Any file is refused in one line, or decodes to the bits of portable kernels."""
    if model := done_or_refused(TensorError, opened, directory, isa):
        portable = opened(directory, "portable")
        for each, other in ((model, portable), (model.as_draft(), portable.as_draft())):
            tokens = [BOS, 1, 2, 3]
            assert_same_bits(each.logits(tokens), other.logits(tokens), isa)


fuzz = settings(max_examples=60)


any_isa = st.sampled_from(testing.kernel_names())


@fuzz
@given(data=st.data(), isa=any_isa)
def test_a_file_with_changed_bytes_has_the_portable_bits_or_is_refused(
    copy: Path, packed: Path, data: st.DataObject, isa: str
) -> None:
    content = bytearray((packed / PACKED_WEIGHTS).read_bytes())
    start = 8 + len(read_raw(packed / PACKED_WEIGHTS)[0])
    part = data.draw(st.sampled_from([(0, start), (start, len(content))]))
    for _ in range(data.draw(st.integers(1, 40))):
        content[data.draw(st.integers(part[0], part[1] - 1))] = data.draw(st.integers(0, 255))
    (copy / PACKED_WEIGHTS).write_bytes(content)
    decode_or_refuse(copy, isa)


@fuzz
@given(
    seed=st.integers(0, 2**32 - 1),
    plane=st.sampled_from(["codes", "residuals", "patches"]),
    isa=any_isa,
)
def test_planes_of_random_bytes_have_the_portable_bits_or_are_refused(
    copy: Path, packed: Path, plane: str, seed: int, isa: str
) -> None:
    header, data = read_raw(packed / PACKED_WEIGHTS)
    planes = bytearray(data)
    rng = np.random.default_rng(seed)
    for name, entry in json.loads(header).items():
        if name.endswith(f".{plane}"):
            begin, end = entry["data_offsets"]
            noise: NDArray[Any] = rng.integers(0, 256, end - begin, np.uint8)
            planes[begin:end] = noise.tobytes()
    write_raw(copy / PACKED_WEIGHTS, header, bytes(planes))
    decode_or_refuse(copy, isa)


def share_in_huge_pages(path: Path, rng: np.random.Generator) -> float:
    """The share of a mapped file that the system keeps in huge pages once all pages are read."""
    mapped = MappedFile.open(path)
    content = np.frombuffer(mapped.data, np.uint8)
    content[rng.permutation(np.arange(0, content.size, 4096))].sum()
    report = Path("/proc/self/smaps").read_text().partition(str(path))[2]
    found = re.search(r"^FilePmdMapped: +(\d+) kB$", report, re.M)
    return int(found[1]) * 1024 / content.size if found else 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps files in huge pages")
def test_packed_weights_are_in_huge_pages_where_the_file_system_has_them(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    other, path = tmp_path / "other", tmp_path / PACKED_WEIGHTS
    other.write_bytes(rng.bytes(16 << 20))
    if share_in_huge_pages(other, rng) < 1:
        pytest.skip("this file system does not keep files in huge pages")
    bits = [bf16_bits(rng.normal(size=(512, 4000))) for _ in range(4)]
    matrices = {
        f"{i}": _native.pack(POOL, ISA, [each], False, "fp4") for i, each in enumerate(bits)
    }
    write_packed(path, matrices, {}, DraftFormat.FP4, "none")
    assert share_in_huge_pages(path, rng) > 0.5
    with path.open("rb") as file:  # then from the disk
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert share_in_huge_pages(path, rng) > 0.5
