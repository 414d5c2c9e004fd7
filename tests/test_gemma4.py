"""Gemma 4: layers that share keys and values, and the table of per-layer embeddings."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import _native
from specqd._native import Context, Rows
from specqd.cli import main
from specqd.errors import MachineError, TensorError
from specqd.formats.safetensors import TensorDirectory
from specqd.model.model import Machine, Model
from specqd.model.weights import bytes_to_pack, require_memory
from support.families import FAMILY_SHAPES
from support.families.gemma import GEMMA4
from support.random_models import change_model, make_model, put, read_model, resize
from support.refusals import refused

SHAPE = FAMILY_SHAPES["gemma4_text"]
MACHINE = Machine.choose(1)
TABLE = "model.embed_tokens_per_layer.weight"
PAGE = _native.PAGE_POSITIONS


def open_model(directory: Path) -> Model:
    return Model.open(directory, machine=MACHINE, cache_positions=512)


@pytest.fixture
def directory(tmp_path: Path, seed: int) -> Path:
    return make_model(tmp_path / "model", SHAPE, seed)


@pytest.fixture
def tokens(rng: np.random.Generator) -> list[int]:
    found: list[int] = rng.integers(0, SHAPE.vocab, 70).tolist()
    return found


def test_layers_that_share_keys_and_values_take_no_memory_of_a_page(directory: Path) -> None:
    """Two sliding layers with heads of 24 and a full one with heads of 48 have their own: a key
    takes whole blocks of 32 words, a value whole panels of 16."""
    words = PAGE * (2 * (32 + 32) + (64 + 48))
    assert open_model(directory).cache.page_bytes == 2 * words


def test_tensors_of_shared_keys_and_values_are_not_read(directory: Path, tokens: list[int]) -> None:
    """Published files hold them for all layers."""
    expected = open_model(directory).logits(tokens).tobytes()
    size = {"k_proj": (24, SHAPE.hidden), "v_proj": (24, SHAPE.hidden), "k_norm": (24,)}

    def add(tensors: dict[str, Any]) -> None:
        for name, shape in size.items():
            tensors[f"model.layers.3.self_attn.{name}.weight"] = np.full(shape, 0x7FC0, np.uint16)

    change_model(directory, add)
    assert open_model(directory).logits(tokens).tobytes() == expected


def test_a_change_of_one_layers_part_of_one_token_shows_from_that_token_on(
    directory: Path, tokens: list[int]
) -> None:
    """Also in the draft, which reads the table's own bits."""
    model = open_model(directory)
    before = [each.logits(tokens) for each in (model, model.as_draft())]
    changed = tokens[40]
    first = tokens.index(changed)

    def change(tensors: dict[str, Any]) -> None:
        tensors[TABLE][changed, -8:] ^= 0x8000  # the sign of the last layer's part

    change_model(directory, change)
    model = open_model(directory)
    after = [each.logits(tokens) for each in (model, model.as_draft())]
    for old, new in zip(before, after, strict=True):
        assert (old[:first] == new[:first]).all()
        assert (old[first] != new[first]).any()


def test_a_table_entry_that_is_not_finite_is_named(directory: Path) -> None:
    change_model(directory, put(TABLE, (17, 9), 0x7F80))
    assert f"{TABLE}[17, 9] is NaN or infinite" in refused(TensorError, open_model, directory)


def test_a_table_of_another_size_is_refused(directory: Path) -> None:
    change_model(directory, resize(TABLE, SHAPE.vocab, SHAPE.layers * 8 - 1))
    message = refused(TensorError, open_model, directory)
    assert TABLE in message
    assert "was expected" in message


def test_the_table_is_read_in_place_and_its_file_must_not_change(
    directory: Path, tokens: list[int]
) -> None:
    model = open_model(directory)
    assert model.weights.embedding is None
    model.logits(tokens)
    os.utime(directory / "model.safetensors", ns=(1, 1))
    assert "changed" in refused(TensorError, model.logits, tokens)


def test_the_table_takes_no_memory_unless_it_must_be_rounded(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other matrices need less than half of the memory that there is, the table needs more."""
    shape = replace(SHAPE, vocab=4000, extra=GEMMA4 | {"hidden_size_per_layer_input": 256})
    directory = make_model(tmp_path, shape, seed)
    table = 2 * shape.vocab * shape.layers * 256
    with_table = sum(each.data.nbytes for each in TensorDirectory.open(directory).values())
    assert bytes_to_pack(directory) < with_table - table
    needed = bytes_to_pack(directory) + (256 << 20)
    assert needed < table + (256 << 20)
    monkeypatch.setattr(_native, "usable_memory", lambda: needed)
    require_memory([directory])
    change_model(directory, _widen)
    with pytest.raises(MachineError):
        require_memory([directory])


def _widen(tensors: dict[str, Any]) -> None:
    """The table in FP32."""
    tensors[TABLE] = (tensors[TABLE].astype(np.uint32) << 16).view(np.float32)


def test_a_packed_model_holds_the_table_as_it_is(
    tmp_path: Path, directory: Path, tokens: list[int]
) -> None:
    packed = tmp_path / "packed"
    text = tmp_path / "text"
    text.write_text(json.dumps({"text": "def f(x): return x " * 20}))
    assert main(["pack", str(directory), str(packed), "--calibrate", str(text)]) == 0
    view = TensorDirectory.of_file(packed / "model-packed.safetensors")[TABLE]
    assert view.data.tobytes() == read_model(directory)[1][TABLE].tobytes()
    assert open_model(packed).logits(tokens).tobytes() == (
        open_model(directory).logits(tokens).tobytes()
    )


def test_inspect_tells_the_shapes_of_layers(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(directory)]) == 0
    report = capsys.readouterr().out
    assert "4 query, 1 key/value, of 24 or 1 key/value, of 48; 3 layers share" in report
    assert "feed-forward 84 or 168" in report
    assert json.loads((directory / "config.json").read_text())["num_kv_shared_layers"] == 3


@pytest.mark.parametrize("is_draft", [False, True])
def test_rows_without_logits_change_no_bit_of_others(
    directory: Path, rng: np.random.Generator, is_draft: bool
) -> None:
    """They stop behind the last layer that has keys and values of its own."""
    exact = open_model(directory)
    model = exact.as_draft() if is_draft else exact
    texts = [rng.integers(0, SHAPE.vocab, rng.integers(2, 90)).tolist() for _ in range(4)]
    expected = [model.logits(text) for text in texts]
    contexts = [Context(model.cache.create()) for _ in texts]
    asked = [0, 1, int(rng.integers(2, len(texts[2]) + 1)), int(rng.integers(0, len(texts[3])))]
    parts = list(zip(contexts, texts, asked, strict=True))
    model.forward([Rows(context, 0, text[:-1], max(0, n - 1)) for context, text, n in parts])
    found = iter(model.decoder.logits())
    for rows, n in zip(expected, asked, strict=True):
        for row in rows[len(rows) - max(n, 1) : -1]:
            assert (next(found) == row).all()
    assert next(found, None) is None
    model.forward([Rows(context, len(text) - 1, text[-1:], 1) for context, text, _ in parts])
    for row, rows in zip(model.decoder.logits(), expected, strict=True):
        assert (row == rows[-1]).all()


def test_rows_without_logits_stop_behind_the_last_layer_with_keys(
    directory: Path, tokens: list[int]
) -> None:
    model = open_model(directory)
    model.decoder.watch_inputs()
    model.forward([Rows(Context(model.cache.create()), 0, tokens, 0)])
    *layers, _ = model.decoder.take_input_products()
    reached = [any(sums.any() for sums in layer.values()) for layer in layers]
    assert reached == [True] * 3 + [False] * 3
