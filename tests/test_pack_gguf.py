"""`specqd pack` of a GGUF file writes a packed directory of the same model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.config import read_config
from specqd.model.model import Machine, Model
from specqd.text.tokenizer import Tokenizer
from support.command_line import Run
from support.families import FAMILY_SHAPES
from support.gguf_files import Quantised, convert, converted, write_gguf
from support.random_models import ROPE_SCALINGS, Shape, make_model

SHAPES = {
    "linear": Shape(rope_scaling=ROPE_SCALINGS["linear"]),
    "tied": Shape("qwen3", hidden=100, head_dim=24, ffn=172, vocab=283, is_tied=True),
    "biased": Shape("qwen2", has_biases=True),
    "gemma3": replace(
        FAMILY_SHAPES["gemma3_text"], layers=18, rope_scaling=None, spells_rope_parameters=False
    ),
    "hybrid": replace(FAMILY_SHAPES["qwen3_5_text"], spells_rope_parameters=False),
}
CHAT = [{"role": "user", "content": "hi"}]
TEMPLATES = {
    "tokenizer__chat_template": "{{ bos_token }}{{ messages[0].content }}é",
    "tokenizer__chat_templates": ["tool_use"],
    "tokenizer__chat_template__tool_use": "tools",
}


def opened(path: Path) -> Model:
    return Model.open(path, machine=Machine.choose(1), cache_positions=64)


@pytest.fixture
def file(tmp_path: Path, seed: int) -> Path:
    model = make_model(tmp_path / "model", Shape(layers=1), seed)
    return convert(model, tmp_path / "m.gguf", "BF16", **TEMPLATES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_packed_file_has_the_bits_and_configuration_of_the_file(
    name: str, tmp_path: Path, seed: int, run: Run, rng: np.random.Generator
) -> None:
    more: dict[str, Any] = {}
    if SHAPES[name].rope_scaling:
        more = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 2.5}
    source = make_model(tmp_path / "model", SHAPES[name], seed)
    path, packed = convert(source, tmp_path / "m.gguf", "BF16", **more), tmp_path / "packed"
    status, _, err = run("pack", path, packed, "--calibrate", "none")
    assert (status, err) == (0, "")
    assert read_config(packed) == read_config(path)
    tokens = list(map(int, rng.integers(0, 256, 20)))
    ours, theirs = opened(packed), opened(path)
    np.testing.assert_array_equal(ours.logits(tokens), theirs.logits(tokens))
    draft = ours.as_draft().logits(tokens)
    np.testing.assert_array_equal(draft, theirs.as_draft().logits(tokens))


def test_a_packed_file_is_calibrated_and_generates_the_same_tokens(
    file: Path, tmp_path: Path, run: Run
) -> None:
    packed = tmp_path / "packed"
    status, _, err = run("pack", file, packed)
    assert status == 0, err
    status, out, err = run("inspect", packed)
    assert status == 0, err
    assert "calibration 'built-in'" in out
    params = SamplingParams(max_tokens=40, temperature=0.8, seed=7, ignore_eos=True)
    plain, packed_llm = LLM(file, "none", 1), LLM(packed, "auto", 1)
    for prompt in ("abcab", "the cat"):
        expected = plain.generate(prompt, params)[0]
        found = packed_llm.generate(prompt, params)[0]
        assert (found.tokens, found.text) == (expected.tokens, expected.text)


def test_a_packed_file_keeps_tokenizer_and_chat_templates(
    file: Path, tmp_path: Path, run: Run
) -> None:
    assert run("pack", file, tmp_path / "packed", "--calibrate", "none")[0] == 0
    ours, theirs = Tokenizer.open(tmp_path / "packed"), Tokenizer.open(file)
    assert ours.named_tokens == theirs.named_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert ours.chat(CHAT) == theirs.chat(CHAT)
    assert ours.render_chat(CHAT) == "<s>hié"
    assert ours.render_chat(CHAT, tools=[{}]) == "tools"


@pytest.mark.parametrize("calibrate", [(), ("--calibrate", "none")])
def test_packing_a_quantised_file_says_once_what_is_exact(
    calibrate: tuple[str, ...], tmp_path: Path, seed: int, run: Run
) -> None:
    metadata, tensors = converted(make_model(tmp_path / "model", Shape(layers=1), seed))
    written: dict[str, Any] = dict(tensors)
    written["blk.0.attn_q.weight"] = Quantised.of("Q8_0", tensors["blk.0.attn_q.weight"])
    path = write_gguf(tmp_path / "m.gguf", metadata, written)
    status, _, err = run("pack", path, tmp_path / "packed", *calibrate)
    assert status == 0, err
    assert err.count("output is exact for those BF16 weights") == 1
    assert run("inspect", tmp_path / "packed")[2] == ""
