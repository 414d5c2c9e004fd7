"""Latent attention: what the cache holds, and the tensors that its products are made of."""

from pathlib import Path

import numpy as np
import pytest

from specqd import _native
from specqd._native import testing
from specqd.errors import SpecqdWarning, TensorError
from specqd.llm import LLM
from specqd.model.importance import Importance
from specqd.model.input_measurement import measure_inputs
from specqd.model.model import Machine, Model
from specqd.model.mtp import has_mtp
from specqd.model.weights import left_out
from support.families import FAMILY_SHAPES
from support.random_models import change_model, drop, make_model, put, read_model
from support.refusals import refused

SHAPE = FAMILY_SHAPES["deepseek_v3"]
MACHINE = Machine.choose(1)
PAGE = _native.PAGE_POSITIONS
RANK, TURNED, PLAIN, VALUES = (
    SHAPE.extra[name]
    for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
)
KEYS_VALUES = "model.layers.1.self_attn.kv_b_proj.weight"


@pytest.fixture
def directory(tmp_path: Path, seed: int) -> Path:
    return make_model(tmp_path / "model", SHAPE, seed)


def test_a_position_takes_one_row_of_the_cache_for_all_heads(directory: Path) -> None:
    """Keys take whole blocks of 32 words, values whole panels of 16: 40 and 32 words here."""
    model = Model.open(directory, machine=MACHINE, cache_positions=64)
    assert (RANK, TURNED) == (32, 8)
    assert model.cache.page_bytes == 2 * PAGE * SHAPE.layers * (64 + 32)


def test_each_head_has_its_part_of_both_products(directory: Path) -> None:
    model = Model.open(directory, machine=MACHINE)
    heads = read_model(directory)[1][KEYS_VALUES].reshape(SHAPE.heads, PLAIN + VALUES, RANK)
    parts = {
        each.names: testing.unpack(each.weight, MACHINE.isa) for each in model.weights.matrices
    }
    keys = parts[f"{KEYS_VALUES}[keys]",].reshape(SHAPE.heads, RANK, PLAIN)
    np.testing.assert_array_equal(keys, heads[:, :PLAIN].swapaxes(1, 2))
    values = parts[f"{KEYS_VALUES}[values]",].reshape(SHAPE.heads, VALUES, RANK)
    np.testing.assert_array_equal(values, heads[:, PLAIN:])


def test_a_weight_that_is_not_finite_is_named_by_its_place_in_the_file(
    directory: Path, rng: np.random.Generator
) -> None:
    for part in (range(PLAIN), range(PLAIN, PLAIN + VALUES)):
        row = int(rng.integers(SHAPE.heads)) * (PLAIN + VALUES) + int(rng.choice(part))
        column = int(rng.integers(RANK))
        whole = read_model(directory)[1][KEYS_VALUES][row, column]
        change_model(directory, put(KEYS_VALUES, (row, column), 0x7F80))
        message = refused(TensorError, Model.open, directory, machine=MACHINE)
        assert f"{KEYS_VALUES}[{row}, {column}] is NaN or infinite" in message
        change_model(directory, put(KEYS_VALUES, (row, column), whole))


@pytest.mark.parametrize(
    "name",
    [
        "self_attn.q_a_proj.weight", "self_attn.q_a_layernorm.weight", "self_attn.q_b_proj.weight",
        "self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_a_layernorm.weight",
        "self_attn.kv_b_proj.weight", "mlp.gate.e_score_correction_bias",
        "mlp.shared_experts.up_proj.weight",
    ],
)  # fmt: skip
def test_a_missing_part_is_named(name: str, directory: Path) -> None:
    change_model(directory, drop(f"model.layers.2.{name}"))
    message = refused(TensorError, Model.open, directory, machine=MACHINE)
    assert f"tensor 'model.layers.2.{name}' is missing" in message


def test_sizes_that_do_not_fit_the_tensors_get_one_line(directory: Path) -> None:
    for name in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "q_lora_rank"):
        change_model(directory, **{name: SHAPE.extra[name] + 16})
        assert "was expected" in refused(TensorError, Model.open, directory, machine=MACHINE)
        change_model(directory, **{name: SHAPE.extra[name]})


def test_biases_of_the_choice_are_read_in_fp32(directory: Path, rng: np.random.Generator) -> None:
    """Rounded to BF16, all of these would be equal, and the first experts chosen."""
    name = "model.layers.{}.mlp.gate.e_score_correction_bias"
    count = SHAPE.extra["n_routed_experts"]
    router = {
        f"model.layers.{layer}.mlp.gate.weight": np.zeros((count, SHAPE.hidden), np.uint16)
        for layer in (1, 2)
    }
    tokens = rng.integers(0, SHAPE.vocab, 5).tolist()
    found = []
    for order in (1, -1):
        values = 8 + np.linspace(0, 2.0**-10, count, dtype=np.float32)[::order]
        biases = {name.format(layer): values for layer in (1, 2)}
        change_model(directory, lambda tensors, biases=biases: tensors.update(router | biases))
        found.append(Model.open(directory, machine=MACHINE).logits(tokens))
    assert (found[0] != found[1]).any(axis=1).all()


def test_an_mtp_layer_of_another_form_is_left_out(directory: Path) -> None:
    expected = Model.open(directory, machine=MACHINE).logits([5, 6, 7])
    names = ("eh_proj.weight", "enorm.weight", "hnorm.weight", "mlp.gate.weight")
    extra = {f"model.layers.{SHAPE.layers}.{name}": np.zeros((4, 4), np.uint16) for name in names}
    change_model(directory, lambda tensors: tensors.update(extra), num_nextn_predict_layers=1)
    model = Model.open(directory, machine=MACHINE)
    np.testing.assert_array_equal(model.logits([5, 6, 7]), expected)
    assert left_out(directory, model.weights) == sorted(extra)
    with pytest.warns(SpecqdWarning, match="the MTP layer is not used"):
        assert not has_mtp(directory, model.config)
    assert f"model.layers.{SHAPE.layers}." in refused(TensorError, LLM, directory, "mtp", threads=1)


def test_inputs_of_all_heads_are_measured_row_by_row(
    directory: Path, rng: np.random.Generator
) -> None:
    tokens = rng.integers(0, SHAPE.vocab, 60).tolist()
    whole, parts = (
        measure_inputs(
            Model.open(directory, machine=Machine.choose(threads), max_rows=rows), [tokens]
        )
        for threads, rows in ((1, 512), (2, 7))
    )
    for ours, theirs in zip(whole.layers, parts.layers, strict=True):
        for name, columns in (
            ("latent_queries", SHAPE.extra["q_lora_rank"]),
            ("latent_keys", PLAIN),
            ("latent_values", RANK),
        ):
            found, expected = getattr(ours, name), getattr(theirs, name)
            assert isinstance(found, Importance)
            assert found.squares.shape == (columns,)
            assert found.squares.all()
            np.testing.assert_array_equal(found.squares, expected.squares)
