"""Inputs are measured on a text, and `specqd pack` weights the errors of drafts by them."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd._native import FEEDBACK_INPUTS, available_isas, testing
from specqd.errors import RequestError
from specqd.formats.bf16 import widened
from specqd.formats.fp4 import DraftFormat
from specqd.hub import shipped_model
from specqd.model.importance import Importance, LayerInputs, MeasuredInputs
from specqd.model.input_measurement import measure_inputs
from specqd.model.model import Machine, Model
from specqd.model.packed import PackedFile
from specqd.text.calibration import read_calibration
from specqd.text.tokenizer import Tokenizer
from support import fp4
from support.command_line import Refuse, Run
from support.families import FAMILY_SHAPES
from support.random_models import Shape, make_model, read_model
from support.small_tokenizers import CONFIG, byte_level, saved

PARTS = ("query_key_value", "output", "gate_up", "down")
SHAPE = Shape("llama", hidden=64, ffn=96, vocab=259, layers=2)


def opened(directory: Path, threads: int = 1, draft: DraftFormat | None = None) -> Model:
    return Model.open(directory, machine=Machine.choose(threads), draft=draft)


def test_inputs_of_the_first_layer_are_its_normed_embeddings(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    hidden = FEEDBACK_INPUTS + 64
    shape = Shape("llama", hidden=hidden, heads=4, ffn=96, vocab=259, layers=2)
    model = opened(make_model(tmp_path, shape, seed))
    config, tensors = read_model(tmp_path)
    tokens = [[int(i) for i in rng.integers(0, 259, n)] for n in (1, 2, 40)]
    measured = measure_inputs(model, tokens)
    rows = widened(tensors["model.embed_tokens.weight"]).astype(np.float64)[np.concatenate(tokens)]
    norm = widened(tensors["model.layers.0.input_layernorm.weight"]).astype(np.float64)
    normed = rows / np.sqrt((rows**2).mean(1, keepdims=True) + config["rms_norm_eps"]) * norm
    found = measured.layers[0].query_key_value
    assert found is not None
    assert found.products is not None
    # fp32 in the norm: a few hundred roundings of one sum; then 43 of products and 43 of sums.
    bound = 600 * 2.0**-24
    for first, count in ((0, FEEDBACK_INPUTS), (FEEDBACK_INPUTS, 64)):
        group = normed[:, first : first + count]
        later = np.triu_indices(count)
        limit = np.abs(group).T @ np.abs(group) * bound
        error = np.abs(found.products[first : first + count, :count] - group.T @ group)
        assert (error <= limit)[later].all()
    at = np.arange(hidden)
    np.testing.assert_array_equal(found.squares, found.products[at, at % FEEDBACK_INPUTS])
    down, head = measured.layers[1].down, measured.head
    assert down is not None
    assert [len(down.squares), len(head.squares)] == [96, hidden]


WAYS = [*((isa, 1, 512) for isa in available_isas()), ("portable", 2, 9)]


@pytest.mark.parametrize(("isa", "threads", "max_rows"), WAYS)
def test_sums_depend_neither_on_instruction_sets_nor_threads_nor_the_parts_of_a_text(
    isa: str, threads: int, max_rows: int, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    make_model(tmp_path, SHAPE, seed)
    tokens = [int(i) for i in rng.integers(0, 259, 70)]
    expected, found = (
        measure_inputs(Model.open(tmp_path, machine=machine, max_rows=rows), [tokens])
        for machine, rows in (
            (Machine.choose(1, "portable"), 512),
            (Machine.choose(threads, isa), max_rows),
        )
    )
    for ours, theirs in zip(found.layers, expected.layers, strict=True):
        for name in PARTS:
            assert_same_sums(getattr(ours, name), getattr(theirs, name))
    assert_same_sums(found.head, expected.head)


def assert_same_sums(ours: Importance, theirs: Importance) -> None:
    assert ours.products is not None
    assert theirs.products is not None
    later = np.triu(np.ones((len(ours.squares),) * 2, bool))
    for found, expected in ((ours.products, theirs.products), (ours.squares, theirs.squares)):
        is_summed = later if found.ndim == 2 else slice(None)
        found, expected = (each[..., : len(ours.squares)][is_summed] for each in (found, expected))
        np.testing.assert_array_equal(found, expected)


def scales_of(model: Model, name: str) -> np.ndarray:
    [weight] = [each.weight for each in model.weights.matrices if name in each.names]
    return np.array(weight.planes()["scales"])


BESIDE_EXPERTS = ("experts", "shared_expert")
LATENT = ("q_a_proj", "q_b_proj", "kv_b_proj")
PER_LAYER = ("per_layer_input_gate", "per_layer_projection", "per_layer_model_projection")


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("qwen3_5_moe_text", BESIDE_EXPERTS),
        ("qwen3_next", BESIDE_EXPERTS),
        ("lfm2_moe", ("experts", "conv")),
        ("gemma4_text", PER_LAYER),
        ("gemma4_text, experts", ("experts", "mlp")),
        ("deepseek_v3", ("experts", "shared_experts", *LATENT)),
    ],
)
def test_matrices_of_every_kind_are_measured(
    name: str, modules: tuple[str, ...], tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    shape = FAMILY_SHAPES[name]
    if modules == PER_LAYER:  # with its 8 outputs, a matrix in fourteen keeps its scales
        shape = replace(shape, extra=shape.extra | {"hidden_size_per_layer_input": 40})
    directory = make_model(tmp_path, shape, seed)
    inputs = measure_inputs(opened(directory), [rng.integers(0, shape.vocab, 90).tolist()])
    measured = Model.open(directory, machine=Machine.choose(1), inputs=inputs)
    unmeasured = opened(directory)
    for module in modules:
        changed = [
            ours.weight.planes()["scales"].tobytes() != theirs.weight.planes()["scales"].tobytes()
            for ours, theirs in zip(
                measured.weights.matrices, unmeasured.weights.matrices, strict=True
            )
            if any(f".{module}." in each for each in ours.names)
        ]
        # A small matrix may keep its scales, which are powers of two.
        assert sum(changed) > len(changed) / 2, module


def test_experts_and_the_one_beside_them_read_the_same_inputs(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    shape = FAMILY_SHAPES["qwen3_5_moe_text"]
    model = opened(make_model(tmp_path, shape, seed))
    for layer in measure_inputs(model, [rng.integers(0, shape.vocab, 9).tolist()]).layers:
        assert layer.gate_up is not None
        assert layer.shared_gate_up is not None
        assert_same_sums(layer.gate_up, layer.shared_gate_up)
        assert layer.per_layer_gate is None


def test_loading_weights_errors_by_the_squared_norm_before_a_matrix(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    directory = make_model(tmp_path, SHAPE, seed)
    _, tensors = read_model(directory)
    model = opened(directory)
    name = "model.layers.1.mlp.up_proj.weight"
    norm = widened(tensors["model.layers.1.post_attention_layernorm.weight"]).astype(np.float64)
    gate = tensors["model.layers.1.mlp.gate_proj.weight"]
    squares = norm**2
    importance = np.maximum(squares / squares.max(), 2.0**-24).astype(np.float32)
    both = np.stack([gate.reshape(-1, 16, 64), tensors[name].reshape(-1, 16, 64)], 1).reshape(
        -1, 64
    )
    blocks = fp4.cast(both, DraftFormat.FP4, importance)
    expected = blocks.scales.reshape(len(both) // 16, 16, -1).transpose(0, 2, 1).reshape(-1)
    np.testing.assert_array_equal(scales_of(model, name), expected)


@pytest.mark.parametrize("family", ["qwen2", "mixtral", "qwen3_moe", "qwen3_5_text", "lfm2"])
def test_measured_inputs_round_every_matrix_otherwise_and_keep_its_exact_bits(
    family: str, tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    model = opened(make_model(tmp_path, FAMILY_SHAPES[family], seed))
    inputs = measure_inputs(model, [[int(i) for i in rng.integers(0, 250, 50)]])
    measured = Model.open(tmp_path, machine=model.machine, inputs=inputs)
    squares_alone = MeasuredInputs(
        [
            LayerInputs(*(unpaired(getattr(each, part.name)) for part in fields(LayerInputs)))
            for each in inputs.layers
        ],
        unpaired(inputs.per_layer),
        Importance(inputs.head.squares),
    )
    nearest = Model.open(tmp_path, machine=model.machine, inputs=squares_alone)
    isa = model.machine.isa
    for loaded, before, after in zip(
        *(each.weights.matrices for each in (model, nearest, measured)), strict=True
    ):
        bits = testing.unpack(loaded.weight, isa)
        np.testing.assert_array_equal(testing.unpack(after.weight, isa), bits)
        assert after.weight.patch_count <= before.weight.patch_count
        codes = (np.array(each.weight.planes()["codes"]) for each in (before, after))
        is_measured = not after.names[0].endswith((".gate.weight", ".in_proj_b.weight"))
        assert (next(codes) != next(codes)).any() == is_measured, after.names


def unpaired(importance: Importance | None) -> Importance | None:
    return None if importance is None else Importance(importance.squares)


def test_pack_calibrates_on_a_text_and_says_so(
    tmp_path: Path, seed: int, run: Run, refuse: Refuse
) -> None:
    text = tmp_path / "own.jsonl"
    text.write_text(json.dumps({"text": "abc" * 30}) + "\n\n" + json.dumps({"text": "x"}) + "\n")
    model = make_model(tmp_path / "model", SHAPE, seed)
    found = {}
    for name, words in (("built-in", ()), ("none", ("none",)), ("own.jsonl", (text,))):
        calibrate = [argument for word in words for argument in ("--calibrate", word)]
        status, _, err = run("pack", model, tmp_path / "packed" / name, *calibrate)
        assert status == 0, err
        packed = opened(tmp_path / "packed" / name)
        assert packed.weights.calibration == name
        rounding = PackedFile.open(tmp_path / "packed" / name).tensors.metadata["rounding"]
        assert rounding == ("nearest" if name == "none" else "error-feedback")
        found[name] = scales_of(packed, "model.layers.0.mlp.down_proj.weight").tobytes()
        llm = LLM(tmp_path / "packed" / name, "fp4:k=4", threads=1)
        params = SamplingParams(max_tokens=30, ignore_eos=True)
        plain = LLM(model, "none", threads=1).generate([[5, 6]], params)[0].tokens
        assert llm.generate([[5, 6]], params)[0].tokens == plain
    assert (
        found["none"] == scales_of(opened(model), "model.layers.0.mlp.down_proj.weight").tobytes()
    )
    assert len(set(found.values())) == 3
    missing = refuse("pack", model, tmp_path / "p", "--calibrate", tmp_path / "nothing")
    assert "No such file or directory; name a file of JSON lines, or none" in missing


@pytest.mark.parametrize(
    ("content", "mention"),
    [
        ("", "has no text"),
        ("{", "line 1 is not JSON"),
        ('{"text": "a"}\n[1]', "line 2 has no text"),
        ('{"messages": ["a"]}', "line 1 has no text"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_a_bad_calibration_file_is_refused(
    content: str | bytes, mention: str, tmp_path: Path
) -> None:
    path = tmp_path / "text.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RequestError, match=mention):
        read_calibration(Tokenizer.open(shipped_model()), path)


def test_a_template_that_refuses_a_chat_is_told_for_the_users_own_text(tmp_path: Path) -> None:
    config = {**CONFIG, "chat_template": "{{ raise_exception('only songs') }}"}
    tokenizer = Tokenizer.open(saved(tmp_path, byte_level(), tokenizer_config_json=config))
    path = tmp_path / "text.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "ab"}]}')
    with pytest.raises(RequestError, match=r"line 1: .*only songs"):
        read_calibration(tokenizer, path)
    assert len(read_calibration(tokenizer, None).sequences) >= 40


def test_the_shipped_text_has_a_few_thousand_tokens_of_many_kinds() -> None:
    text = read_calibration(Tokenizer.open(shipped_model()), None)
    assert text.name == "built-in"
    assert len(text.sequences) >= 40
    assert sum(map(len, text.sequences)) > 3000


def test_inputs_are_only_summed_where_asked(tmp_path: Path, seed: int) -> None:
    model = opened(make_model(tmp_path, SHAPE, seed))
    with pytest.raises(RuntimeError, match=r"call watch_inputs\(\) first"):
        model.decoder.take_input_products()
