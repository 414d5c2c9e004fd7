"""Reads the fields of sentencepiece's `tokenizer.model`, a protocol buffer, that encoding needs.

Field numbers are those of sentencepiece_model.proto. Does not know how text is split.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specqd.errors import TokenizerError
from specqd.formats.small_file import MOST_VOCABULARY_BYTES, read_small
from specqd.text.backends import NORMAL, Pieces

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # of ModelProto
_UNIGRAM, _BPE = 1, 2  # of TrainerSpec.ModelType
_ALGORITHMS = {_UNIGRAM: "a Unigram", _BPE: "a BPE", 3: "a word", 4: "a character"}


@dataclass(frozen=True, slots=True)
class SentencepieceModel:
    """A vocabulary and the ids of its begin and end tokens."""

    pieces: Pieces
    bos_id: int | None  # None: there is no such token
    eos_id: int | None


def read_sentencepiece(path: Path) -> SentencepieceModel:
    """Reads a file. Raises TokenizerError, in one line that names it."""
    try:
        return _parse(read_small(path, MOST_VOCABULARY_BYTES))
    except (ValueError, struct.error) as error:
        raise TokenizerError(f"{path}: not a sentencepiece model: {error}") from error
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(data: bytes) -> SentencepieceModel:
    texts: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if number == _PIECES:
            piece = dict(_fields(value))
            texts.append(_bytes(piece, 1).decode("utf-8"))
            scores.append(struct.unpack("<f", _bytes(piece, 2) or bytes(4))[0])
            kinds.append(_int(piece, 3, NORMAL))
        elif number == _TRAINER:
            trainer |= dict(_fields(value))
        elif number == _NORMALIZER:
            normalizer |= dict(_fields(value))
    algorithm = _int(trainer, 3, _UNIGRAM)
    if algorithm not in (_UNIGRAM, _BPE):
        raise ValueError(f"{_ALGORITHMS.get(algorithm, 'an unknown')} model is not supported")
    if _int(trainer, 24, 0) or not _int(normalizer, 5, 1):
        raise ValueError("spaces after words and unescaped spaces are not supported")
    unknown = _int(trainer, 40, 0)
    if not 0 <= unknown < len(texts):
        raise ValueError(f"the unknown piece is {unknown}, but there are {len(texts)} pieces")
    pieces = Pieces(
        algorithm="bpe" if algorithm == _BPE else "unigram",
        texts=texts,
        scores=scores,
        kinds=kinds,
        unknown_id=unknown,
        falls_back_to_bytes=bool(_int(trainer, 35, 0)),
        adds_space=bool(_int(normalizer, 3, 1)),
        squeezes_spaces=bool(_int(normalizer, 4, 1)),
        character_map=_bytes(normalizer, 2),
    )
    ends = (_int(trainer, number, default) for number, default in ((41, 1), (42, 2)))
    bos_id, eos_id = (i if 0 <= i < len(texts) else None for i in ends)
    return SentencepieceModel(pieces, bos_id, eos_id)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the numbers and values of a message's fields. Raises ValueError if it is malformed."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError("malformed")
        if size > len(data) - at:
            raise ValueError("truncated")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("truncated")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("malformed")


def _int(fields: dict[int, int | bytes], number: int, default: int) -> int:
    """Returns an int32, enum or bool field."""
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError("malformed")
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _bytes(fields: dict[int, int | bytes], number: int) -> bytes:
    value = fields.get(number, b"")
    if not isinstance(value, bytes):
        raise ValueError("malformed")
    return value
