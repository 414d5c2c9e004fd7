"""Digests of all that determines a model's or a draft head's keys and values. Knows no tokens."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path

from specqd import _native
from specqd.config import DecoderConfig
from specqd.formats.safetensors import WeightSource
from specqd.model.weights import DecoderWeights

_PART = 1 << 26  # bytes of a file that are hashed at once


def model_identity(
    config: DecoderConfig, weights: DecoderWeights, precision: str, threads: int
) -> bytes:
    """SHA-256 of the weights files, the configuration, the precision and this build of SpecQD.

    Every byte of the files is read, on `threads` threads. The limit on the length of sequences is
    not part of it, except where it determines a rope.
    """
    read_as = f"{precision} {weights.draft.value}"
    return _identity(_build(), config, read_as, weights.tensors, threads)


def head_identity(
    above: bytes,
    layers: DecoderConfig,
    taps: tuple[int, ...],
    read_as: str,
    tensors: WeightSource | None,
    threads: int,
) -> bytes:
    """SHA-256 of a draft head and of the model above it, whose features are its inputs.

    above: the identity of that model. taps: the boundaries of its layers that the head reads.
    read_as: the precision and format of the head's weights. tensors: its files; None: they are the
    model's.
    """
    return _identity(above, layers, f"{taps} {read_as}", tensors, threads)


def _identity(
    base: bytes,
    config: DecoderConfig,
    read_as: str,
    tensors: WeightSource | None,
    threads: int,
) -> bytes:
    digest = sha256(base)
    digest.update(repr(replace(config, max_positions=0)).encode())
    digest.update(read_as.encode())
    with ThreadPoolExecutor(threads) as pool:
        for part in pool.map(_digest, [] if tensors is None else _parts(tensors)):
            digest.update(part)
    return digest.digest()


def _parts(tensors: WeightSource) -> Iterator[memoryview]:
    for file in sorted(tensors.files(), key=lambda file: file.path):
        content = memoryview(file.data)
        for first in range(0, len(content), _PART):
            yield content[first : first + _PART]


def _digest(part: memoryview) -> bytes:
    return sha256(part).digest()


@cache
def _build() -> bytes:
    """A digest of the native core and of the modules that read and pack weights: another build may
    compute other bits."""
    folder = Path(__file__).parent
    sources = sorted([*folder.glob("*.py"), *(folder.parent / "formats").glob("*.py")])
    digest = sha256()
    for path in (Path(_native.__file__), *sources):
        digest.update(sha256(path.read_bytes()).digest())
    return digest.digest()
