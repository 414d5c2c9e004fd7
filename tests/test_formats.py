"""A model generates the same tokens from every file format."""

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import LLM, SamplingParams
from specqd.cli import main
from specqd.config import read_config
from specqd.errors import SpecqdWarning, TensorError
from support.families.norms_after import GRANITE
from support.gguf_files import convert
from support.random_models import ROPE_SCALINGS, Shape, change_model, make_model, read_model
from support.trained_models import SHARED_MODELS
from support.writers import bf16_bits, write_safetensors, write_shards

GREEDY = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=40, temperature=0.9, seed=7, ignore_eos=True)
GEMMA2 = {
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 20.0,
}
GEMMA3 = {"query_pre_attn_scalar": 16}
SHAPES = [
    Shape(kv_heads=4),
    Shape(has_biases=True, is_tied=True),
    Shape("qwen2", is_tied=True, vocab=301),
    Shape("qwen3", head_dim=24, rope_theta=1e6),
    Shape("olmo2", vocab=271),
    Shape("granite", has_biases=True, is_tied=True, vocab=263, extra=GRANITE),
    Shape("phi3", vocab=269),
    Shape("phi3", vocab=270, window=30),
    Shape("gemma2", layers=26, window=20, is_tied=True, vocab=263, extra=GEMMA2),
    Shape("gemma2", layers=46, heads=2, head_dim=24, window=20, is_tied=True, vocab=264,
          extra=GEMMA2 | {"query_pre_attn_scalar": 32}),
    Shape("gemma3_text", layers=18, window=20, is_tied=True, vocab=263, rope_theta=1e6,
          extra=GEMMA3),
    Shape("gemma3_text", layers=62, heads=2, head_dim=24, window=20, is_tied=True, vocab=264,
          extra=GEMMA3 | {"query_pre_attn_scalar": 32, "rope_local_base_freq": 500.0}),
]  # fmt: skip


@pytest.fixture(params=["random", "tiny1m", "pycode-3m"])
def model(request: pytest.FixtureRequest, tmp_path: Path, seed: int) -> Path:
    if request.param == "random":
        return make_model(tmp_path / "random", Shape(), seed)
    if not (SHARED_MODELS / request.param).is_dir():
        pytest.skip(f"no model {request.param} beside the repository")
    return SHARED_MODELS / request.param


def tokens(path: Path) -> list[list[int]]:
    """Returns the model's tokens, greedy and sampled, with drafts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecqdWarning)
        llm = LLM(path, "mxfp4", 1)
    return [llm.generate("Once upon a time", params)[0].tokens for params in (GREEDY, SAMPLED)]


def rewritten(
    model: Path, directory: Path, change: Callable[[NDArray[np.float32]], NDArray[Any]]
) -> Path:
    """Writes a copy of the model, in one file, with `change` applied to each tensor."""
    shutil.copytree(model, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    _, tensors = read_model(model)
    written = {
        name: change((bits.astype(np.uint32) << 16).view(np.float32))
        for name, bits in tensors.items()
    }
    write_safetensors(directory / "model.safetensors", written)
    return directory


def through_fp16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.astype(np.float16).astype(np.float32)


def test_fp32_gives_the_tokens_of_bf16(model: Path, tmp_path: Path) -> None:
    wide = rewritten(model, tmp_path / "fp32", lambda values: values)
    assert tokens(wide) == tokens(model)


def test_fp16_gives_the_tokens_of_its_values_rounded_to_bf16(model: Path, tmp_path: Path) -> None:
    half = rewritten(model, tmp_path / "fp16", lambda values: values.astype(np.float16))
    rounded = rewritten(model, tmp_path / "bf16", lambda v: bf16_bits(through_fp16(v)))
    assert tokens(half) == tokens(rounded)


def test_shards_give_the_same_tokens(model: Path, tmp_path: Path) -> None:
    directory = tmp_path / "shards"
    shutil.copytree(model, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    _, tensors = read_model(model)
    names = sorted(tensors)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    wide = {name: (tensors[name].astype(np.uint32) << 16).view(np.float32) for name in halves[1]}
    write_shards(
        directory,
        {
            "model-00001-of-00002.safetensors": {name: tensors[name] for name in halves[0]},
            "model-00002-of-00002.safetensors": wide,
        },
    )
    assert tokens(directory) == tokens(model)


@pytest.mark.parametrize("kind", ["BF16", "F32"])
def test_gguf_gives_the_same_tokens(model: Path, tmp_path: Path, kind: str) -> None:
    pre = {"tokenizer__ggml__pre": "dbrx"} if model.name == "pycode-3m" else {}
    assert tokens(convert(model, tmp_path / "m.gguf", kind, **pre)) == tokens(model)


def test_gguf_in_f16_gives_the_tokens_of_its_values_rounded(model: Path, tmp_path: Path) -> None:
    pre = {"tokenizer__ggml__pre": "dbrx"} if model.name == "pycode-3m" else {}
    path = convert(model, tmp_path / "m.gguf", "F16", **pre)

    def as_in_gguf(values: NDArray[np.float32]) -> NDArray[np.uint16]:
        return bf16_bits(through_fp16(values) if values.ndim > 1 else values)

    assert tokens(path) == tokens(rewritten(model, tmp_path / "rounded", as_in_gguf))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.model_type}-{shape.vocab}")
def test_every_family_gives_the_same_tokens_from_gguf(
    tmp_path: Path, seed: int, shape: Shape
) -> None:
    model = make_model(tmp_path / "model", shape, seed)
    path = convert(model, tmp_path / "m.gguf", "BF16")
    assert read_config(path) == read_config(model)
    assert tokens(path) == tokens(model)


@pytest.mark.parametrize("pattern", [3, None])
def test_gemmas_pattern_of_windows_and_scaled_rope_are_read_from_gguf(
    tmp_path: Path, seed: int, pattern: int | None
) -> None:
    """The pattern is a number or a list of layers. The local RoPE is not scaled."""
    shape = Shape(
        *("gemma3_text", 48, 2, 1, 16, 84), layers=18, vocab=263, window=9, is_tied=True,
        rope_scaling=ROPE_SCALINGS["linear"], extra=GEMMA3 | {"sliding_window_pattern": 3},
    )  # fmt: skip
    model = make_model(tmp_path / "model", shape, seed)
    listed = [bool((layer + 1) % 3) for layer in range(18)]
    keys = {
        "gemma3__rope__scaling__type": "linear",
        "gemma3__rope__scaling__factor": ROPE_SCALINGS["linear"]["factor"],
        "gemma3__attention__sliding_window_pattern": pattern or listed,
    }
    path = convert(model, tmp_path / "m.gguf", "F32", **keys)
    assert read_config(path) == read_config(model)
    assert tokens(path) == tokens(model)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_is_read_from_gguf(tmp_path: Path, seed: int, kind: str) -> None:
    scaling = ROPE_SCALINGS[kind]
    model = make_model(tmp_path / "model", Shape(rope_scaling=scaling), seed)
    keys = {"llama__rope__scaling__type": kind, "llama__rope__scaling__factor": scaling["factor"]}
    if kind == "yarn":
        keys["llama__rope__scaling__original_context_length"] = 64
    assert tokens(convert(model, tmp_path / "m.gguf", "BF16", **keys)) == tokens(model)


def test_a_window_is_read_from_gguf(tmp_path: Path, seed: int) -> None:
    model = make_model(tmp_path / "model", Shape("mistral", window=11), seed)
    expected = tokens(model)
    change_model(model, model_type="llama")
    window = {"llama__attention__sliding_window": 11}
    assert tokens(convert(model, tmp_path / "m.gguf", "BF16", **window)) == expected


def test_a_gguf_file_may_draft_for_a_directory(tmp_path: Path, seed: int) -> None:
    model = make_model(tmp_path / "model", Shape(), seed)
    small = convert(
        make_model(tmp_path / "small", Shape(layers=1), seed), tmp_path / "s.gguf", "F32"
    )
    with pytest.warns(SpecqdWarning, match="FP32"):
        llm = LLM(model, [str(small), "ngram"], 1)
    assert (
        llm.generate("ab", GREEDY)[0].tokens
        == LLM(model, "none", 1).generate("ab", GREEDY)[0].tokens
    )


def test_a_warning_of_one_line_says_that_weights_were_rounded(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = convert(make_model(tmp_path / "model", Shape(), seed), tmp_path / "m.gguf", "F16")
    assert main(["inspect", str(path)]) == 0
    [note] = capsys.readouterr().err.splitlines()
    assert note.startswith("specqd: note: ")
    assert note.endswith("m.gguf: the weights are FP16; they are rounded to BF16 once")


def test_a_changed_gguf_file_is_refused(tmp_path: Path, seed: int) -> None:
    path = convert(make_model(tmp_path / "model", Shape(), seed), tmp_path / "m.gguf", "BF16")
    llm = LLM(path, "none", 1)
    os.utime(path, ns=(1, 1))
    with pytest.raises(TensorError, match="was changed while it was in use"):
        llm.generate("ab", GREEDY)
