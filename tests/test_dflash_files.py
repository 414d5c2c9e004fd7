"""Directories of block drafters: the forms that are read, and what is refused in one line."""

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
from specqd.errors import ConfigError, SpecqdError, TensorError
from specqd.model.dflash import BlockFiles, is_block_drafter, open_head
from specqd.model.heads import HeadFiles
from support.command_line import Run
from support.random_dflash import BlockShape, make_drafter
from support.random_heads import HeadShape, make_head, read_tensors
from support.random_models import Shape, make_model
from support.refusals import refused
from support.writers import write_safetensors

TARGET = Shape(layers=8, context=256)
DRAFTER = BlockShape(taps=(2, 4, 7), tokens=97)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_model(tmp_path_factory.mktemp("target"), TARGET, seed)


def change_config(directory: Path, **entries: Any) -> Path:
    config = json.loads((directory / "config.json").read_text()) | entries
    (directory / "config.json").write_text(json.dumps(config))
    return directory


# --- Forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("maker", ["z-lab", "speculators"])
@pytest.mark.parametrize("tokens", [None, 97, TARGET.vocab])
def test_a_drafter_of_every_maker_drafts(
    target: Path, tmp_path: Path, maker: Any, tokens: int | None
) -> None:
    shape = replace(DRAFTER, maker=maker, tokens=tokens, block=6)
    drafter = make_drafter(tmp_path / "drafter", TARGET, shape, 1)
    files = BlockFiles.open(drafter, read_config(target))
    assert (files.config.block, files.config.mask, files.taps) == (6, 7, (2, 4, 7))
    assert len(files.ids) == (97 if tokens == 97 else 0)
    llm = LLM(target, f"head:{drafter}:k=5", threads=1)
    [result] = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=8, ignore_eos=True))
    own, below = result.stats.levels
    assert below.name == "head:drafter"
    assert own.drafted > 0
    assert below.forwards > 0
    assert below.gigabytes > 0
    assert result.stats.chain == (own.name, below.name)


def test_tensors_tell_a_drafter_of_blocks_from_a_head(target: Path, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path / "drafter", TARGET, DRAFTER, 1)
    head = make_head(tmp_path / "head", TARGET, HeadShape(tokens=97), 1)
    change_config(drafter, architectures=["LlamaForCausalLMEagle3"])
    assert isinstance(open_head(drafter, read_config(target)), BlockFiles)
    assert isinstance(open_head(head, read_config(target)), HeadFiles)
    assert not is_block_drafter(tmp_path)


@pytest.mark.parametrize(
    ("layers", "taps"), [(1, (5,)), (2, (2, 6)), (3, (2, 4, 6)), (5, (2, 3, 4, 5, 6))]
)
def test_absent_ids_are_spread_over_the_layers(
    layers: int, taps: tuple[int, ...], target: Path, tmp_path: Path
) -> None:
    shape = replace(DRAFTER, layers=layers, taps=taps)
    drafter = make_drafter(tmp_path, TARGET, shape, 1)
    change_config(drafter, dflash_config={"mask_token_id": 7})
    assert BlockFiles.open(drafter, read_config(target)).taps == taps


@pytest.mark.parametrize(
    ("is_causal", "causal"),
    [(None, (True, False)), (True, (True, False)), (False, (False, False))],
)
def test_only_sliding_layers_are_causal(
    is_causal: bool | None, causal: tuple[bool, ...], target: Path, tmp_path: Path
) -> None:
    kinds = ("sliding_attention", "full_attention")
    shape = replace(DRAFTER, layer_types=kinds, window=9, is_causal=is_causal)
    files = BlockFiles.open(make_drafter(tmp_path, TARGET, shape, 1), read_config(target))
    assert files.layers.causal == causal
    assert files.layers.windows == (9, 0)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("where", ["is_causal", "causal", "sliding_window_non_causal"])
def test_makers_have_three_words_for_causality(
    where: str, is_causal: bool, target: Path, tmp_path: Path
) -> None:
    kinds = ("sliding_attention", "full_attention")
    extra = {"causal": is_causal} if where == "causal" else {}
    shape = replace(DRAFTER, layer_types=kinds, window=9, extra=extra)
    drafter = make_drafter(tmp_path, TARGET, shape, 1)
    if where == "is_causal":
        change_config(drafter, is_causal=is_causal)
    elif where == "sliding_window_non_causal":
        change_config(drafter, sliding_window_non_causal=not is_causal)
    files = BlockFiles.open(drafter, read_config(target))
    assert files.layers.causal == (is_causal, False)


# --- Refusals -------------------------------------------------------------------------------------

Tensors = dict[str, NDArray[Any]]
Damage = Callable[[dict[str, Any], Tensors], None]


def put(name: str, value: object) -> Damage:
    return lambda config, tensors: config.__setitem__(name, value)


def own(name: str, value: object) -> Damage:
    return lambda config, tensors: config["dflash_config"].__setitem__(name, value)


def resize(name: str, *shape: int) -> Damage:
    return lambda config, tensors: tensors.__setitem__(name, np.zeros(shape, np.uint16))


def drop(name: str) -> Damage:
    return lambda config, tensors: tensors.__delitem__(name)


def nan(name: str) -> Damage:
    return lambda config, tensors: tensors[name].reshape(-1).__setitem__(5, 0x7FC0)


SLIDING = ["sliding_attention", "full_attention"]
DAMAGES: dict[str, tuple[Damage, type[SpecqdError], str]] = {
    "DFlash2 by name alone": (
        put("architectures", ["DFlash2DraftModel"]), ConfigError, "conv_kernel_size",
    ),
    "DSpark": (put("architectures", ["DSparkDraftModel"]), ConfigError, "DSpark"),
    "DSpark's tensor": (resize("markov_head.weight", 4, 4), TensorError, "DSpark"),
    "DSpark's flag": (put("sample_from_anchor", True), ConfigError, "sample_from_anchor"),
    "shifted labels": (put("shift_label", True), ConfigError, "shift_label"),
    "Domino by its projector": (put("projector_type", "domino"), ConfigError, "Domino"),
    "Domino": (put("architectures", ["DominoDraftModel"]), ConfigError, "Domino"),
    "Laguna": (resize("layers.0.self_attn.g_proj.weight", 64, 64), TensorError, "Laguna"),
    "selector": (resize("candidate_selector.prefix.weight", 4, 4), TensorError, "no known head"),
    "selector of no tensors": (own("selector_rank", 24), ConfigError, "selector_top_k"),
    "convolutions of no tensors": (
        lambda config, _: config["dflash_config"].update(conv_kernel_size=2, conv_group_size=16),
        TensorError, "attention_conv",
    ),
    "mask embedding": (resize("mask_embedding.weight", 1, 64), TensorError, "of their own"),
    "quantised": (put("quantization_config", {"bits": 4}), ConfigError, "BF16"),
    "mask outside": (own("mask_token_id", TARGET.vocab), ConfigError, "another model"),
    "negative mask": (own("mask_token_id", -1), ConfigError, "mask_token_id"),
    "true mask": (own("mask_token_id", True), ConfigError, "mask_token_id"),
    "no mask": (own("mask_token_id", None), ConfigError, "mask_token_id"),
    "block of 0": (put("block_size", 0), ConfigError, "from 2 to 64"),
    "block of 1": (put("block_size", 1), ConfigError, "from 2 to 64"),
    "huge block": (put("block_size", 10**9), ConfigError, "from 2 to 64"),
    "no block": (put("block_size", None), ConfigError, "block_size"),
    "no ids": (own("target_layer_ids", []), ConfigError, "a list"),
    "ids twice": (own("target_layer_ids", [1, 1, 6]), ConfigError, "different ones"),
    "ids outside": (own("target_layer_ids", [1, 3, 8]), ConfigError, "from 0 to 8"),
    "ids below": (own("target_layer_ids", [-2, 3, 6]), ConfigError, "from 0 to 8"),
    "ids of no kind": (own("target_layer_ids", "all"), ConfigError, "a list"),
    "one id less": (own("target_layer_ids", [1, 3]), TensorError, "fc.weight"),
    "another depth": (put("num_target_layers", 36), ConfigError, "another model"),
    "short layer types": (put("layer_types", SLIDING[:1]), ConfigError, "a list of 2"),
    "unknown layer types": (put("layer_types", ["full_attention", "x"]), ConfigError, "known"),
    "sliding without a window": (put("layer_types", SLIDING), ConfigError, "sliding_window"),
    "flag that is no flag": (put("is_causal", "no"), ConfigError, "is_causal"),
    "negative scale": (own("input_embedding_scale", -1.0), ConfigError, "input_embedding_scale"),
    "another width": (put("hidden_size", 48), ConfigError, "fc.weight has 64 rows"),
    "another width within": (put("intermediate_size", 99), TensorError, "mlp"),
    "more layers": (put("num_hidden_layers", 3), TensorError, "layers.2"),
    "fewer layers": (put("num_hidden_layers", 1), TensorError, "no known head"),
    "heads of 1,000,000": (put("num_attention_heads", 1_000_000), TensorError, "q_proj"),
    "unknown tensor": (resize("layers.0.extra.weight", 4, 4), TensorError, "no known head"),
    "no final norm": (drop("norm.weight"), TensorError, "norm.weight"),
    "no values": (drop("layers.1.self_attn.v_proj.weight"), TensorError, "v_proj"),
    "no d2t": (drop("d2t"), TensorError, "d2t is missing"),
    "fc of another model": (resize("fc.weight", 64, 3 * 48), TensorError, "fc.weight"),
    "mrope": (put("rope_scaling", {"mrope_section": [1]}), ConfigError, "mrope_section"),
    "NaN in a matrix": (nan("fc.weight"), TensorError, "NaN"),
    "NaN in a norm": (nan("hidden_norm.weight"), TensorError, "NaN"),
}  # fmt: skip


DFLASH2 = replace(DRAFTER, tokens=None, convolution=(2, 16), selector=(24, 16))
DAMAGES_OF_DFLASH2: dict[str, tuple[Damage, type[SpecqdError], str]] = {
    "no taps": (own("conv_kernel_size", 0), ConfigError, "from 1 to 8"),
    "more taps than rows": (own("conv_kernel_size", 9), ConfigError, "from 1 to 8"),
    "groups that do not divide": (own("conv_group_size", 24), ConfigError, "does not divide"),
    "groups of none": (own("conv_group_size", 0), ConfigError, "conv_group_size"),
    "one tap more": (own("conv_kernel_size", 3), TensorError, "base_kernel"),
    "other groups": (own("conv_group_size", 8), TensorError, "kernel_projection"),
    "no rank": (own("selector_rank", None), ConfigError, "selector_rank"),
    "another rank": (own("selector_rank", 25), TensorError, "candidate_selector"),
    "huge rank": (own("selector_rank", 10**9), ConfigError, "selector_rank"),
    "more candidates than tokens": (own("selector_top_k", 10**6), ConfigError, "selector_top_k"),
    "no candidates": (own("selector_top_k", 0), ConfigError, "selector_top_k"),
    "text for candidates": (own("selector_top_k", "16"), ConfigError, "selector_top_k"),
    "no codebook": (drop("candidate_selector.successor_codebook"), TensorError, "successor"),
    "codebook of fewer tokens": (
        resize("candidate_selector.predecessor_codebook", 8, 24), TensorError, "predecessor",
    ),
    "no convolution in a layer": (
        drop("layers.1.mlp_conv.base_kernel"), TensorError, "layers.1.mlp_conv",
    ),
    "ids of its own": (resize("lm_head.weight", 97, 64), TensorError, "d2t"),
    "NaN in a codebook": (nan("candidate_selector.successor_codebook"), TensorError, "NaN"),
    "NaN in a kernel": (nan("layers.0.attention_conv.base_kernel"), TensorError, "NaN"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shape", "damages"),
    [
        *((name, DRAFTER, DAMAGES) for name in DAMAGES),
        *((name, DFLASH2, DAMAGES_OF_DFLASH2) for name in DAMAGES_OF_DFLASH2),
    ],
)
def test_what_is_no_drafter_of_the_model_is_refused_in_one_line(
    name: str,
    shape: BlockShape,
    damages: dict[str, tuple[Damage, type[SpecqdError], str]],
    target: Path,
    tmp_path: Path,
) -> None:
    damage, kind, why = damages[name]
    drafter = make_drafter(tmp_path / "drafter", TARGET, shape, 1)
    config, tensors = json.loads((drafter / "config.json").read_text()), read_tensors(drafter)
    damage(config, tensors)
    (drafter / "config.json").write_text(json.dumps(config))
    write_safetensors(drafter / "model.safetensors", tensors)
    assert why in refused(kind, LLM, target, f"head:{drafter}", threads=1)


def test_an_embedding_of_masks_in_a_file_of_its_own_is_refused(
    target: Path, tmp_path: Path
) -> None:
    drafter = make_drafter(tmp_path, TARGET, DRAFTER, 1)
    (drafter / "mask_embedding.pt").write_bytes(b"")
    why = refused(ConfigError, LLM, target, f"head:{drafter}", threads=1)
    assert "mask_embedding.pt" in why


def test_a_drafter_of_a_width_of_its_own_needs_an_embedding(target: Path, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, TARGET, replace(DRAFTER, hidden=48), 1)
    why = refused(TensorError, LLM, target, f"head:{drafter}", threads=1)
    assert "embed_tokens.weight is missing" in why


def test_a_selector_and_ids_of_its_own_are_refused(target: Path, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, TARGET, replace(DFLASH2, tokens=97), 1)
    assert "d2t" in refused(TensorError, LLM, target, f"head:{drafter}", threads=1)


def test_only_a_pickle_is_refused(target: Path, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, TARGET, DRAFTER, 1)
    shutil.move(drafter / "model.safetensors", drafter / "pytorch_model.bin")
    assert "-converted" in refused(TensorError, LLM, target, f"head:{drafter}", threads=1)


def test_nothing_can_draft_for_a_drafter(target: Path, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, TARGET, DRAFTER, 1)
    why = refused(SpecqdError, LLM, target, [f"head:{drafter}", "ngram"], threads=1)
    assert "last" in why


# --- What a directory holds -----------------------------------------------------------------------


def test_inspect_tells_kind_block_layers_and_bytes(run: Run, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path / "drafter", TARGET, DRAFTER, 1)
    tensors = [bits for bits in read_tensors(drafter).values() if bits.dtype == np.uint16]
    matrices = sum(bits.size for bits in tensors if bits.ndim == 2)
    vectors = sum(bits.size for bits in tensors if bits.ndim == 1)
    found = json.loads(run("inspect", drafter, "--json")[1])
    assert found == {
        "directory": str(drafter),
        "kind": "DFlash drafter",
        "block": 8,
        "layers": 2,
        "hidden_size": 64,
        "parameters": matrices + vectors,
        "bf16_bytes": 2 * (matrices + vectors),
        "fp4_bytes": 2 * vectors + round(4.25 / 8 * matrices),
    }
    assert "DFlash drafter, blocks of 8 tokens" in run("inspect", drafter)[1]
    other = json.loads(
        run("inspect", make_drafter(tmp_path / "dflash2", TARGET, DFLASH2, 1), "--json")[1]
    )
    assert (other["kind"], other["block"]) == ("DFlash2 drafter", 8)
    codebooks, kernels = 2 * TARGET.vocab * 24, 2 * 2 * 2 * 2 * 64  # BF16 in drafts, too
    assert other["fp4_bytes"] - other["bf16_bytes"] * 4.25 / 16 > 1.4 * (codebooks + kernels)
    head = make_head(tmp_path / "head", TARGET, HeadShape(tokens=97), 1)
    assert "EAGLE-3 head, 0." in run("inspect", head)[1]
