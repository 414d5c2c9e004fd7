"""MTP layers in checkpoints: the forms that are read, and what is refused in one line."""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.errors import ConfigError, RequestError, SpecqdWarning, TensorError
from specqd.formats.fp4 import DraftFormat
from specqd.llm.draft_words import DraftSpec, parse_chain
from specqd.model.model import Machine, Model, Precision
from support.command_line import Run
from support.families import FAMILY_SHAPES
from support.head_texts import Text, random_text
from support.random_models import (
    Shape,
    Tensors,
    change_model,
    drop,
    make_model,
    read_model,
    resize,
    unstack_experts,
)
from support.random_mtp import make_mtp_model, mtp_tensors, names_for
from support.refusals import refused
from support.wrapped_models import Naming, wrap_model
from support.writers import write_safetensors
from test_mtp import FAMILIES, open_mtp

SHAPES = {"mimo": Shape("qwen2", context=256)}
SHAPES |= {name: FAMILY_SHAPES[kind] for name, kind in FAMILIES.items()}
LAYERS = {name: names_for(shape).layer for name, shape in SHAPES.items()}
PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)
Change = Callable[[Any], object]


def without_layer(family: str, tensors: Tensors) -> Tensors:
    layer = mtp_tensors(SHAPES[family], 0)
    return {name: bits for name, bits in tensors.items() if name not in layer}


@pytest.fixture(params=SHAPES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def directory(family: str, tmp_path: Path, seed: int) -> Path:
    return make_mtp_model(tmp_path / "model", SHAPES[family], seed)


def guesses_of(directory: Path, rng: np.random.Generator, vocab: int) -> Any:
    """Logits of the MTP layer after a text and a guess, in both precisions."""
    tokens, guess, found = random_text(rng, vocab, 12), int(rng.integers(vocab)), []
    model = Model.open(directory, machine=Machine.choose(1), cache_positions=256)
    for precision in Precision:
        text = Text(model, open_mtp(directory, model, precision), tokens)
        text.read()
        found += [text.forward(), text.guess(guess)]
    return np.concatenate(found)


# --- Forms ----------------------------------------------------------------------------------------


def test_mimo_is_qwen2_with_a_layer_that_is_read_when_asked(
    tmp_path: Path, seed: int, rng: np.random.Generator
) -> None:
    shape = SHAPES["mimo"]
    with_layer = make_mtp_model(tmp_path / "mimo", shape, seed)
    plain = make_model(tmp_path / "qwen2", shape, seed)
    tokens = random_text(rng, shape.vocab, 20)
    ours, theirs = (Model.open(each, machine=Machine.choose(1)) for each in (with_layer, plain))
    assert np.array_equal(ours.logits(tokens), theirs.logits(tokens))
    assert ours.weights.parameters == theirs.weights.parameters


@pytest.mark.parametrize("naming", ["model.language_model.", "language_model."])
def test_the_layer_of_a_model_that_also_reads_images_is_found(
    naming: Naming, tmp_path: Path, seed: int
) -> None:
    model = make_mtp_model(tmp_path / "model", SHAPES["qwen3_5"], seed)
    wrapped = wrap_model(tmp_path / "wrapped", model, naming, tie_word_embeddings=False)
    found = [
        guesses_of(each, np.random.default_rng(seed), SHAPES["qwen3_5"].vocab)
        for each in (model, wrapped)
    ]
    assert np.array_equal(*found)


def test_the_layer_may_lie_in_a_shard_of_its_own(family: str, directory: Path, seed: int) -> None:
    vocab = SHAPES[family].vocab
    wanted = guesses_of(directory, np.random.default_rng(seed), vocab)
    _, tensors = read_model(directory)
    rest = without_layer(family, tensors)
    files = {name: f"{'rest' if name in rest else 'mtp'}.safetensors" for name in tensors}
    for file in set(files.values()):
        part = {name: bits for name, bits in tensors.items() if files[name] == file}
        write_safetensors(directory / file, part)
    (directory / "model.safetensors").unlink()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert np.array_equal(guesses_of(directory, np.random.default_rng(seed), vocab), wanted)


@pytest.mark.parametrize("calibrate", [[], ["--calibrate", "none"]])
def test_a_packed_model_keeps_its_layer(
    family: str, directory: Path, calibrate: list[str], tmp_path: Path, seed: int, run: Run
) -> None:
    status, _, err = run("pack", directory, packed := tmp_path / "packed", *calibrate)
    assert (status, err) == (0, "")
    vocab, rows = SHAPES[family].vocab, 24 if calibrate else 12  # a calibrated draft is another
    found = [guesses_of(each, np.random.default_rng(seed), vocab) for each in (directory, packed)]
    assert len(found[0]) == 24
    assert np.array_equal(found[0][:rows], found[1][:rows])
    names = [each.name for each in LLM(packed, threads=1).engine.level.levels]
    assert names[1:] == ["fp4", "mtp", "ngram"]
    why = refused(TensorError, LLM, packed, "mtp:mxfp4", threads=1)
    assert "packed as fp4" in why


def test_what_packing_leaves_out_is_told(directory: Path, tmp_path: Path, run: Run) -> None:
    for name in ("rotary.inv_freq", "visual.weight"):
        change_model(directory, resize(name, 8))
    status, _, err = run("pack", directory, tmp_path / "packed", "--calibrate", "none")
    assert status == 0
    assert err == "specqd: note: left out, as nothing reads it: rotary.inv_freq and 1 more\n"


def test_of_several_layers_the_first_drafts(
    family: str, directory: Path, seed: int, tmp_path: Path, run: Run
) -> None:
    vocab, shape = SHAPES[family].vocab, SHAPES[family]
    wanted = guesses_of(directory, np.random.default_rng(seed), vocab)
    at = LAYERS[family]
    head, own, _ = at.rsplit(".", 2)
    more = {
        name.replace(at, f"{head}.{int(own) + number}."): bits
        for number in (1, 2)
        for name, bits in mtp_tensors(shape, seed + number).items()
        if name.startswith(at)
    }
    change_model(directory, lambda tensors: tensors.update(more))
    with pytest.warns(SpecqdWarning, match="3 MTP layers; the first one drafts"):
        found = guesses_of(directory, np.random.default_rng(seed), vocab)
    assert np.array_equal(found, wanted)
    status, _, err = run("pack", directory, tmp_path / "packed", "--calibrate", "none")
    assert status == 0
    assert "the first one drafts" in err
    assert "left out" in err


def test_experts_may_be_stacked_or_tensors_of_their_own(tmp_path: Path, seed: int) -> None:
    shape = SHAPES["qwen3_5_moe"]
    directory = make_mtp_model(tmp_path, shape, seed)
    wanted = guesses_of(directory, np.random.default_rng(seed), shape.vocab)
    change_model(directory, unstack_experts)
    found = guesses_of(directory, np.random.default_rng(seed), shape.vocab)
    assert np.array_equal(found, wanted)


def test_copies_of_the_embedding_and_the_output_head_beside_the_layer_are_not_read(
    tmp_path: Path, seed: int
) -> None:
    shape = SHAPES["glm4_moe"]
    directory = make_mtp_model(tmp_path, shape, seed)
    wanted = guesses_of(directory, np.random.default_rng(seed), shape.vocab)
    for name in ("embed_tokens", "shared_head.head"):
        copy = f"model.layers.{shape.layers}.{name}.weight"
        change_model(directory, resize(copy, shape.vocab, shape.hidden))
    found = guesses_of(directory, np.random.default_rng(seed), shape.vocab)
    assert np.array_equal(found, wanted)


# --- Words ----------------------------------------------------------------------------------------


def test_words_name_the_layer() -> None:
    spec = DraftSpec.parse("mtp:bf16:k=3")
    assert (spec.kind, spec.precision, spec.length) == ("mtp", Precision.EXACT, 3)
    assert DraftSpec.parse("mtp").precision is Precision.FP4
    assert DraftSpec.parse("mtp:mxfp4").format is DraftFormat.MXFP4
    assert DraftSpec.parse("./mtp").kind == "model"
    assert "'x' is not understood" in refused(RequestError, parse_chain, "mtp:x")
    assert "last" in refused(RequestError, parse_chain, ["mtp", "ngram"])


def test_auto_takes_the_layer_where_there_is_one() -> None:
    kinds = [each.kind for each in parse_chain("auto", has_mtp=True)[0].members]
    assert kinds == ["self", "mtp", "ngram"]
    kinds = [each.kind for each in parse_chain("auto", Precision.FP4, has_mtp=True)[0].members]
    assert kinds == ["mtp", "ngram"]


def test_the_layer_of_a_small_model_drafts_below_it(
    family: str, directory: Path, tmp_path: Path, seed: int
) -> None:
    target = make_model(tmp_path / "target", replace(SHAPES[family], layers=4), seed)
    llm = LLM(target, [f"{directory}:k=4", "mtp:k=2"], threads=1)
    assert llm.engine.level.levels[2].name == "model:mtp"
    plain = llm.with_draft("none").generate([[1, 2, 3]], PARAMS)[0].tokens
    assert llm.generate([[1, 2, 3]], PARAMS)[0].tokens == plain


# --- Refusals -------------------------------------------------------------------------------------


def test_models_without_a_layer_are_refused_and_auto_goes_without(
    family: str, tmp_path: Path, seed: int
) -> None:
    llama = make_model(tmp_path / "llama", Shape(), seed)
    assert "llama have no MTP layer" in refused(TensorError, LLM, llama, "mtp", threads=1)
    bare = make_mtp_model(tmp_path / "bare", SHAPES[family], seed)
    write_safetensors(bare / "model.safetensors", without_layer(family, read_model(bare)[1]))
    assert "has no MTP layer" in refused(TensorError, LLM, bare, "mtp", threads=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        levels = LLM(bare, threads=1).engine.level.levels
    assert [each.name for each in levels[1:]] == ["fp4", "ngram"]


def test_a_model_packed_without_its_layer_says_what_to_do(
    family: str, directory: Path, tmp_path: Path, run: Run
) -> None:
    _, tensors = read_model(directory)
    write_safetensors(directory / "model.safetensors", without_layer(family, tensors))
    assert run("pack", directory, tmp_path / "packed", "--calibrate", "none")[0] == 0
    assert "pack it again" in refused(TensorError, LLM, tmp_path / "packed", "mtp", threads=1)


def nan(name: str) -> Change:
    return lambda tensors: tensors[name].reshape(-1).__setitem__(5, 0x7FC0)


# By case: the damage, to which part of the layer, the shape that it gets, and what is said.
DAMAGES: dict[str, tuple[Callable[..., Change], str, Sequence[int], str]] = {
    "no norm": (drop, "input_layernorm", (), "input_layernorm.weight"),
    "no output": (drop, "self_attn.o_proj", (), "o_proj.weight"),
    "queries of another width": (resize, "self_attn.q_proj", (32, 64), "q_proj.weight"),
    "flat gate": (resize, "mlp.gate_proj", (640,), "gate_proj.weight"),
    "no rows": (resize, "mlp.down_proj", (0, 160), "down_proj.weight"),
    "huge norm": (resize, "post_attention_layernorm", (1 << 16,), "post_attention_layernorm"),
    "experts": (resize, "mlp.experts.0.gate_proj", (8, 64), "mlp.experts.0"),
    "an output head": (resize, "shared_head.norm", (64,), "shared_head"),
    "NaN in a matrix": (nan, "self_attn.o_proj", (), "NaN"),
    "NaN in a norm": (nan, "input_layernorm", (), "NaN"),
}


def damaged(case: str, family: str, directory: Path) -> str:
    """Damages the layer; returns what the error says."""
    damage, module, shape, why = DAMAGES[case]
    change_model(directory, damage(f"{LAYERS[family]}{module}.weight", *shape))
    return why


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_no_layer_of_the_model_is_refused_in_one_line(
    name: str, family: str, directory: Path
) -> None:
    why = damaged(name, family, directory)
    assert why in refused(TensorError, LLM, directory, "mtp", threads=1)
    llm = LLM(directory, "fp4", threads=1)  # which does not read the layer
    assert len(llm.generate([[1, 2, 3]], PARAMS)[0].tokens) == 8


@pytest.mark.parametrize(
    ("family", "name"),
    [
        *(("qwen3_5_moe", f"mlp.experts.{name}_proj") for name in ("gate_up", "down")),
        *(("qwen3_next", f"mlp.experts.{name}_proj.weight") for name in ("0.gate", "4.down")),
        *((each, f"mlp.{name}.weight") for each in ("qwen3_5_moe", "qwen3_next") for name in (
            "gate", "shared_expert_gate", "shared_expert.up_proj",
        )),
        ("glm4_moe", "mlp.gate.e_score_correction_bias"), ("glm4_moe", "self_attn.k_norm.weight"),
        *(("deepseek_v3", f"self_attn.{name}.weight") for name in (
            "q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm",
            "kv_b_proj",
        )),
        ("glm4_moe_lite", "mlp.shared_experts.down_proj.weight"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["shape", "NaN", "missing"])
def test_damage_to_parts_that_only_some_layers_have_is_refused_by_name(
    name: str, kind: str, family: str, directory: Path
) -> None:
    at = LAYERS[family] + name
    damage = {"shape": resize(at, 3, 5), "NaN": nan(at), "missing": drop(at)}[kind]
    change_model(directory, damage)
    why = refused(TensorError, LLM, directory, "mtp", threads=1)
    assert name.split(".")[0] in why if kind == "missing" else name in why


@pytest.mark.parametrize("damage", ["queries of another width", "experts"])
def test_auto_goes_without_a_layer_of_another_form_and_says_so(
    damage: str, family: str, directory: Path
) -> None:
    damaged(damage, family, directory)
    with pytest.warns(SpecqdWarning, match="the MTP layer is not used"):
        llm = LLM(directory, threads=1)
    assert [each.name for each in llm.engine.level.levels[1:]] == ["fp4", "ngram"]


@pytest.mark.parametrize("part", ["projection", "embedding_norm", "hidden_norm", "final_norm"])
@pytest.mark.parametrize("kind", ["shape", "NaN"])
def test_damage_around_the_layer_is_refused_by_name(
    part: str, kind: str, family: str, directory: Path
) -> None:
    name = f"{getattr(names_for(SHAPES[family]), part)}.weight"
    change_model(directory, resize(name, 3, 5) if kind == "shape" else nan(name))
    why = refused(TensorError, LLM, directory, "mtp", threads=1)
    assert name in why
    assert ("NaN" if kind == "NaN" else "[3, 5]") in why


def test_a_field_of_another_type_is_refused(family: str, tmp_path: Path, seed: int) -> None:
    model = make_mtp_model(tmp_path, SHAPES[family], seed, mtp_reads_normed="yes")
    assert "mtp_reads_normed" in refused(ConfigError, LLM, model, "none", threads=1)


def test_the_layer_is_packed_once_for_each_format(family: str, directory: Path) -> None:
    llm = LLM(directory, "mtp:k=1", threads=1)
    before = llm.engine.level.levels[1].model.decoder
    assert llm.with_draft("mtp:k=2").engine.level.levels[1].model.decoder is before
    assert llm.with_draft(["fp4", "mtp:bf16"]).engine.level.levels[2].model.decoder is before
    assert llm.with_draft("mtp:mxfp4").engine.level.levels[1].model.decoder is not before
