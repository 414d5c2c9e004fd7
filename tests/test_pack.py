"""Packed planes hold both precisions, and the exact one has the bits of the file."""

import contextlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native
from specqd._native import testing
from specqd.config import read_config
from specqd.config.families import names_of
from specqd.errors import HubError, TensorError
from specqd.formats.fp4 import DraftFormat
from specqd.formats.safetensors import TensorDirectory
from specqd.hub import shipped_model
from specqd.model.loader import HeadPart, Source
from specqd.model.weights import load_weights
from support import fp4
from support.kernel_values import each_isa, in_tiles, nibbles, tiled
from support.random_models import Shape, change_model, make_model, put
from support.refusals import refused
from support.trained_models import SHARED_MODELS
from support.writers import bf16_bits

Bits = NDArray[np.uint16]

POOL = _native.Pool(2)
ISA = _native.available_isas()[0]

each_format = pytest.mark.parametrize("draft", DraftFormat, ids=lambda draft: draft.value)


def gaussian(rng: np.random.Generator, rows: int, columns: int) -> Bits:
    return bf16_bits(rng.standard_normal((rows, columns), np.float32))


def any_finite(rng: np.random.Generator, rows: int, columns: int) -> Bits:
    """Finite BF16 of every magnitude, subnormal to huge; each row has a range of its own."""
    bits = rng.integers(0, 0x7F80, (rows, columns))
    exponents = rng.integers(1, 254, (rows, 1))
    near = np.clip(exponents + rng.integers(-6, 1, bits.shape), 0, 254) << 7 | bits & 127
    kind = rng.random((rows, 1))
    bits = np.where(kind < 0.6, near, bits)
    bits = np.where(kind < 0.1, rng.integers(0, 0x200, bits.shape), bits)  # subnormal, tiny
    bits = np.where(kind > 0.9, rng.integers(0x7E00, 0x7F80, bits.shape), bits)  # huge
    bits = np.where(rng.random(bits.shape) < 0.05, 0, bits)
    return (bits | rng.integers(0, 2, bits.shape) << 15).astype(np.uint16)


def pack(
    sources: list[Bits], *, interleaved: bool = False, draft: DraftFormat = DraftFormat.FP4
) -> _native.PackedWeight:
    packed = _native.pack(POOL, ISA, sources, interleaved, draft.value)
    assert isinstance(packed, _native.PackedWeight), packed
    return packed


# --- The exact precision is the file ------------------------------------------------------------

RANDOM_SHAPES = {
    "llama": Shape("llama", hidden=70, heads=7, kv_heads=1, head_dim=10, ffn=33, vocab=301),
    "tied": Shape("qwen3", hidden=100, head_dim=24, ffn=172, vocab=283, is_tied=True),
    "biased": Shape("llama", ffn=95, vocab=259, has_biases=True),
}


def stored_models() -> dict[str, Path]:
    models = {path.name: path for path in sorted(SHARED_MODELS.glob("*/")) if path.is_dir()}
    with contextlib.suppress(HubError):
        models["shipped"] = shipped_model()
    goldens = Path(__file__).parent.glob("goldens/*/config.json")
    return models | {f"golden {path.parent.name}": path.parent for path in goldens}


def stored(tensors: TensorDirectory, source: Source) -> NDArray[np.uint16]:
    """The tensor of a source: a whole one, one of a stack, or a part of each attention head."""
    part = source.within
    if isinstance(part, HeadPart):
        heads = tensors[part.name].data.reshape(part.heads, part.dim, part.columns)
        each = [head[part.first : part.first + part.count] for head in heads]
        return np.concatenate([head.T if part.is_transposed else head for head in each])
    if part is None:
        return tensors[source.name].data
    return tensors[part.name].data[part.at]


def assert_unpacks_to_its_file(directory: Path) -> None:
    config = read_config(directory)
    tensors = TensorDirectory.open(directory)
    for draft in DraftFormat:
        weights = load_weights(directory, config, POOL, ISA, draft=draft)
        read = {name for packed in weights.matrices for name in packed.names}
        matrices = read | {name.partition("[")[0] for name in read}  # parts of a tensor
        linears = {
            name
            for name, view in tensors.items()
            if view.data.ndim == 2 and not name.endswith("_bias")  # of experts
        }
        names = names_of(config)
        read_in_place = {f"{each}.weight" for each in (names.embedding, names.per_layer_table)}
        assert linears - matrices <= read_in_place
        for packed in weights.matrices:
            if packed.weight.is_mxfp4:  # it is not repacked; see test_experts
                continue
            stacked = np.concatenate([each.of(stored(tensors, each)) for each in packed.sources])
            np.testing.assert_array_equal(
                testing.unpack(packed.weight, ISA), stacked, str(packed.names)
            )


@pytest.mark.parametrize("name", sorted(stored_models()))
def test_every_matrix_of_a_stored_model_unpacks_to_the_bits_of_its_file(name: str) -> None:
    assert_unpacks_to_its_file(stored_models()[name])


def test_shared_models_are_present() -> None:
    if not SHARED_MODELS.is_dir():
        pytest.skip(f"no models in {SHARED_MODELS}; only shipped and random ones are tested")


@pytest.mark.parametrize("name", RANDOM_SHAPES)
def test_every_matrix_of_a_random_model_unpacks_to_the_bits_of_its_file(
    name: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    seed = int(rng.integers(1 << 31))
    assert_unpacks_to_its_file(make_model(tmp_path, RANDOM_SHAPES[name], seed))


OFF_TILES = [(1, 1), (1, 32), (3, 31), (15, 33), (16, 64), (17, 2), (33, 95), (50, 172), (257, 129)]


@each_isa
@pytest.mark.parametrize(("rows", "columns"), OFF_TILES)
def test_shapes_off_the_tiles_unpack_to_their_bits(
    isa: str, rows: int, columns: int, rng: np.random.Generator
) -> None:
    for bits in (gaussian(rng, rows, columns), any_finite(rng, rows, columns)):
        packed = _native.pack(POOL, isa, [bits], False, "fp4")
        assert (packed.rows, packed.columns) == bits.shape
        np.testing.assert_array_equal(testing.unpack(packed, isa), bits)


@pytest.mark.parametrize("columns", [31, 64, 100])
@pytest.mark.parametrize("rows", [(40, 8, 8), (16, 16, 16), (1, 2, 3), (33, 5, 7)])
def test_three_stacked_matrices_unpack_in_order(
    rows: tuple[int, ...], columns: int, rng: np.random.Generator
) -> None:
    sources = [gaussian(rng, n, columns) for n in rows]
    np.testing.assert_array_equal(testing.unpack(pack(sources), ISA), np.concatenate(sources))


@pytest.mark.parametrize("columns", [33, 64])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 32, 172])
def test_interleaved_matrices_unpack_in_order(
    rows: int, columns: int, rng: np.random.Generator
) -> None:
    sources = [gaussian(rng, rows, columns) for _ in range(2)]
    packed = pack(sources, interleaved=True)
    np.testing.assert_array_equal(testing.unpack(packed, ISA), np.concatenate(sources))


# --- Matrices that nest and matrices that do not ----------------------------------------------


@each_format
def test_gaussian_weights_take_below_13_bits(draft: DraftFormat, rng: np.random.Generator) -> None:
    packed = pack([gaussian(rng, 256, 1024)], draft=draft)
    planes = packed.plane_bytes()
    assert packed.is_nested
    assert planes["plain"] == 0
    assert 12.6 < sum(planes.values()) * 8 / (256 * 1024) < 12.9
    assert planes["codes"] * 8 == 256 * 1024 * 4
    assert planes["scales"] * 32 == planes["residuals"] == 256 * 1024


@pytest.mark.parametrize("tail", ["laplace", "t3"])
def test_heavy_tails_nest_below_14_bits(tail: str, rng: np.random.Generator) -> None:
    size = (128, 1024)
    values = rng.laplace(size=size) if tail == "laplace" else rng.standard_t(3, size)
    bits = bf16_bits((0.02 * values).astype(np.float32))  # as large as trained weights
    packed = pack([bits])
    assert packed.is_nested
    assert sum(packed.plane_bytes().values()) * 8 / bits.size < 14.0
    np.testing.assert_array_equal(testing.unpack(packed, ISA), bits)


def without_room(rng: np.random.Generator) -> dict[str, Bits]:
    """Matrices whose patches would take more bytes than BF16."""
    pruned = gaussian(rng, 64, 256)
    pruned[rng.random(pruned.shape) < 0.5] = 0
    return {
        "half pruned": pruned,
        "large and tiny": np.tile(bf16_bits(np.array([1000.0, 2.5], np.float32)), (64, 128)),
    }


@pytest.mark.parametrize("kind", ["half pruned", "large and tiny"])
def test_a_matrix_that_does_not_nest_keeps_plain_bf16_and_a_draft(
    kind: str, rng: np.random.Generator
) -> None:
    bits = without_room(rng)[kind]
    packed = pack([bits])
    planes = packed.plane_bytes()
    assert not packed.is_nested
    assert packed.patch_count == planes["residuals"] == planes["patches"] == 0
    assert planes["plain"] == bits.nbytes
    assert planes["codes"] * 4 == planes["plain"]
    np.testing.assert_array_equal(testing.unpack(packed, ISA), bits)


@pytest.mark.parametrize("value", [0x3F80, 0xBF80, 0x0080, 0x0001, 0x7F7F, 0x3DCD])
def test_constant_matrices_unpack_to_their_bits(value: int) -> None:
    bits = np.full((33, 70), value, np.uint16)
    for draft in DraftFormat:
        np.testing.assert_array_equal(testing.unpack(pack([bits], draft=draft), ISA), bits)


def test_packing_does_not_depend_on_threads(rng: np.random.Generator) -> None:
    bits = any_finite(rng, 100, 200)
    alone = _native.pack(_native.Pool(1), ISA, [bits], False, "fp4")
    shared = _native.pack(_native.Pool(4), ISA, [bits], False, "fp4")
    assert alone.plane_bytes() == shared.plane_bytes()
    np.testing.assert_array_equal(testing.unpack(alone, ISA), testing.unpack(shared, ISA))


# --- The cast is that of tests/support/fp4.py ------------------------------------------------


def every_code_at_every_scale() -> Bits:
    """The 16 grid values at the 253 E8M0 scales whose values BF16 can hold, and at 256 of E5M3."""
    codes = np.tile(np.arange(16, dtype=np.uint8), (256, 2))
    scales = np.arange(256, dtype=np.uint8)
    all_blocks = (
        fp4.Blocks(codes, np.minimum(scales, 252)),
        fp4.Blocks(codes, scales, 20, 900 << 20),
    )
    values = np.concatenate([fp4.decode(blocks) for blocks in all_blocks])
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def close_calls(rng: np.random.Generator) -> Bits:
    """Blocks whose squared errors at one scale and at half of it differ only by rounding of sums.

    At half the scale, 4 has a squared error of 1. At the whole scale, sixteen values of 1/4 or 3/4
    have 1/16 each. Fifteen tiny values have at most 2^-50 each at both.
    """
    rows = 256
    coarse = rng.choice([0.25, 0.75], (rows, 16))
    tiny = np.ldexp(1.0, rng.integers(-31, -24, (rows, 1)).repeat(15, axis=1))
    blocks = [np.full((rows, 1), 4.0), tiny, coarse]
    values = np.concatenate([np.concatenate(blocks[::step], axis=1) for step in (1, -1)], axis=1)
    values *= rng.choice([-1, 1], values.shape)
    return bf16_bits(np.ldexp(values, rng.integers(-60, 60, (rows, 1))))


@each_format
@each_isa
def test_the_native_cast_equals_its_definition_in_all_bits(
    isa: str, draft: DraftFormat, rng: np.random.Generator
) -> None:
    kinds = [gaussian(rng, 64, 128), any_finite(rng, 320, 128), every_code_at_every_scale()]
    kinds += [*without_room(rng).values(), close_calls(rng)]
    for bits in kinds:
        importance = np.exp2(rng.uniform(-24, 0, bits.shape[1])).astype(np.float32)
        codes, scales, residuals, starts, patches, code = testing.planes(
            testing.kernels(isa).pack(tiled(bits), draft.value, importance=importance)
        )
        nested = fp4.nest(bits, draft, importance)
        assert code == (nested.blocks.shift, nested.blocks.base)
        expected = nested.blocks.scales.reshape(len(bits) // 16, 16, -1).transpose(0, 2, 1)
        np.testing.assert_array_equal(scales.reshape(expected.shape), expected)
        np.testing.assert_array_equal(nibbles(codes), in_tiles(nested.blocks.codes))
        if nested.is_plain:
            continue
        np.testing.assert_array_equal(residuals.reshape(-1, 512), in_tiles(nested.residuals))
        is_patch = in_tiles(nested.is_patch)
        np.testing.assert_array_equal(np.diff(starts), is_patch.sum(axis=1))
        tile = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        order = np.lexsort((patches, tile))  # their order within a tile is not fixed
        np.testing.assert_array_equal(patches[order] >> 7, np.nonzero(is_patch)[1])
        upper = tiled(bits).reshape(-1, 512)[is_patch] >> 8
        np.testing.assert_array_equal(patches[order] & 127, (upper & 0x3F) | (upper >> 7) << 6)


@each_isa
def test_the_last_of_several_patches_of_a_weight_counts(isa: str, rng: np.random.Generator) -> None:
    bits = gaussian(rng, 48, 512)
    planes = pack([bits]).planes()
    codes, scales, scale_code, residuals, starts, patches = planes.values()
    wrong = patches ^ rng.integers(1, 128, patches.shape, np.uint16)  # for the same weights
    of_tiles, ends = [], [0]
    for begin, end in itertools.pairwise(starts):
        count = rng.integers(0, end - begin, endpoint=True)
        of_tiles += [wrong[begin : begin + count], patches[begin:end]]
        ends.append(ends[-1] + int(count) + int(end - begin))
    of_tiles.append(patches[starts[-1] :])  # padding
    doubled = np.concatenate(of_tiles)
    weight = _native.map_planes(
        POOL,
        codes,
        scales,
        scale_code,
        residuals,
        np.array(ends, np.uint32),
        doubled,
        None,
        source_rows=[48],
        columns=512,
        interleaved=False,
    )
    assert isinstance(weight, _native.PackedWeight), weight
    np.testing.assert_array_equal(testing.unpack(weight, isa), bits)


# --- NaN and infinity are refused -------------------------------------------------------------

BAD = {"nan": 0x7FC0, "negative nan": 0xFF81, "infinity": 0x7F80, "negative infinity": 0xFF80}


@pytest.mark.parametrize("bits", BAD.values(), ids=BAD)
@pytest.mark.parametrize("interleaved", [False, True])
def test_packing_returns_the_place_of_a_weight_that_is_not_finite(
    bits: int, interleaved: bool, rng: np.random.Generator
) -> None:
    for _ in range(20):
        sources = [gaussian(rng, 37, 70) for _ in range(2)]
        source, row, column = (int(rng.integers(n)) for n in (2, 37, 70))
        sources[source][row, column] = bits
        found = _native.pack(POOL, ISA, sources, interleaved, "fp4")
        assert found == (source, row, column)


PLACES = [
    ("model.layers.1.self_attn.k_proj.weight", (3, 5)),
    ("model.layers.0.mlp.up_proj.weight", (90, 63)),
    ("model.layers.1.mlp.down_proj.weight", (63, 94)),
    ("model.layers.1.self_attn.o_proj.weight", (0, 0)),
    ("model.embed_tokens.weight", (258, 63)),
    ("lm_head.weight", (17, 1)),
    ("model.norm.weight", (63,)),
    ("model.layers.1.input_layernorm.weight", (0,)),
    ("model.layers.0.self_attn.v_proj.bias", (7,)),
    ("model.layers.1.mlp.down_proj.bias", (11,)),
]


@pytest.mark.parametrize(("name", "at"), PLACES)
@pytest.mark.parametrize("bits", BAD.values(), ids=BAD)
def test_weights_that_are_not_finite_are_refused_by_name_and_place(
    name: str, at: tuple[int, ...], bits: int, tmp_path: Path
) -> None:
    change_model(make_model(tmp_path, RANDOM_SHAPES["biased"], seed=1), put(name, at, bits))
    message = refused(TensorError, load_weights, tmp_path, read_config(tmp_path), POOL, ISA)
    assert message.startswith(str(tmp_path))
    assert f"{name}{list(at)} is NaN or infinite" in message


def test_a_tied_embedding_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path, RANDOM_SHAPES["tied"], seed=2)
    change_model(tmp_path, put("model.embed_tokens.weight", (200, 99), 0x7F80))
    with pytest.raises(TensorError, match=r"model\.embed_tokens\.weight\[200, 99\]"):
        load_weights(tmp_path, read_config(tmp_path), POOL, ISA)
