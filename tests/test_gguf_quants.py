"""Quantised GGUF files give the values of the `gguf` package, rounded to BF16 once."""

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specqd import LLM, SamplingParams
from specqd.errors import SpecqdWarning, TensorError
from specqd.formats.gguf_quants import BLOCK_FORMATS
from specqd.formats.gguf_tensors import GgufTensors
from support.command_line import Run
from support.gguf_files import Quantised, convert, converted, write_gguf
from support.random_models import Shape, make_model
from support.writers import bf16_bits

SHAPE = Shape(hidden=256, head_dim=64, ffn=512)  # all rows are whole blocks of each type
ROUNDED = pytest.mark.filterwarnings("ignore::specqd.errors.SpecqdWarning")
KINDS = tuple(BLOCK_FORMATS)
HOSTILE_SCALES = [np.inf, -np.inf, np.nan, 0.0, -0.0, 6e-8, -6e-8, 65504, -65504]


def written(path: Path, tensor: Quantised) -> GgufTensors:
    return GgufTensors.open(write_gguf(path, {}, {"output.weight": tensor}))


@pytest.mark.parametrize("scales", [None, HOSTILE_SCALES], ids=["random", "hostile"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_gguf_package_rounded_once(
    tmp_path: Path, rng: np.random.Generator, kind: str, scales: list[float] | None
) -> None:
    # One random scale in 32 is no number: 600 blocks without one are not to be expected.
    shape = (int(rng.integers(600, 800)), 256 * int(rng.integers(1, 5)))
    tensor = Quantised.random(kind, shape, rng, scales=scales)
    expected = tensor.dequantised()
    bits = written(tmp_path / "m.gguf", tensor).bf16("lm_head.weight", shape)
    is_nan = np.isnan(expected)
    np.testing.assert_array_equal(bits[~is_nan], bf16_bits(expected[~is_nan]))
    assert np.all((bits[is_nan] & 0x7FFF) > 0x7F80)
    assert kind == "MXFP4" or is_nan.any()


def test_every_scale_of_mxfp4_is_read(tmp_path: Path) -> None:
    """All scales, from subnormal values to infinity, with all codes."""
    codes = np.arange(16, dtype=np.uint8) * 0x11
    blocks = np.column_stack([np.arange(256, dtype=np.uint8), np.tile(codes, (256, 1))])
    tensor = Quantised("MXFP4", (256, 32), blocks.tobytes())
    bits = written(tmp_path / "m.gguf", tensor).bf16("lm_head.weight", tensor.shape)
    np.testing.assert_array_equal(bits, bf16_bits(tensor.dequantised()))
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    assert values[127, :16].tolist() == [
        *(0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6)
    ]


def quantised(values: np.ndarray, kind: str, rng: np.random.Generator) -> Quantised:
    try:
        return Quantised.of(kind, values)
    except NotImplementedError:  # the package reads these only
        return Quantised.random(kind, values.shape, rng, scales=rng.uniform(-0.001, 0.001, 99))


@pytest.fixture
def mixed(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, np.ndarray | Quantised]]:
    """A random Llama's metadata, and its tensors in llama.cpp's order; then mixed types."""
    metadata, tensors = converted(make_model(tmp_path / "model", SHAPE, seed))
    kinds = list(KINDS)
    rng.shuffle(kinds)
    mixed: dict[str, np.ndarray | Quantised] = dict(tensors)
    for number, name in enumerate(name for name, each in tensors.items() if each.ndim == 2):
        mixed[name] = quantised(tensors[name], kinds[number % len(kinds)], rng)
    return metadata, tensors, mixed


@ROUNDED
def test_a_file_of_mixed_types_is_the_model_of_its_dequantised_weights(
    tmp_path: Path, mixed: Any
) -> None:
    metadata, _, tensors = mixed
    assert {each.kind for each in tensors.values() if isinstance(each, Quantised)} == set(KINDS)
    twin = {
        name: bf16_bits(each.dequantised()) if isinstance(each, Quantised) else each
        for name, each in tensors.items()
    }
    quantised = LLM(write_gguf(tmp_path / "q.gguf", metadata, tensors), "auto", 1)
    plain = LLM(write_gguf(tmp_path / "b.gguf", metadata, twin), "none", 1)
    ids = list(range(100))
    np.testing.assert_array_equal(quantised.model.logits(ids), plain.model.logits(ids))
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=3, ignore_eos=True)
    assert quantised.generate("ab", params)[0].tokens == plain.generate("ab", params)[0].tokens


@ROUNDED
@pytest.mark.parametrize("is_tied", [False, True])
def test_each_tensor_is_dequantised_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, is_tied: bool
) -> None:
    shape = Shape("phi3", is_tied=is_tied)  # its gate and up are one tensor
    path = convert(make_model(tmp_path / "model", shape, seed), tmp_path / "m.gguf", "F16")
    read, real = Counter[str](), GgufTensors.bf16

    def bf16(self: GgufTensors, name: str, shape: tuple[int, ...]) -> np.ndarray:
        read[name] += 1
        return real(self, name, shape)

    monkeypatch.setattr(GgufTensors, "bf16", bf16)
    LLM(path, "none", 1)
    assert set(read.values()) == {1}


def test_the_warning_names_the_types_and_what_was_loaded(
    tmp_path: Path, mixed: Any, run: Run
) -> None:
    metadata, tensors, _ = mixed
    tensors["blk.0.attn_q.weight"] = Quantised.of("Q8_0", tensors["blk.0.attn_q.weight"])
    tensors["blk.1.ffn_up.weight"] = Quantised.of("Q4_1", tensors["blk.1.ffn_up.weight"])
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    status, _, err = run("inspect", path)
    [note] = err.splitlines()
    assert status == 0
    assert note.endswith(
        "m.gguf: the weights are Q8_0, Q4_1 and FP32; they are dequantised and rounded to BF16 "
        "once; output is exact for those BF16 weights"
    )


@ROUNDED
@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_the_error_for_a_scale_that_is_not_finite_names_the_weight(
    tmp_path: Path, mixed: Any, scale: float
) -> None:
    metadata, tensors, _ = mixed
    good = Quantised.of("Q8_0", tensors["blk.1.ffn_down.weight"])
    data = bytearray(good.data)
    block = 34 * (3 * 512 // 32 + 1)  # row 3, columns from 32
    data[block : block + 2] = np.float16(scale).tobytes()
    tensors["blk.1.ffn_down.weight"] = Quantised("Q8_0", good.shape, bytes(data))
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with pytest.raises(TensorError) as caught:
        LLM(path, "none", 1)
    assert "mlp.down_proj.weight[3, 32] is NaN or infinite" in str(caught.value)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    kind=st.sampled_from(KINDS),
    shape=st.lists(st.sampled_from([0, 1, 2, 31, 32, 256, 512]), max_size=4),
    data=st.binary(max_size=600),
)
def test_any_blocks_are_read_or_rejected(
    tmp_path: Path, kind: str, shape: list[int], data: bytes
) -> None:
    tensor = Quantised(kind, tuple(shape), data)
    try:
        bits = written(tmp_path / "m.gguf", tensor).bf16("lm_head.weight", tensor.shape)
    except TensorError as error:
        problem = str(error)
    else:
        problem = ""
        assert (bits.shape, bits.size) == (tensor.shape, prod(shape))
    assert "\n" not in problem


def test_the_warning_is_given_once_per_load(tmp_path: Path, mixed: Any) -> None:
    metadata, _, tensors = mixed
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with pytest.warns(SpecqdWarning, match="output is exact for those BF16 weights") as caught:
        LLM(path, "none", 1)
    assert len(caught) == 1
