"""Directories of heads: the forms that are read, and what is refused in one line."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import LLM, SamplingParams
from specqd.config import read_config
from specqd.errors import ConfigError, HubError, RequestError, SpecqdError, TensorError
from specqd.formats.fp4 import DraftFormat
from specqd.llm.draft_words import DraftSpec, parse_chain
from specqd.model.heads import HeadFiles
from specqd.model.model import Precision
from support.random_heads import HeadShape, make_head, read_tensors
from support.random_models import Shape, make_model
from support.refusals import refused
from support.writers import write_safetensors

TARGET = Shape(layers=8, context=256)
HEAD = HeadShape(tokens=97)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_model(tmp_path_factory.mktemp("target"), TARGET, seed)


# --- Forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "taps"),
    [
        ({}, (2, 4, 5)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 5]}, (2, 5)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, (2, 4, 5)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 6]}}, (2, 7)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 6], "layer_ids_are": "boundaries"}, (1, 6)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 6], "layer_ids_are": "outputs"}, (3, 7)),
        ({"eagle_aux_hidden_state_layer_ids": [0, 8]}, (0, 8)),
    ],
)
def test_ids_are_boundaries_or_layers(
    target: Path, tmp_path: Path, entries: dict[str, Any], taps: tuple[int, ...]
) -> None:
    head = make_head(tmp_path, TARGET, replace(HEAD, taps=taps), 1)
    config = json.loads((head / "config.json").read_text())
    del config["eagle_aux_hidden_state_layer_ids"], config["layer_ids_are"]
    (head / "config.json").write_text(json.dumps(config | entries))
    assert HeadFiles.open(head, read_config(target)).config.taps == taps


@pytest.mark.parametrize("maker", ["specforge", "nvidia", "speculators"])
@pytest.mark.parametrize("tokens", [None, 97, TARGET.vocab])
def test_a_head_of_every_maker_drafts(
    target: Path, tmp_path: Path, maker: Any, tokens: int | None
) -> None:
    shape = replace(HEAD, maker=maker, tokens=tokens, keeps_normed=True)
    head = make_head(tmp_path, TARGET, shape, 1)
    files = HeadFiles.open(head, read_config(target))
    assert files.config.keeps_normed
    assert len(files.ids) == (97 if tokens == 97 else 0)
    llm = LLM(target, f"head:{head}:k=2", threads=1)
    [result] = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=8, ignore_eos=True))
    stats = result.stats
    assert stats.levels[1].name == f"head:{head.name}"
    assert stats.levels[0].drafted > 0
    assert stats.levels[1].gigabytes > 0


def test_ids_of_the_target_are_offsets_from_the_heads(target: Path, tmp_path: Path) -> None:
    head = make_head(tmp_path, TARGET, HEAD, 3)
    found = HeadFiles.open(head, read_config(target)).ids
    assert list(found) == np.flatnonzero(read_tensors(head)["t2d"]).tolist()


def test_words_name_a_head() -> None:
    spec = DraftSpec.parse("head:a:b:bf16:k=3")
    assert (spec.kind, spec.source, spec.precision, spec.length) == (
        "head", "a:b", Precision.EXACT, 3,
    )  # fmt: skip
    assert DraftSpec.parse("head:a").precision is Precision.FP4
    assert DraftSpec.parse("head:a:mxfp4").format is DraftFormat.MXFP4
    assert [spec.word for spec in parse_chain(["fp4", "head:a"])] == ["fp4", "head:a"]
    assert "names no directory" in refused(RequestError, parse_chain, "head:")
    assert "last" in refused(RequestError, parse_chain, ["head:a", "ngram"])


# --- Refusals -------------------------------------------------------------------------------------

Tensors = dict[str, NDArray[Any]]
Damage = Callable[[dict[str, Any], Tensors], None]


def put(name: str, value: object) -> Damage:
    return lambda config, tensors: config.__setitem__(name, value)


def resize(name: str, *shape: int) -> Damage:
    return lambda config, tensors: tensors.__setitem__(name, np.zeros(shape, np.uint16))


def drop(name: str) -> Damage:
    return lambda config, tensors: tensors.__delitem__(name)


def offset(at: int, value: int) -> Damage:
    return lambda config, tensors: tensors["d2t"].__setitem__(at, value)


def nan(name: str) -> Damage:
    return lambda config, tensors: tensors[name].reshape(-1).__setitem__(5, 0x7FC0)


DAMAGES: dict[str, tuple[Damage, type[SpecqdError], str]] = {
    "MLA": (put("architectures", ["Eagle3DeepseekV2ForCausalLM"]), ConfigError, "MLA"),
    "P-EAGLE": (put("architectures", ["PEagleDraftModel"]), ConfigError, "P-EAGLE"),
    "P-EAGLE's tensor": (resize("mask_hidden", 1, 64), TensorError, "mask_hidden"),
    "Medusa": (put("architectures", ["MedusaModel"]), ConfigError, "Medusa"),
    "no residuals": (
        put("eagle_config", {"use_aux_hidden_state": False}), ConfigError, "use_aux_hidden_state",
    ),
    "projection": (put("eh_proj_before_attn", True), ConfigError, "eh_proj_before_attn"),
    "quantised": (put("quantization_config", {"bits": 4}), ConfigError, "BF16"),
    "mrope": (put("rope_scaling", {"mrope_section": [1]}), ConfigError, "mrope_section"),
    "unstated flag": (
        lambda config, tensors: config.update(
            architectures=["Eagle3Speculator"], norm_before_residual=None
        ),
        ConfigError, "norm_before_residual",
    ),
    "ids outside": (
        put("eagle_aux_hidden_state_layer_ids", [2, 4, 9]), ConfigError, "from 0 to 8",
    ),
    "ids that fall": (
        put("eagle_aux_hidden_state_layer_ids", [4, 2, 5]), ConfigError, "ascending",
    ),
    "ids of no kind": (put("eagle_aux_hidden_state_layer_ids", "all"), ConfigError, "a list"),
    "huge ids": (put("eagle_aux_hidden_state_layer_ids", [10**30]), ConfigError, "from 0 to 8"),
    "one id less": (put("eagle_aux_hidden_state_layer_ids", [2, 3]), TensorError, "fc.weight"),
    "another width": (
        put("hidden_size", 48), ConfigError, "hidden_size is 48, but fc.weight has 64 rows",
    ),
    "a width that is no number": (put("hidden_size", "64"), ConfigError, "hidden_size"),
    "another width within": (
        put("intermediate_size", 99), ConfigError,
        "intermediate_size is 99, but midlayer.mlp.gate_proj.weight has 120 rows",
    ),
    "no heads": (put("num_attention_heads", 0), ConfigError, "num_attention_heads"),
    "heads of 1,000,000": (put("num_attention_heads", 1_000_000), TensorError, "q_proj"),
    "odd heads": (put("num_key_value_heads", 3), ConfigError, "multiple"),
    "no fc": (drop("fc.weight"), TensorError, "no EAGLE-3 head"),
    "no hidden norm": (drop("midlayer.hidden_norm.weight"), TensorError, "no EAGLE-3 head"),
    "no d2t": (drop("d2t"), TensorError, "d2t is missing"),
    "no norm": (drop("norm.weight"), TensorError, "norm.weight"),
    "no values": (drop("midlayer.self_attn.v_proj.weight"), TensorError, "v_proj"),
    "two layers": (resize("layers.1.hidden_norm.weight", 64), TensorError, "several layers"),
    "a bias": (resize("midlayer.self_attn.q_proj.bias", 64), TensorError, "q_proj.bias"),
    "fc of another model": (resize("fc.weight", 64, 3 * 48), TensorError, "fc.weight"),
    "fc without rows": (resize("fc.weight", 0, 192), TensorError, "fc.weight"),
    "keys of another width": (
        resize("midlayer.self_attn.k_proj.weight", 32, 64), TensorError, "k_proj",
    ),
    "flat gate": (resize("midlayer.mlp.gate_proj.weight", 640), TensorError, "gate_proj"),
    "short d2t": (lambda c, t: t.update(d2t=t["d2t"][:-1]), TensorError, "d2t"),
    "d2t of floats": (lambda c, t: t.update(d2t=t["d2t"].astype("f4")), TensorError, "d2t"),
    "huge d2t": (offset(3, 2**63 - 1), TensorError, "d2t[3]"),
    "negative d2t": (offset(0, -1), TensorError, "d2t[0]"),
    "least d2t": (offset(96, -(2**63)), TensorError, "d2t[96]"),
    "d2t outside": (offset(96, TARGET.vocab - 96), TensorError, "d2t[96]"),
    "d2t that falls": (lambda c, t: t["d2t"].__setitem__(slice(1, 3), [0, -1]), TensorError, "d2t"),
    "NaN in a matrix": (nan("fc.weight"), TensorError, "NaN"),
    "NaN in a norm": (nan("midlayer.hidden_norm.weight"), TensorError, "NaN"),
    "NaN in the output": (nan("lm_head.weight"), TensorError, "NaN"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_no_head_of_the_model_is_refused_in_one_line(
    name: str, target: Path, tmp_path: Path
) -> None:
    damage, kind, why = DAMAGES[name]
    head = make_head(tmp_path / "head", TARGET, HEAD, 1)
    config, tensors = json.loads((head / "config.json").read_text()), read_tensors(head)
    damage(config, tensors)
    (head / "config.json").write_text(json.dumps(config))
    write_safetensors(head / "model.safetensors", tensors)
    assert why in refused(kind, LLM, target, f"head:{head}", threads=1)


def test_a_head_of_a_width_of_its_own_needs_an_embedding(target: Path, tmp_path: Path) -> None:
    head = make_head(tmp_path, TARGET, replace(HEAD, hidden=48), 1)
    why = refused(TensorError, LLM, target, f"head:{head}", threads=1)
    assert "embed_tokens.weight is missing" in why


def test_only_a_pickle_is_refused(target: Path, tmp_path: Path) -> None:
    head = make_head(tmp_path, TARGET, HEAD, 1)
    shutil.move(head / "model.safetensors", head / "pytorch_model.bin")
    assert "-converted" in refused(TensorError, LLM, target, f"head:{head}", threads=1)


def test_a_missing_directory_is_refused(target: Path) -> None:
    why = refused(HubError, LLM, target, "head:./none", threads=1)
    assert "draft head:./none: " in why


def test_a_head_cannot_draft_beside_weights_of_another_model(target: Path, tmp_path: Path) -> None:
    small = make_model(tmp_path / "small", replace(TARGET, hidden=48, heads=2), 5)
    head = make_head(tmp_path / "head", TARGET, HEAD, 1)
    why = refused(TensorError, LLM, target, [str(small), f"head:{head}"], threads=1)
    assert "fc.weight has 192 columns" in why
