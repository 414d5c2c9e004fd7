"""The decoder against float64, and the same bits however rows are grouped."""

import gc
import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native
from specqd._native import Context, Rows, testing
from specqd.formats.fp4 import DraftFormat
from specqd.model.decoder_spec import decoder_spec
from specqd.model.model import MAX_ROWS, Machine, Model
from specqd.model.weights import load_weights
from support import fp4, reference
from support.decided_tokens import decided_tokens, rounding_error
from support.families import FAMILY_SHAPES
from support.random_models import (
    ROPE_SCALINGS,
    Shape,
    change_model,
    make_model,
    put,
    read_model,
    write_safetensors,
)
from support.reference import rms_error
from support.writers import bf16_bits

CHUNK = testing.CHUNK_POSITIONS

SHAPES = {
    "llama, 7:1 heads of 40": Shape(
        hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=172, vocab=301
    ),
    "llama, one odd row": Shape(
        hidden=67, heads=1, kv_heads=1, head_dim=6, ffn=17, layers=1, vocab=259
    ),
    "llama, biases": Shape(
        hidden=33, heads=2, kv_heads=1, head_dim=72, ffn=47, vocab=261, has_biases=True,
        rope_scaling=ROPE_SCALINGS["llama3"],
    ),
    "mistral, window 9": Shape(
        "mistral", hidden=48, heads=5, kv_heads=5, head_dim=24, ffn=65, vocab=270, window=9
    ),
    "qwen2, tied, window 33": Shape(
        "qwen2", hidden=100, heads=6, kv_heads=2, head_dim=96, layers=3, vocab=300, window=33,
        is_tied=True, rope_scaling=ROPE_SCALINGS["yarn"],
    ),
    "qwen3, 1:1": Shape(
        "qwen3", hidden=64, heads=3, kv_heads=3, head_dim=16, ffn=190, layers=3, vocab=277,
        rope_scaling=ROPE_SCALINGS["linear"],
    ),
    "llama, heads of 160": Shape(
        hidden=96, heads=3, kv_heads=1, head_dim=160, ffn=100, layers=1, vocab=267
    ),
    "qwen3, heads of 128": Shape(
        "qwen3", hidden=64, heads=4, kv_heads=2, head_dim=128, ffn=100, layers=1, vocab=266
    ),
    "gemma3, heads of 256": Shape(
        "gemma3_text", hidden=64, heads=4, kv_heads=1, head_dim=256, ffn=100, vocab=265,
        is_tied=True, window=33, extra={"sliding_window_pattern": 2},
    ),
    **FAMILY_SHAPES,
}  # fmt: skip
LONG = {
    "full": Shape(hidden=64, head_dim=32, ffn=96, context=1300),
    "heads of 256": Shape("qwen3", hidden=64, heads=2, head_dim=256, ffn=96, context=1300),
    "window 600": Shape("mistral", hidden=64, head_dim=32, ffn=96, context=1300, window=600),
    "window 100 above full": Shape(
        "qwen2", hidden=64, head_dim=32, ffn=96, context=1300, window=100
    ),
}
MACHINE = Machine.choose(1)


def open_random(
    directory: Path, shape: Shape, seed: int, draft: DraftFormat | None = None
) -> Model:
    return Model.open(make_model(directory, shape, seed), machine=MACHINE, draft=draft)


def random_tokens(seed: int, count: int, vocabulary: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocabulary, count)]


def forward_in_parts(
    model: Model, tokens: list[int], parts: list[int], *, is_draft: bool = False
) -> NDArray[np.float32]:
    """Logits of all tokens, forwarded `parts` at a time, repeated as needed."""
    chosen = model.as_draft() if is_draft else model
    context = Context(model.cache.create())
    logits, start = [], 0
    while start < len(tokens):
        count = parts[len(logits) % len(parts)]
        part = tokens[start : start + count]
        chosen.forward([Rows(context, start, part, len(part))])
        logits.append(model.decoder.logits())
        start += len(part)
    model.cache.release(context.slot)
    return np.concatenate(logits)


def mxfp4_values(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    """A matrix's values in MXFP4."""
    rows, columns = bits.shape
    return fp4.decode(fp4.cast(bits, DraftFormat.MXFP4)).reshape(rows, -1)[:, :columns]


# --- Against float64 --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_logits_err_by_no_more_than_their_roundings(name: str, tmp_path: Path, seed: int) -> None:
    shape = SHAPES[name]
    model = open_random(tmp_path, shape, seed)
    tokens = decided_tokens(tmp_path, shape, seed, 90)
    found, expected = model.logits(tokens), reference.logits(*read_model(tmp_path), tokens)
    error = rms_error(found, expected)
    print(f"RMS error {error:.5f} of {rounding_error(shape):.5f}")
    assert error < rounding_error(shape)


@pytest.mark.parametrize("name", LONG)
def test_long_sequences_are_right_over_several_chunks_of_attention(
    name: str, tmp_path: Path, seed: int
) -> None:
    shape = LONG[name]
    model = open_random(tmp_path, shape, seed)
    tokens = random_tokens(seed, 1300, shape.vocab)
    found, expected = model.logits(tokens), reference.logits(*read_model(tmp_path), tokens)
    for first, last in ((0, CHUNK), (CHUNK, 2 * CHUNK), (2 * CHUNK, 1300)):
        assert rms_error(found[first:last], expected[first:last]) < rounding_error(shape)


def test_the_fp4_precision_is_the_model_with_mxfp4_weights(tmp_path: Path, seed: int) -> None:
    """Equal but for int8 inputs: 127 steps up to the largest of 32, about 2.5 times their RMS, so
    that a product errs by 2.5 / 127 / sqrt(12) of its inputs. The variances of four products per
    layer and of the head add. The model's own head has MXFP4's values, so that the panels that a
    draft reads exactly are no exception."""
    shape = Shape(hidden=96, ffn=200)
    config, tensors = read_model(make_model(tmp_path, shape, seed))
    cast = {name: mxfp4_values(bits) for name, bits in tensors.items() if bits.ndim == 2}
    tensors["lm_head.weight"] = bf16_bits(cast["lm_head.weight"])
    write_safetensors(tmp_path / "model.safetensors", tensors)
    model = Model.open(tmp_path, machine=MACHINE, draft=DraftFormat.MXFP4)
    weights = {name: fp4.bf16_values(bits) for name, bits in tensors.items()}
    for packed in model.weights.matrices:
        weights |= {name: cast[name] for name in packed.names}
    tokens = random_tokens(seed, 60, shape.vocab)
    expected = reference.forward(reference.config_of(config), weights, tokens)
    draft = forward_in_parts(model, tokens, [60], is_draft=True)
    error = 2.5 / 127 / math.sqrt(12) * math.sqrt(4 * shape.layers + 1)
    assert rms_error(draft, expected) < 2 * error


def test_padding_of_tiny_weights_is_multiplied_by_zero(tmp_path: Path, seed: int) -> None:
    """Without patches, the smallest scales would turn padding into NaN."""
    shape = Shape(hidden=67, ffn=63, vocab=259, layers=1)
    rng = np.random.default_rng(seed)
    name = "model.layers.0.mlp.down_proj.weight"
    exponents = rng.integers(1, 7, (9, 1))  # one per row
    tiny = exponents << 7 | rng.integers(64, 128, (9, 63))
    change_model(make_model(tmp_path, shape, seed), put(name, slice(None, None, 8), tiny))
    model = Model.open(tmp_path, machine=MACHINE)
    [packed] = [m.weight for m in model.weights.matrices if m.names == (name,)]
    assert packed.is_nested
    bits = read_model(tmp_path)[1][name]
    np.testing.assert_array_equal(testing.unpack(packed, MACHINE.isa), bits)
    tokens = random_tokens(seed, 40, shape.vocab)
    for is_draft in (False, True):
        assert np.isfinite(forward_in_parts(model, tokens, [40], is_draft=is_draft)).all()
    expected = reference.logits(*read_model(tmp_path), tokens)
    assert rms_error(model.logits(tokens), expected) < rounding_error(shape)


# --- Against itself ---------------------------------------------------------------------------


each_precision = pytest.mark.parametrize("is_draft", [False, True], ids=["exact", "draft"])


@each_precision
@pytest.mark.parametrize("name", [*SHAPES, *LONG])
def test_rows_have_the_same_bits_in_parts_of_any_size(
    name: str, is_draft: bool, tmp_path: Path, seed: int
) -> None:
    shape = (SHAPES | LONG)[name]
    count, sizes = 75, [[1], [2, 3], [33], [5, 1, 17]]
    if name in LONG:
        count, sizes = 1300, [[100, 1], [411], [CHUNK - 1, 2]]
    model = open_random(tmp_path, shape, seed)
    tokens = random_tokens(seed, count, shape.vocab)
    expected = (model.as_draft() if is_draft else model).logits(tokens)
    for parts in sizes:
        found = forward_in_parts(model, tokens, parts, is_draft=is_draft)
        np.testing.assert_array_equal(found, expected, str(parts))


@each_precision
@pytest.mark.parametrize("name", SHAPES)
def test_rows_have_the_same_bits_alone_and_in_a_ragged_batch(
    name: str, is_draft: bool, tmp_path: Path, seed: int
) -> None:
    shape = SHAPES[name]
    model = open_random(tmp_path, shape, seed)
    chosen = model.as_draft() if is_draft else model
    lengths = [1, 70, 33, 2, 64, 5]
    sequences = [random_tokens(seed + i, n, shape.vocab) for i, n in enumerate(lengths)]
    alone = [forward_in_parts(model, each, [len(each)], is_draft=is_draft) for each in sequences]
    contexts = [Context(model.cache.create()) for _ in sequences]
    firsts = [len(each) * 2 // 3 for each in sequences]  # rows cached first, in one forward
    places = list(zip(contexts, sequences, firsts, strict=True))
    chosen.forward([Rows(context, 0, each[:first], 0) for context, each, first in places if first])
    assert testing.logit_rows(model.decoder) == 0
    chosen.forward([Rows(c, first, each[first:], len(each) - first) for c, each, first in places])
    expected = np.concatenate([a[first:] for a, first in zip(alone, firsts, strict=True)])
    np.testing.assert_array_equal(model.decoder.logits(), expected)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads: int, tmp_path: Path, seed: int) -> None:
    for i, shape in enumerate(SHAPES.values()):
        model = open_random(tmp_path / str(i), shape, seed)
        other = Model.open(tmp_path / str(i), machine=Machine.choose(threads))
        tokens = random_tokens(seed, 50, shape.vocab)
        np.testing.assert_array_equal(other.logits(tokens), model.logits(tokens))


# --- Forwards ---------------------------------------------------------------------------------


def test_only_requested_logits_are_computed(tmp_path: Path, seed: int) -> None:
    model = open_random(tmp_path, Shape(), seed)
    tokens = random_tokens(seed, 20, 320)
    expected = model.logits(tokens)
    context = Context(model.cache.create())
    model.forward([Rows(context, 0, tokens, 3)])
    assert testing.logit_rows(model.decoder) == 3
    np.testing.assert_array_equal(model.decoder.logits(), expected[-3:])


def test_more_rows_of_logits_than_tokens_are_refused(tmp_path: Path, seed: int) -> None:
    model = open_random(tmp_path, Shape(), seed)
    context = Context(model.cache.create())
    with pytest.raises(ValueError, match="more logits than tokens"):
        model.forward([Rows(context, 0, [1, 2], 3)])
    for start, count, logits in ((-64, 2, 1), (0, 2, 3), (0, 2, -1)):
        with pytest.raises(ValueError, match="ask for more logits than tokens"):
            model.decoder.forward(
                False, model.cache, [1, 2], [context.slot], [start], [count], [logits]
            )


def test_prompts_are_scored_in_parts_whose_logits_take_bounded_memory(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_random(tmp_path, Shape(), seed)
    tokens = random_tokens(seed, 100, 320)
    expected = model.logits(tokens)
    monkeypatch.setattr("specqd.model.model._MOST_LOGITS", 7 * 320 + 100)
    sizes = []
    parts = model.prefill(Context(model.cache.create()), tokens, len(tokens))
    for at, row in enumerate(parts):
        sizes.append(testing.logit_rows(model.decoder))
        np.testing.assert_array_equal(row, expected[at])
    assert len(sizes) == 100
    assert max(sizes) == 7


def test_a_long_prompt_is_forwarded_in_parts(tmp_path: Path, seed: int) -> None:
    model = open_random(tmp_path, LONG["full"], seed)
    sequences = [random_tokens(seed + i, n, 320) for i, n in enumerate((1200, 30, 700))]
    expected = np.concatenate([model.logits(sequence)[-2:] for sequence in sequences])
    contexts = [Context(model.cache.create()) for _ in sequences]
    assert sum(map(len, sequences)) > 3 * MAX_ROWS
    model.forward([Rows(c, 0, each, 2) for c, each in zip(contexts, sequences, strict=True)])
    np.testing.assert_array_equal(model.decoder.logits(), expected)
    assert [context.length for context in contexts] == [1200, 30, 700]


def test_the_decoder_keeps_its_embedding_alive(tmp_path: Path, seed: int) -> None:
    model = open_random(tmp_path, Shape(), seed)
    config = model.config
    weights = load_weights(tmp_path, config, MACHINE.pool, MACHINE.isa)
    assert weights.embedding is not None
    embedding = weights.embedding.copy()
    decoder = _native.Decoder(
        pool=MACHINE.pool, isa=MACHINE.isa, spec=decoder_spec(config),
        layers=weights.layers, final_norm=weights.final_norm, head=weights.head,
        embedding=embedding, max_rows=8,
    )  # fmt: skip
    alive = weakref.ref(embedding)
    del embedding
    gc.collect()
    assert alive() is not None
    del decoder
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("activation", ["silu", "clamped_swiglu"])
def test_an_activation_that_multiplies_needs_a_gate(
    activation: Any, tmp_path: Path, seed: int
) -> None:
    model = open_random(tmp_path, FAMILY_SHAPES["starcoder2"], seed)
    weights, spec = model.weights, decoder_spec(replace(model.config, activation=activation))
    with pytest.raises(ValueError, match="without a gate"):
        _native.Decoder(
            pool=MACHINE.pool, isa=MACHINE.isa, spec=spec, layers=weights.layers,
            final_norm=weights.final_norm, head=weights.head, embedding=None, max_rows=8,
        )  # fmt: skip


@pytest.mark.parametrize(("shape", "activation"), [("apertus", "gelu"), ("arcee", "xielu")])
def test_xielu_alone_has_parameters(shape: str, activation: Any, tmp_path: Path, seed: int) -> None:
    model = open_random(tmp_path, FAMILY_SHAPES[shape], seed)
    weights, spec = model.weights, decoder_spec(replace(model.config, activation=activation))
    with pytest.raises(ValueError, match="four parameters"):
        _native.Decoder(
            pool=MACHINE.pool, isa=MACHINE.isa, spec=spec, layers=weights.layers,
            final_norm=weights.final_norm, head=weights.head, embedding=None, max_rows=8,
        )  # fmt: skip


def test_bytes_per_forward_are_those_of_the_planes_it_reads(tmp_path: Path, seed: int) -> None:
    model = open_random(tmp_path, Shape(), seed)
    planes = [packed.weight.plane_bytes() for packed in model.weights.matrices]
    assert model.bytes_per_forward == sum(sum(each.values()) for each in planes)
    draft = sum(each["codes"] + each["scales"] for each in planes)
    assert model.as_draft().bytes_per_forward == draft
