"""The safetensors reader gives the bits of good files and rejects hostile ones in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specqd.errors import TensorError
from specqd.formats.bf16 import rounded_to_bf16
from specqd.formats.safetensors import TensorDirectory
from support.refusals import done_or_refused, refused
from support.writers import bf16_bits, entry, write_raw, write_safetensors, write_shards


def refusal(directory: Path, *mentions: str) -> str:
    """Returns the error message, one line, of opening `directory`."""
    message = refused(TensorError, TensorDirectory.open, directory)
    for mention in mentions:
        assert mention in message
    return message


@pytest.mark.parametrize("padding", [None, 0, 1, 3])
def test_every_tensor_reads_back_bit_for_bit_at_any_alignment(tmp_path, rng, padding):
    written = {
        "weight": bf16_bits(rng.standard_normal((7, 5))),
        "odd": rng.integers(0, 256, 3, dtype=np.uint8),
        "after an odd size": rng.standard_normal(9).astype(np.float32),
        "scalar": np.array(2.5, np.float64),
        "empty": np.zeros((0, 4), np.int64),
        "half": rng.standard_normal(4).astype(np.float16),
    }
    write_safetensors(
        tmp_path / "model.safetensors", written, metadata={"format": "pt"}, padding=padding
    )
    tensors = TensorDirectory.open(tmp_path)
    assert list(tensors) == list(written)
    for name, array in written.items():
        view = tensors[name]
        assert view.shape == array.shape
        assert view.data.shape == array.shape
        assert view.data.tobytes() == array.tobytes()
        assert view.data.flags.aligned
        assert not view.data.flags.writeable


def test_aligned_tensors_are_mapped_and_not_copied(tmp_path, rng):
    write_safetensors(tmp_path / "model.safetensors", {"w": bf16_bits(rng.standard_normal(64))})
    tensors = TensorDirectory.open(tmp_path)
    assert np.shares_memory(tensors["w"].data, tensors["w"].data)


def test_shards_read_as_one_directory_and_may_be_links(tmp_path, rng):
    first = {"a": bf16_bits(rng.standard_normal(8)), "b": bf16_bits(rng.standard_normal((2, 4)))}
    second = {"c": bf16_bits(rng.standard_normal((4, 4)))}
    write_shards(
        tmp_path,
        {"model-1-of-2.safetensors": first, "model-2-of-2.safetensors": second},
    )
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    link = tmp_path / "model-2-of-2.safetensors"
    link.rename(blob)
    link.symlink_to(blob)
    tensors = TensorDirectory.open(tmp_path)
    for name, array in (first | second).items():
        assert np.array_equal(tensors.bf16(name, array.shape), array)


def test_the_error_of_bf16_names_the_tensor_and_the_problem(tmp_path):
    tensors = {"w": np.zeros((2, 3), np.uint16), "f": np.zeros(4, np.float64)}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    opened = TensorDirectory.open(tmp_path)
    with pytest.raises(TensorError, match=r"'absent' is missing \(\[2, 2\] was expected"):
        opened.bf16("absent", (2, 2))
    with pytest.raises(TensorError, match=r"'w' has shape \[2, 3\], \[3, 2\] was expected"):
        opened.bf16("w", (3, 2))
    with pytest.raises(TensorError, match=r"'f' is F64, not BF16, FP16 or FP32"):
        opened.bf16("f", (4,))


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_fp16_and_fp32_are_rounded_to_the_nearest_even(kind, rng):
    bits = rng.integers(0, 1 << 8 * kind().itemsize, 600_000, dtype=np.uint64)
    values = bits.astype(f"u{kind().itemsize}").view(kind).reshape(600, 1000)
    rounded = rounded_to_bf16(values)
    as_float = (rounded.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(np.isnan(as_float), np.isnan(values))
    finite = np.isfinite(values) & np.isfinite(as_float)
    exact = values[finite].astype(np.float64)
    error = np.abs(as_float.astype(np.float64)[finite] - exact)
    for towards in (rounded - 1, rounded + 1):  # no neighbour is nearer, or as near and even
        neighbour = (towards.astype(np.uint32) << 16).view(np.float32)
        other = np.abs(neighbour[finite].astype(np.float64) - exact)
        is_even = rounded[finite] % 2 == 0
        assert np.all((error < other) | ((error == other) & is_even) | ~np.isfinite(other))


def test_ties_round_to_even_and_too_large_values_to_infinity():
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 3.4e38, np.inf], np.float32)
    assert rounded_to_bf16(values).tolist() == [0x3F80, 0x3F82, 0xBF80, 0x7F80, 0x7F80]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_fp16_and_fp32_tensors_are_rounded_when_read(tmp_path, rng, kind):
    matrix, vector = rng.standard_normal((3, 4)).astype(kind), np.ones(4, kind)
    write_safetensors(tmp_path / "model.safetensors", {"m": matrix, "v": vector})
    tensors = TensorDirectory.open(tmp_path)
    assert np.array_equal(tensors.bf16("m", (3, 4)), bf16_bits(matrix))
    dtype = "F16" if kind is np.float16 else "F32"
    assert [each[1:] for each in tensors.matrices()] == [(dtype, (3, 4))]


def test_the_error_for_a_gptq_checkpoint_says_what_it_is(tmp_path):
    write_safetensors(tmp_path / "model.safetensors", {"m.qweight": np.zeros((2, 2), np.int32)})
    with pytest.raises(TensorError, match=r"'m.weight' is missing .* GPTQ and AWQ"):
        TensorDirectory.open(tmp_path).bf16("m.weight", (2, 2))


U8 = "U8"
HOSTILE_HEADERS = {
    "not an object": ([1, 2], b"", "not a JSON object"),
    "entry is no object": ({"t": 3}, b"", "not described"),
    "entry lacks a field": ({"t": {"dtype": U8, "shape": [1]}}, b"x", "not described"),
    "unknown dtype": ({"t": entry("F7", [1], 0, 1)}, b"x", "unknown dtype 'F7'"),
    "negative shape": ({"t": entry(U8, [-1], 0, 1)}, b"x", "impossible shape"),
    "fractional shape": ({"t": {**entry(U8, [], 0, 1), "shape": [1.0]}}, b"x", "impossible shape"),
    "boolean shape": ({"t": entry(U8, [True], 0, 1)}, b"x", "impossible shape"),
    "too many dimensions": ({"t": entry(U8, [1] * 65, 0, 1)}, b"x", "impossible shape"),
    "overflowing size": ({"t": entry(U8, [2**64], 0, 0)}, b"", "impossible shape"),
    "overflowing product": ({"t": entry(U8, [2**32, 2**32], 0, 0)}, b"", "overflows"),
    "product hidden by zero": ({"t": entry(U8, [0, 2**40, 2**40], 0, 0)}, b"", "overflows"),
    "backward offsets": ({"t": entry(U8, [1], 1, 0)}, b"x", "impossible data_offsets"),
    "negative offsets": ({"t": entry(U8, [1], -1, 0)}, b"x", "impossible data_offsets"),
    "offsets past the data": ({"t": entry(U8, [9], 0, 9)}, b"x" * 8, "truncated: tensor 't'"),
    "dtype mismatch": (
        {"t": entry("F32", [2], 0, 4)},
        b"x" * 4,
        "holds 4 bytes, but F32 of shape [2] needs 8: the dtype",
    ),
    "overlap": (
        {"t": entry(U8, [4], 0, 4), "u": entry(U8, [4], 3, 7)},
        b"x" * 7,
        "'u' overlaps",
    ),
    "same extent twice": (
        {"t": entry(U8, [4], 0, 4), "u": entry(U8, [4], 0, 4)},
        b"x" * 4,
        "overlaps",
    ),
    "hole between": (
        {"t": entry(U8, [1], 0, 1), "u": entry(U8, [1], 2, 3)},
        b"xyz",
        "belongs to no tensor",
    ),
    "hole in front": ({"t": entry(U8, [1], 1, 2)}, b"xy", "belongs to no tensor"),
    "data left over": ({"t": entry(U8, [1], 0, 1)}, b"xy", "belong to no tensor"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "__metadata__"),
    "metadata is a list": ({"__metadata__": []}, b"", "__metadata__"),
}


@pytest.mark.parametrize("case", HOSTILE_HEADERS)
def test_the_error_for_a_hostile_header_names_the_file(tmp_path, case):
    header, data, mention = HOSTILE_HEADERS[case]
    path = tmp_path / "model.safetensors"
    write_raw(path, json.dumps(header).encode(), data)
    refusal(tmp_path, str(path), mention)


@pytest.mark.parametrize(
    ("content", "mention"),
    [
        (b"", "too short"),
        (b"1234567", "too short"),
        (b"GGUF\x03\0\0\0 and more", "longer than the file"),
        ((10).to_bytes(8, "little") + b"{}", "longer than the file"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", "longer than the file"),
        ((0).to_bytes(8, "little"), "not a JSON object"),
        ((2).to_bytes(8, "little") + b"{]", "not valid JSON"),
        ((3).to_bytes(8, "little") + b" {}", "not a JSON object"),
        ((4).to_bytes(8, "little") + b'{"\xff"', "not valid JSON"),
        ((40000).to_bytes(8, "little") + b'{"a":' * 8000, "not valid JSON"),
    ],
)
def test_a_file_that_is_not_safetensors_is_refused(tmp_path, content, mention):
    (tmp_path / "model.safetensors").write_bytes(content)
    refusal(tmp_path, "model.safetensors", mention)


def test_a_header_above_the_limit_is_rejected_without_reading_it(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(200_000_000)  # sparse
    refusal(tmp_path, "100000000")


def test_a_name_given_twice_is_refused(tmp_path):
    one = json.dumps(entry(U8, [1], 0, 1))
    header = f'{{"t": {one}, "t": {one}}}'.encode()
    write_raw(tmp_path / "model.safetensors", header, b"x")
    refusal(tmp_path, "'t' twice")


def test_names_from_a_file_are_printed_in_ascii(tmp_path):
    write_raw(tmp_path / "model.safetensors", {"\x1b[2J\n\ud800": 1})
    assert refusal(tmp_path).isascii()


def test_a_directory_without_weights_is_refused(tmp_path):
    refusal(tmp_path, "model.safetensors", "is missing")
    (tmp_path / "model.safetensors").mkdir()
    refusal(tmp_path, "is not a file")


@pytest.mark.parametrize(
    "file",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "sub/x.safetensors",
        "sub\\x.safetensors",
        "C:x.safetensors",
        "..",
        "",
        "config.json",
        "x\0.safetensors",
    ],
)
def test_an_index_may_not_leave_the_directory(tmp_path, file):
    shard = {"a": np.zeros(4, np.uint16)}
    write_shards(tmp_path, {"model-1.safetensors": shard}, b=file)
    refusal(tmp_path, "model.safetensors.index.json", "'b'", ascii(file), "its own directory")


@pytest.mark.parametrize("letters", ["9" * 243, "é" * 121 + "9"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, letters):
    shard = {"a": np.zeros(4, np.uint16)}
    write_shards(tmp_path, {"model-1.safetensors": shard}, b=f"{letters}.safetensors")
    refusal(tmp_path, "is missing")
    write_shards(tmp_path, {"model-1.safetensors": shard}, b=f"9{letters}.safetensors")
    refusal(tmp_path, "model.safetensors.index.json", "'b'", "255 bytes")


def test_an_index_that_does_not_fit_its_shards_is_refused(tmp_path):
    shard = {"a": np.zeros(4, np.uint16)}
    write_shards(tmp_path, {"model-1.safetensors": shard}, b="model-1.safetensors")
    refusal(tmp_path, "'b'", "does not hold it")
    write_shards(tmp_path, {"model-1.safetensors": shard}, b="model-2.safetensors")
    refusal(tmp_path, "model-2.safetensors", "is missing")


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{"]
)
def test_a_malformed_index_is_refused(tmp_path, index):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    refusal(tmp_path, "index.json")


def _open_bytes(directory: Path, content: bytes) -> None:
    """Opens the bytes, which must give a mapping or a TensorError of one line."""
    (directory / "model.safetensors").write_bytes(content)
    tensors = done_or_refused(TensorError, lambda: list(TensorDirectory.open(directory).values()))
    assert all(view.data.shape == view.shape for view in tensors or ())


fuzz = settings(max_examples=300)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
sizes = st.integers(-1, 9) | st.sampled_from([2**31, 2**63 - 1, 2**63, 2**200])
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["BF16", "F32", "U8", "BOOL", "C64"]) | json_values,
        "shape": st.lists(sizes, max_size=3) | json_values,
        "data_offsets": st.lists(sizes, min_size=2, max_size=2) | json_values,
    }
)
headers = st.dictionaries(st.text(max_size=4), entries | json_values, max_size=4)


@fuzz
@given(content=st.binary(max_size=64))
@example(content=(5).to_bytes(8, "little") + b'{"":1')
def test_any_bytes_are_read_or_refused(tmp_path, content):
    _open_bytes(tmp_path, content)


@fuzz
@given(header=st.binary(max_size=64), data=st.binary(max_size=16))
def test_any_header_bytes_are_read_or_refused(tmp_path, header, data):
    header = b"{" + header
    _open_bytes(tmp_path, len(header).to_bytes(8, "little") + header + data)


@fuzz
@given(header=headers, data=st.binary(max_size=16))
def test_any_json_header_is_read_or_refused(tmp_path, header, data):
    text = json.dumps(header).encode()
    _open_bytes(tmp_path, len(text).to_bytes(8, "little") + text + data)


@fuzz
@given(shapes=st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=4), data=st.data())
def test_a_valid_file_with_one_changed_byte_is_read_or_refused(tmp_path, shapes, data):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {str(i): np.zeros(s, np.uint16) for i, s in enumerate(shapes)})
    content = bytearray(path.read_bytes())
    _open_bytes(tmp_path, bytes(content))
    assert len(TensorDirectory.open(tmp_path)) == len(shapes)
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    _open_bytes(tmp_path, bytes(content))
