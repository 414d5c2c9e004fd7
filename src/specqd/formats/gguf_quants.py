"""Dequantises ggml's block formats to BF16.

Float32 values equal those of the `gguf` package bit for bit; they are then rounded to BF16 once.
Works on blocks of bytes. Knows nothing of files and tensors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd.formats.bf16 import rounded_to_bf16

Blocks = NDArray[Any]  # [n] of a format's block
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_CHUNK = 1 << 16  # weights dequantised at once, so that they stay in a core's cache
_IQ4_NL = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
_TWICE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One of ggml's types. A block holds `weights` consecutive weights of a row."""

    weights: int
    block: np.dtype[Any]
    dequantised: Callable[[Blocks], Floats]  # blocks [n] -> [n, weights]


def bf16_of_blocks(blocks: Blocks, kind: BlockFormat) -> NDArray[np.uint16]:
    """Dequantises blocks [..., columns / weights] to BF16 bits [..., columns].

    Scales may have any bits. NaN and infinite values are kept.
    """
    flat = blocks.reshape(-1)
    bits = np.empty((flat.size, kind.weights), np.uint16)
    step = _CHUNK // kind.weights
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, flat.size, step):
            part = slice(first, first + step)
            bits[part] = rounded_to_bf16(kind.dequantised(flat[part]).reshape(-1, kind.weights))
    return bits.reshape(*blocks.shape[:-1], blocks.shape[-1] * kind.weights)


def _fields(packed: Bytes, bits: int) -> Bytes:
    """Splits bytes [..., k] into fields of `bits` bits, lowest first: [..., 8 / bits, k]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)


def _wide(values: NDArray[Any], *shape: int) -> Floats:
    """Returns the values as float32 in the shape [n, *shape]."""
    return np.asarray(values, np.float32).reshape(len(values), *shape)


def _scale(blocks: Blocks) -> Floats:
    return _wide(blocks["scale"], 1)


def _minimum(blocks: Blocks) -> Floats:
    return _wide(blocks["minimum"], 1)


# --- Blocks of 32 weights: a scale, codes, and in some types a minimum ---------------------------


def _codes_of_4(blocks: Blocks) -> Floats:
    return _wide(_fields(blocks["codes"], 4), 32)


def _codes_of_5(blocks: Blocks) -> Floats:
    """Joins the low four bits of each code with the fifth bits, which form one 32-bit number."""
    four, fifth = _fields(blocks["codes"], 4), _fields(blocks["fifth"][..., None], 1)
    return _wide(four | fifth.reshape(-1, 2, 16) << np.uint8(4), 32)


def _centred(codes: Callable[[Blocks], Floats], centre: int) -> Callable[[Blocks], Floats]:
    return lambda blocks: _scale(blocks) * (codes(blocks) - np.float32(centre))


def _above_minimum(codes: Callable[[Blocks], Floats]) -> Callable[[Blocks], Floats]:
    return lambda blocks: _scale(blocks) * codes(blocks) + _minimum(blocks)


def _q8_0(blocks: Blocks) -> Floats:
    return _scale(blocks) * _wide(blocks["codes"], 32)


def _iq4_nl(blocks: Blocks) -> Floats:
    return _scale(blocks) * _IQ4_NL[_fields(blocks["codes"], 4).reshape(-1, 32)]


def _mxfp4(blocks: Blocks) -> Floats:
    # 128, not the bias 127: half of the scale, because the table holds twice the values.
    scale: Floats = np.ldexp(np.float32(1), blocks["scale"].astype(np.int32) - 128)
    return scale[:, None] * _TWICE_E2M1[_fields(blocks["codes"], 4).reshape(-1, 32)]


# --- Blocks of 256 weights: groups of 16 or 32, with quantised scales ----------------------------


def _q2_k(blocks: Blocks) -> Floats:
    scales = _fields(blocks["scales"], 4)  # [n, 2, 16]: scales, minima
    scale = _scale(blocks) * _wide(scales[:, 0], 16)
    minimum = _minimum(blocks) * _wide(scales[:, 1], 16)
    codes = _wide(_fields(blocks["codes"].reshape(-1, 2, 32), 2), 16, 16)
    return scale[..., None] * codes - minimum[..., None]


def _q3_k(blocks: Blocks) -> Floats:
    low = _fields(blocks["scales"][:, :8], 4).reshape(-1, 16)
    high = _fields(blocks["scales"][:, 8:], 2).reshape(-1, 16)
    scale: Floats = _scale(blocks) * (_wide(low | high << np.uint8(4), 16) - np.float32(32))
    two = _fields(blocks["codes"].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    codes = two | _fields(blocks["third"], 1) << np.uint8(2)
    return scale[..., None] * (_wide(codes, 16, 16) - np.float32(4))


def _scales_of_6(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpacks eight scales and eight minima of 6 bits, each [n, 8], from 12 bytes.

    Bytes 0 to 3 hold the first four scales and bytes 4 to 7 the first four minima, in their low 6
    bits. Bytes 8 to 11 hold the low 4 bits of the other scales and minima; their high 2 bits are
    the high bits of bytes 0 to 7.
    """
    first, low = packed[:, :8].reshape(-1, 2, 4), _fields(packed[:, 8:], 4)
    last = low | (first >> np.uint8(6)) << np.uint8(4)
    both = np.concatenate([first & np.uint8(63), last], axis=2)
    return both[:, 0], both[:, 1]


def _above_scaled_minima(blocks: Blocks, codes: Floats) -> Floats:
    scales, minima = _scales_of_6(blocks["scales"])
    scale = _scale(blocks) * _wide(scales, 8)
    minimum = _minimum(blocks) * _wide(minima, 8)
    return scale[..., None] * codes - minimum[..., None]


def _nibbles_of_8_groups(blocks: Blocks) -> Bytes:
    return _fields(blocks["codes"].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)


def _q4_k(blocks: Blocks) -> Floats:
    return _above_scaled_minima(blocks, _wide(_nibbles_of_8_groups(blocks), 8, 32))


def _q5_k(blocks: Blocks) -> Floats:
    codes = _nibbles_of_8_groups(blocks) | _fields(blocks["fifth"], 1) << np.uint8(4)
    return _above_scaled_minima(blocks, _wide(codes, 8, 32))


def _q6_k(blocks: Blocks) -> Floats:
    low = _fields(blocks["codes"].reshape(-1, 2, 64), 4).reshape(-1, 8, 32)
    high = _fields(blocks["high"].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    codes = _wide(low | high << np.uint8(4), 16, 16) - np.float32(32)
    scale = _scale(blocks) * _wide(blocks["scales"], 16)
    return scale[..., None] * codes


_SCALE, _MINIMUM, _NIBBLES = ("scale", "<f2"), ("minimum", "<f2"), ("codes", "u1", 16)
_FIFTH = ("fifth", "u1", 4)
_K_HEAD = [_SCALE, _MINIMUM, ("scales", "u1", 12)]

BLOCK_FORMATS: Mapping[str, BlockFormat] = {
    name: BlockFormat(weights, np.dtype(block), dequantised)
    for name, weights, block, dequantised in (
        ("Q8_0", 32, [_SCALE, ("codes", "i1", 32)], _q8_0),
        ("Q4_0", 32, [_SCALE, _NIBBLES], _centred(_codes_of_4, 8)),
        ("Q4_1", 32, [_SCALE, _MINIMUM, _NIBBLES], _above_minimum(_codes_of_4)),
        ("Q5_0", 32, [_SCALE, _FIFTH, _NIBBLES], _centred(_codes_of_5, 16)),
        ("Q5_1", 32, [_SCALE, _MINIMUM, _FIFTH, _NIBBLES], _above_minimum(_codes_of_5)),
        ("Q2_K", 256, [("scales", "u1", 16), ("codes", "u1", 64), _SCALE, _MINIMUM], _q2_k),
        (
            "Q3_K",
            256,
            [("third", "u1", 32), ("codes", "u1", 64), ("scales", "u1", 12), _SCALE],
            _q3_k,
        ),
        ("Q4_K", 256, [*_K_HEAD, ("codes", "u1", 128)], _q4_k),
        ("Q5_K", 256, [*_K_HEAD, ("fifth", "u1", 32), ("codes", "u1", 128)], _q5_k),
        (
            "Q6_K",
            256,
            [("codes", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), _SCALE],
            _q6_k,
        ),
        ("IQ4_NL", 32, [_SCALE, _NIBBLES], _iq4_nl),
        ("MXFP4", 32, [("scale", "u1"), _NIBBLES], _mxfp4),
    )
}
