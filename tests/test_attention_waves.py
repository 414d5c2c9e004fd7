"""Attention of many rows behind long contexts is computed in waves, which change no bit."""

from pathlib import Path

import numpy as np
import pytest

from specqd._native import testing
from specqd.model.model import Machine, Model
from support.random_models import make_model
from support.shapes import Shape

CHUNK = 512


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [0, 70, 1500])
def test_waves_hold_each_part_once_and_in_order(seed: int, window: int, is_causal: bool) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(5):
        count = int(rng.integers(1, 5))
        sequences = [(int(rng.integers(0, 5000)), int(rng.integers(1, 400))) for _ in range(count)]
        at_once, most = int(rng.choice([1, 7, 64])), int(rng.choice([1, 100, 1300, 10**6]))
        waves, largest = testing.attention_waves(sequences, (window, is_causal), at_once, most)
        assert largest <= max(most, *(rows for _, rows in sequences))
        for row, seen in enumerate(chunks_seen(sequences, window, is_causal)):
            found: list[int] = []
            for _, rows in waves:
                _, _, held, end, is_first, is_last = rows[row]
                assert held == 0 or is_first == (not found)
                found += range(end - held, end)
                assert is_last == (held > 0 and found[-1] == chunks_of_row(waves, row)[-1])
            assert found == chunks_of_row(waves, row) == list(range(found[0], found[-1] + 1))
            assert set(seen) <= set(found)
        for numbers, rows in waves:
            places = {(row, chunk): index for row, chunk, index in numbers}
            assert len(set(places.values())) == len(numbers)  # no place is used twice
            assert max(places.values(), default=0) < largest
            expected = {
                (row, end - held + i): first + i * stride
                for row, (first, stride, held, end, _, _) in enumerate(rows)
                for i in range(held)
            }
            assert places == expected


def chunks_seen(sequences: list[tuple[int, int]], window: int, is_causal: bool) -> list[list[int]]:
    """By row: the chunks of the positions to which it attends."""
    chunks = []
    for start, count in sequences:
        for position in range(start, start + count):
            first = max(position + 1 - window, 0) if window else 0
            last = position if is_causal else start + count - 1
            chunks.append(list(range(first // CHUNK, last // CHUNK + 1)))
    return chunks


def chunks_of_row(waves: list[tuple[list[tuple[int, int, int]], object]], row: int) -> list[int]:
    return [chunk for numbers, _ in waves for each, chunk, _ in numbers if each == row]


def test_a_prompt_in_several_waves_has_the_bits_of_its_parts(tmp_path: Path, seed: int) -> None:
    """Partial results of 512 rows and one chunk take 32 MiB here, half of a wave."""
    shape = Shape(hidden=64, heads=64, kv_heads=8, head_dim=256, ffn=64, layers=1, context=2048)
    model = Model.open(make_model(tmp_path, shape, seed), machine=Machine.choose(2))
    tokens = np.random.default_rng(seed).integers(0, shape.vocab, 2000).tolist()
    by_few = Model.open(tmp_path, machine=Machine.choose(2), max_rows=64)
    assert model.logits(tokens).tobytes() == by_few.logits(tokens).tobytes()
