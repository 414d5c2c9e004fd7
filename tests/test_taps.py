"""Taps: copies of the residual stream at layer boundaries, and features of a text."""

from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd._native import Context, Rows
from specqd.errors import RequestError
from specqd.model.model import Machine, Model
from support.families import FAMILY_SHAPES
from support.fp4 import bf16_values
from support.random_models import Shape, make_model, read_model, shorten_model
from support.refusals import refused

SHAPES = {
    "llama": Shape(hidden=280, heads=7, kv_heads=1, head_dim=40, ffn=172, layers=4, vocab=301),
    "gemma3": replace(FAMILY_SHAPES["gemma3_text"], layers=3),
    "stablelm": replace(FAMILY_SHAPES["stablelm"], layers=3),
}


def open_model(directory: Path) -> Model:
    return Model.open(directory, machine=Machine.choose(2), cache_positions=512)


def taps_of(model: Model, tokens: SequenceOf[int], boundary: int) -> NDArray[np.uint16]:
    """Taps of one forward in the model's precision: [n, hidden] BF16 bits."""
    model.decoder.tap([boundary])
    slot = model.cache.create()
    model.forward([Rows(Context(slot), 0, list(tokens), 1)])
    model.cache.release(slot)
    return model.decoder.taps()[:, 0]


@pytest.mark.parametrize("name", SHAPES)
def test_taps_are_what_a_model_without_the_layers_behind_gives_its_final_norm(
    name: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    shape = SHAPES[name]
    whole = open_model(make_model(tmp_path / "whole", shape, int(rng.integers(1 << 30))))
    tokens = rng.integers(0, shape.vocab, 70).tolist()
    for layers in range(1, shape.layers):
        short = open_model(shorten_model(tmp_path / str(layers), tmp_path / "whole", layers))
        for ours, theirs in ((whole, short), (whole.as_draft(), short.as_draft())):
            found, wanted = (taps_of(each, tokens, layers) for each in (ours, theirs))
            assert np.array_equal(found, wanted)
        assert not np.array_equal(taps_of(whole, tokens, layers), taps_of(whole, tokens, 0))


def test_boundary_0_is_the_embedding(tmp_path: Path, rng: np.random.Generator) -> None:
    shape = SHAPES["llama"]
    directory = make_model(tmp_path, shape, int(rng.integers(1 << 30)))
    tokens = rng.integers(0, shape.vocab, 9).tolist()
    embedding = read_model(directory)[1]["model.embed_tokens.weight"]
    assert np.array_equal(open_model(directory).features(tokens, [0])[:, 0], embedding[tokens])


def test_the_last_boundary_gives_the_logits_through_norm_and_head(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    shape = SHAPES["llama"]
    model = open_model(make_model(tmp_path, shape, int(rng.integers(1 << 30))))
    _, tensors = read_model(tmp_path)
    tokens = rng.integers(0, shape.vocab, 20).tolist()
    x = bf16_values(model.features(tokens, [shape.layers])[:, 0]).astype(np.float64)
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    normed *= bf16_values(tensors["model.norm.weight"])
    wanted = normed @ bf16_values(tensors["lm_head.weight"]).astype(np.float64).T
    found = model.logits(tokens)
    # Two roundings to BF16, of 2^-9 at most each, of the inputs of a product.
    assert np.sqrt(((found - wanted) ** 2).mean()) < 2**-8 * np.sqrt((wanted**2).mean())


def test_taps_change_no_logit_and_do_not_depend_on_the_company(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    shape = SHAPES["llama"]
    model = open_model(make_model(tmp_path, shape, int(rng.integers(1 << 30))))
    texts = [rng.integers(0, shape.vocab, n).tolist() for n in (1, 30, 7)]
    plain = [model.logits(text) for text in texts]
    alone = [model.features(text, [0, 2, 4]) for text in texts]
    model.decoder.tap([0, 2, 4])
    contexts = [Context(model.cache.create()) for _ in texts]
    model.forward([Rows(c, 0, text, len(text)) for c, text in zip(contexts, texts, strict=True)])
    assert np.array_equal(model.decoder.logits(), np.concatenate(plain))
    assert np.array_equal(model.decoder.taps(), np.concatenate(alone))


def test_long_texts_have_features_in_parts(tmp_path: Path, rng: np.random.Generator) -> None:
    directory = make_model(tmp_path, SHAPES["llama"], int(rng.integers(1 << 30)))
    tokens = rng.integers(0, 301, 50).tolist()
    machine = Machine.choose(1)
    small = Model.open(directory, machine=machine, cache_positions=512, max_rows=8)
    assert np.array_equal(
        small.features(tokens, [1, 3]), open_model(directory).features(tokens, [1, 3])
    )
    assert small.decoder.tapped == []


@pytest.mark.parametrize("boundaries", [[3, 1], [1, 1], [-1], [5]])
def test_boundaries_outside_the_model_are_refused(tmp_path: Path, boundaries: list[int]) -> None:
    model = open_model(make_model(tmp_path, SHAPES["llama"], 1))
    assert "from 0 to 4" in refused(RequestError, model.features, [1, 2], boundaries)
    with pytest.raises(ValueError, match="ascend"):
        model.decoder.tap(boundaries)


def test_without_taps_nothing_is_copied(tmp_path: Path) -> None:
    model = open_model(make_model(tmp_path, SHAPES["llama"], 1))
    model.logits([1, 2, 3])
    assert model.decoder.tapped == []
    assert model.decoder.taps().size == 0
