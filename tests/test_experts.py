"""Mixtures of experts: the bytes that a forward reads, and experts in MXFP4."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd._native import testing
from specqd.errors import ConfigError, RequestError, SpecqdWarning, TensorError
from specqd.llm import LLM
from specqd.llm.draft_words import parse_chain
from specqd.model.model import Machine, Model
from specqd.model.weights import bytes_to_pack
from support import reference
from support.families import FAMILY_SHAPES
from support.fp4 import bf16_values
from support.random_models import (
    change_model,
    drop,
    make_model,
    put,
    read_model,
    resize,
    unstack_experts,
)
from support.refusals import refused

MACHINE = Machine.choose(1)
GPT_OSS = FAMILY_SHAPES["gpt_oss"]
MIXTURES = ("mixtral", "qwen3_moe", "gpt_oss", "lfm2_moe")
BESIDE = (  # a shared feed forward
    *("qwen3_5_moe_text", "qwen3_next", "gemma4_text, experts"),
    *("glm4_moe", "glm4_moe_lite", "deepseek_v3"),
)
each_mixture = pytest.mark.parametrize("name", MIXTURES)
SHARED = FAMILY_SHAPES["qwen3_5_moe_text"]


@pytest.mark.parametrize("name", [*MIXTURES, *BESIDE])
def test_a_row_reads_the_experts_it_chooses(name: str, tmp_path: Path, seed: int) -> None:
    model = Model.open(make_model(tmp_path, FAMILY_SHAPES[name], seed), machine=MACHINE)
    assert model.config.experts is not None
    sizes = {True: 0.0, False: 0.0}
    for matrix in model.weights.matrices:
        planes = matrix.weight.plane_bytes()
        sizes[matrix.read_share < 1] += sum(planes.values()) * matrix.read_share
    assert model.bytes_per_forward == pytest.approx(sum(sizes.values()), rel=1e-3)
    all_experts = sum(
        2 * matrix.weight.rows * matrix.weight.columns for matrix in model.weights.matrices
    )
    assert 0 < model.bf16_bytes_per_forward < all_experts


@each_mixture
def test_unchosen_experts_do_not_matter(name: str, tmp_path: Path, seed: int) -> None:
    """With a single token, each layer chooses one set of experts; all others may change."""
    shape = FAMILY_SHAPES[name]
    directory = make_model(tmp_path, shape, seed)
    tokens = [7]
    expected = Model.open(directory, machine=MACHINE).logits(tokens)
    config, _ = read_model(directory)
    count = config.get("num_local_experts") or config["num_experts"]
    unmoved = 0
    for expert in range(count):
        change_model(directory, partial(negate, expert))
        found = Model.open(directory, machine=MACHINE).logits(tokens)
        change_model(directory, partial(negate, expert))
        unmoved += bool((found == expected).all())
    # An expert's number may be chosen in one layer and not in another.
    assert unmoved >= count - shape.layers * config["num_experts_per_tok"]
    assert unmoved < count


def negate(expert: int, tensors: dict[str, Any]) -> None:
    for name, bits in tensors.items():
        if f"experts.{expert}." in name:
            bits ^= np.uint16(0x8000)
        if name.endswith("_blocks"):
            bits[expert] ^= 0x88


def test_mxfp4_experts_are_used_unchanged(tmp_path: Path, seed: int) -> None:
    model = Model.open(make_model(tmp_path, GPT_OSS, seed), machine=MACHINE)
    expected = reference.values(read_model(tmp_path)[1])
    taken = [matrix for matrix in model.weights.matrices if matrix.weight.is_mxfp4]
    assert len(taken) == GPT_OSS.layers * 5 * 2
    for matrix in taken:
        [name] = matrix.names
        tensor, _, expert = name.removesuffix("]").partition("[")
        found = bf16_values(testing.unpack(matrix.weight, MACHINE.isa))
        rows = expected[tensor][int(expert)]
        if "gate_up" in name:  # rows of gate and up alternate in the file
            rows = np.concatenate([rows[::2], rows[1::2]])
        np.testing.assert_array_equal(found, rows)
        planes = matrix.weight.plane_bytes()
        assert planes["residuals"] == planes["patches"] == planes["plain"] == 0


def test_only_n_grams_and_other_models_draft_for_mxfp4_weights(tmp_path: Path, seed: int) -> None:
    make_model(tmp_path, GPT_OSS, seed)
    with pytest.warns(SpecqdWarning, match="already MXFP4"):
        llm = LLM(tmp_path, threads=1)
    assert [type(level).__name__ for level in llm.engine.level.levels] == ["Level", "NgramDrafter"]
    with pytest.raises(RequestError, match="already MXFP4"):
        llm.with_draft(["fp4", "ngram"])
    assert parse_chain("auto", is_mxfp4=True) == parse_chain("ngram")


def test_stacked_experts_and_one_tensor_for_each_are_the_same_model(
    tmp_path: Path, seed: int
) -> None:
    stacked = Model.open(make_model(tmp_path, SHARED, seed), machine=MACHINE)
    expected, counted = stacked.logits(range(40)), bytes_to_pack(tmp_path)
    change_model(tmp_path, unstack_experts)
    model = Model.open(tmp_path, machine=MACHINE)
    np.testing.assert_array_equal(model.logits(range(40)), expected)
    assert model.weights.parameters == stacked.weights.parameters
    assert counted == bytes_to_pack(tmp_path)  # and the memory that packing is said to need


def test_stacks_in_fp32_are_rounded_part_by_part(tmp_path: Path, seed: int) -> None:
    expected = Model.open(make_model(tmp_path, SHARED, seed), machine=MACHINE).logits(range(9))

    def widen(tensors: dict[str, Any]) -> None:
        for name in (name for name in tensors if "experts." in name):
            tensors[name] = bf16_values(tensors[name]).astype(np.float32)

    change_model(tmp_path, widen)
    with pytest.warns(SpecqdWarning, match="FP32; they are rounded to BF16 once"):
        found = Model.open(tmp_path, machine=MACHINE).logits(range(9))
    np.testing.assert_array_equal(found, expected)


def with_scale(byte: int) -> Callable[[dict[str, Any]], None]:
    def set_scale(tensors: dict[str, Any]) -> None:
        name = "model.layers.1.mlp.experts.gate_up_proj"
        tensors[f"{name}_blocks"] = tensors[f"{name}_blocks"] | 1
        tensors[f"{name}_scales"][3, 5, 1] = byte

    return set_scale


@pytest.mark.parametrize(
    ("damage", "mentions"),
    [
        (drop("model.layers.0.mlp.experts.down_proj_blocks"), "down_proj_blocks is missing"),
        (with_scale(255), "scale of [3, 5, 1]"),
        (with_scale(1), "scale of [3, 5, 1]"),
    ],
)
def test_damaged_mxfp4_is_refused(
    damage: Callable[[dict[str, Any]], None], mentions: str, tmp_path: Path, seed: int
) -> None:
    change_model(make_model(tmp_path, GPT_OSS, seed), damage)
    assert mentions in refused(TensorError, Model.open, tmp_path, machine=MACHINE)


@pytest.mark.parametrize(
    ("damage", "changes", "mentions"),
    [
        (
            drop("model.layers.1.mlp.experts.down_proj"),
            {},
            ["tensor 'model.layers.1.mlp.experts.down_proj' is missing", "[9, 72, 36]"],
        ),
        (drop("model.layers.3.mlp.shared_expert_gate.weight"), {}, ["shared_expert_gate"]),
        (drop("model.layers.0.mlp.shared_expert.up_proj.weight"), {}, ["shared_expert.up_proj"]),
        (
            resize("model.layers.2.mlp.experts.gate_up_proj", 9, 72, 71),
            {},
            ["has shape [9, 72, 71], [9, 72, 72] was expected"],
        ),
        (dict, {"num_experts": 10_000}, ["[9, 72, 72], [10000, 72, 72] was expected"]),
        (dict, {"moe_intermediate_size": 2**31 - 1}, ["[9, 4294967294, 72] was expected"]),
        (dict, {"shared_expert_intermediate_size": 2**31 - 1}, ["[2147483647, 72] was expected"]),
        (
            put("model.layers.2.mlp.experts.down_proj", (3, 5, 1), 0x7FC0),
            {},
            ["model.layers.2.mlp.experts.down_proj[3][5, 1] is NaN or infinite"],
        ),
    ],
)
def test_damaged_stacks_and_hostile_sizes_get_one_line(
    damage: Callable[[dict[str, Any]], object],
    changes: dict[str, Any],
    mentions: list[str],
    tmp_path: Path,
    seed: int,
) -> None:
    change_model(make_model(tmp_path, SHARED, seed), damage, **changes)
    message = refused(TensorError, Model.open, tmp_path, machine=MACHINE)
    for mention in mentions:
        assert mention in message


@pytest.mark.parametrize(
    "name",
    [
        "experts.gate_up_proj", "experts.down_proj", "router.proj.weight", "router.scale",
        "router.per_expert_scale", "pre_feedforward_layernorm_2.weight",
        "post_feedforward_layernorm_1.weight", "post_feedforward_layernorm_2.weight",
    ],
)  # fmt: skip
def test_a_part_that_a_mixture_lacks_is_named(name: str, tmp_path: Path, seed: int) -> None:
    make_model(tmp_path, FAMILY_SHAPES["gemma4_text, experts"], seed)
    change_model(tmp_path, drop(f"model.layers.2.{name}"))
    message = refused(TensorError, Model.open, tmp_path, machine=MACHINE)
    assert f"tensor 'model.layers.2.{name}' is missing" in message


@pytest.mark.parametrize(
    ("changes", "mentions"),
    [
        ({"quantization_config": None}, "MXFP4 checkpoint"),
        ({"quantization_config": {"quant_method": "gptq"}}, "MXFP4 checkpoint"),
        ({"swiglu_limit": 5.0}, "swiglu_limit is 5.0"),
        ({"intermediate_size": 40}, "multiples of 32"),
    ],
)
def test_other_forms_of_gpt_oss_are_refused(
    changes: dict[str, Any], mentions: str, tmp_path: Path, seed: int
) -> None:
    change_model(make_model(tmp_path, GPT_OSS, seed), **changes)
    with pytest.raises(ConfigError, match=mentions):
        Model.open(tmp_path, machine=MACHINE)
