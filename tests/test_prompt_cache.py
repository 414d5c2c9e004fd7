"""Prompts that are kept on disk: the same bits, after a restart, for every kind of cache."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specqd import SamplingParams
from specqd.engine.engine import Engine
from specqd.engine.generation import GenerationRequest
from specqd.errors import SpecqdWarning
from specqd.model.scoring import score
from support.cached_models import PAGE, WINDOWED
from support.command_line import PROGRAM, Refuse
from support.engines import run_to_end
from support.families import FAMILY_SHAPES
from support.fixtures import a_model
from support.kept_prompts import (
    SHAPE,
    VOCABULARY,
    an_llm,
    assert_bits,
    pages,
    run,
    same_bits,
    tokens_of,
)
from support.openai_client import COMPLETIONS
from support.random_models import make_model, read_model
from support.served import serving
from support.writers import write_safetensors

llama = a_model(SHAPE)
windowed = a_model(WINDOWED)
latent = a_model(FAMILY_SHAPES["deepseek_v3"])
shared = a_model(FAMILY_SHAPES["gemma4_text"])
hybrid = a_model(FAMILY_SHAPES["qwen3_5_text"])
convolutions = a_model(FAMILY_SHAPES["lfm2"])

KINDS = ("llama", "windowed", "latent", "shared", "hybrid", "convolutions")


@pytest.fixture(params=KINDS)
def directory(request: pytest.FixtureRequest) -> Path:
    made: Path = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "prompts"


def test_a_restart_continues_a_prompt_with_the_same_bits(
    directory: Path, kept: Path, rng: np.random.Generator
) -> None:
    prompt = tokens_of(rng, int(rng.integers(200, 400)))
    with an_llm(directory, None) as plain:
        expected = run(plain, prompt)
    with an_llm(directory, kept) as first:
        assert same_bits(run(first, prompt), expected)
    with an_llm(directory, kept) as second:
        found = run(second, prompt)
    assert same_bits(found, expected)
    assert found.cached_prompt_tokens == (len(prompt) - 1) // PAGE * PAGE


@pytest.mark.parametrize("draft", ["fp4:k=3", "auto"])
def test_a_chat_goes_on_after_a_restart(
    directory: Path, windowed: Path, kept: Path, draft: str, rng: np.random.Generator
) -> None:
    history, parts = tokens_of(rng, 100), [tokens_of(rng, 30) for _ in range(3)]
    expected = []
    with an_llm(directory, None) as plain:
        turn = history
        for part in parts:
            expected.append(run(plain, turn, 40))
            turn = [*turn, *expected[-1].tokens, *part]
    for part, before in zip(parts, expected, strict=True):
        with an_llm(directory, kept, draft=draft) as llm:
            found = run(llm, history, 40)
        assert same_bits(found, before)
        if directory != windowed:  # how much leaves a window depends on the draft
            assert found.cached_prompt_tokens == before.cached_prompt_tokens  # as in one process
        assert (found.cached_prompt_tokens > 0) == (before is not expected[0])
        history = [*history, *found.tokens, *part]


def test_kept_pages_continue_those_in_memory(
    directory: Path, kept: Path, rng: np.random.Generator
) -> None:
    """The first pages are in memory, the next ones on disk, the last ones in neither."""
    whole = tokens_of(rng, 400)
    with an_llm(directory, kept) as llm:
        run(llm, whole[:300])
    with an_llm(directory, None) as plain:
        expected = run(plain, whole)
    with an_llm(directory, kept) as llm:
        run(llm, whole[:140])
        found = run(llm, whole)
        assert llm.model.cache.free_pages == llm.model.cache.total_pages
    assert same_bits(found, expected)
    assert found.cached_prompt_tokens == 256


def test_only_what_is_in_common_is_continued(
    llama: Path, kept: Path, rng: np.random.Generator
) -> None:
    prompt = tokens_of(rng, 300)
    with an_llm(llama, kept) as llm:
        run(llm, prompt)
    for at, held in ((0, 0), (63, 0), (64, 64), (200, 192)):
        other = [*prompt[:at], (prompt[at] + 1) % VOCABULARY, *prompt[at + 1 :]]
        with an_llm(llama, None) as plain, an_llm(llama, kept) as llm:
            found = run(llm, other)
            assert same_bits(found, run(plain, other))
            assert found.cached_prompt_tokens == held


def test_a_new_process_continues_a_prompt(
    llama: Path, kept: Path, rng: np.random.Generator
) -> None:
    text = "".join(chr(97 + each % 26) for each in tokens_of(rng, 300))
    script = (
        "import sys; from specqd import LLM, SamplingParams;"
        "from specqd.engine.generation import GenerationRequest as R;"
        "llm = LLM(sys.argv[1], 'none', prompt_cache=sys.argv[2] or None);"
        "params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True);"
        "[g] = llm.engine.submit(R([llm.encode(sys.argv[3])], params));"
        "[llm.engine.step() for _ in range(30)];"
        "print(g.cached_prompt_tokens > 0, g.tokens)"
    )

    def answer(directory: str) -> str:
        command = [sys.executable, "-c", script, str(llama), directory, text]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    plain, first, second = answer(""), answer(str(kept)), answer(str(kept))
    assert first == plain
    assert second == plain.replace("False", "True")


def test_two_processes_share_a_directory(llama: Path, kept: Path, rng: np.random.Generator) -> None:
    prompts = [tokens_of(rng, 200) for _ in range(4)]
    with an_llm(llama, None) as plain:
        expected = [run(plain, prompt) for prompt in prompts]
    with an_llm(llama, kept) as first, an_llm(llama, kept) as second:
        for llm in (first, second):
            for prompt, before in zip(prompts, expected, strict=True):
                assert same_bits(run(llm, prompt), before)
            assert first.model.prompt_store is not None
            first.model.prompt_store.writer.flush()
        assert second.engine.scheduler.cached_prompt_tokens == 4 * 192
    assert len(pages(kept)) == 4 * 3


@pytest.mark.parametrize("change", ["weights", "precision", "rope", "model"])
def test_pages_of_another_model_are_not_used(
    llama: Path, kept: Path, tmp_path: Path, change: str, rng: np.random.Generator, seed: int
) -> None:
    prompt = tokens_of(rng, 200)
    with an_llm(llama, kept) as llm:
        run(llm, prompt)
    other, options = llama, {}
    if change == "precision":
        options["precision"] = "fp4"
    elif change == "weights":  # one weight of one matrix
        other = make_model(tmp_path / "other", SHAPE, seed)
        tensors = read_model(other)[1]
        name = next(each for each in tensors if each.endswith("q_proj.weight"))
        tensors[name] = tensors[name].copy()
        tensors[name][0, 0] ^= 1
        write_safetensors(other / "model.safetensors", tensors)
    elif change == "rope":
        other = make_model(tmp_path / "other", SHAPE, seed)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps(config | {"rope_theta": 12345.0}))
    else:
        other = make_model(tmp_path / "other", SHAPE, seed + 1)
    with an_llm(other, None, **options) as plain, an_llm(other, kept, **options) as llm:
        found = run(llm, prompt)
        assert found.cached_prompt_tokens == 0
        assert same_bits(found, run(plain, prompt))


def test_another_context_uses_the_same_pages(
    llama: Path, kept: Path, rng: np.random.Generator
) -> None:
    prompt = tokens_of(rng, 200)
    with an_llm(llama, kept) as llm:
        run(llm, prompt)
    with an_llm(llama, kept, context=300) as llm:
        assert run(llm, prompt).cached_prompt_tokens == 192


def test_a_salt_keeps_prompts_apart_after_a_restart(
    llama: Path, kept: Path, rng: np.random.Generator
) -> None:
    prompt = tokens_of(rng, 200)
    with an_llm(llama, kept) as llm:
        run(llm, prompt, salt="one")
    for salt, held in (("", 0), ("two", 0), ("one", 192)):
        with an_llm(llama, kept) as llm:
            assert run(llm, prompt, salt=salt).cached_prompt_tokens == held


def test_a_damaged_page_is_read_again_and_written_again(
    directory: Path, kept: Path, rng: np.random.Generator
) -> None:
    prompt = tokens_of(rng, 300)
    with an_llm(directory, kept) as llm:
        expected = run(llm, prompt)
    for path in (*pages(kept), *kept.glob("*.state")):
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[int(rng.integers(len(whole)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.warns(SpecqdWarning, match="is damaged and was removed"):
            assert_bits(directory, kept, prompt, expected)
        assert path.read_bytes() == whole
    with an_llm(directory, kept) as llm:
        assert run(llm, prompt).cached_prompt_tokens == 256


@pytest.mark.parametrize("length", [64, 65, 128, 129])
def test_a_token_remains_to_forward(
    hybrid: Path, kept: Path, length: int, rng: np.random.Generator
) -> None:
    prompt = tokens_of(rng, length)
    with an_llm(hybrid, kept) as llm:
        expected = run(llm, prompt)
    with an_llm(hybrid, kept) as llm:
        found = run(llm, prompt)
    assert same_bits(found, expected)
    assert found.cached_prompt_tokens == (length - 1) // PAGE * PAGE


def test_contexts_of_scores_are_kept(llama: Path, kept: Path, rng: np.random.Generator) -> None:
    context, end = tokens_of(rng, 150), tokens_of(rng, 20)
    with an_llm(llama, kept) as llm:
        expected = score(llm.model, context, end)
    with an_llm(llama, kept) as llm:
        assert score(llm.model, context, end) == expected
        assert len(pages(kept)) == 2


def test_options_of_the_command_line_name_the_directory_and_its_size(
    llama: Path, kept: Path, refuse: Refuse, tmp_path: Path
) -> None:
    text = "a sentence that is repeated, " * 10
    command = [*PROGRAM, "generate", str(llama), "-p", text, "-n", "5", "--temperature", "0"]
    options = ["--prompt-cache", str(kept), "--prompt-cache-size", "50m"]
    plain = subprocess.run(command, capture_output=True, check=True).stdout
    for _ in range(2):
        ended = subprocess.run([*command, *options], capture_output=True, check=True)
        assert ended.stdout == plain
    assert pages(kept)
    tmp_path.chmod(0o777)
    message = refuse(*command[len(PROGRAM) :], "--prompt-cache", str(tmp_path))
    assert message.startswith(f"--prompt-cache {tmp_path}: other users can write")
    message = refuse(*command[len(PROGRAM) :], *options[:3], "1k")
    assert "--prompt-cache-size 1024: is too small" in message


def test_engines_of_one_model_find_each_others_salted_prompts(
    llama: Path, kept: Path, rng: np.random.Generator
) -> None:
    prompt = tokens_of(rng, 200)
    params = SamplingParams(max_tokens=3, temperature=0)
    with an_llm(llama, kept) as llm:
        run(llm, prompt, salt="one")
        engine = Engine(llm.engine.level, llm.tokenizer)
        [found] = engine.submit(GenerationRequest([prompt], params, cache_salt="one"))
        run_to_end(engine)
        assert found.cached_prompt_tokens == 192


def test_a_server_keeps_the_prompts_of_each_key(
    llama: Path, kept: Path, rng: np.random.Generator
) -> None:
    body = {"prompt": tokens_of(rng, 200), "max_tokens": 9, "temperature": 0, "ignore_eos": True}
    texts = set()
    for asked in ({"one": 0}, {"two": 0, "one": 192}):
        with serving(str(llama), "--prompt-cache", str(kept), key="one two") as served:
            for key, held in asked.items():
                header = {"Authorization": f"Bearer {key}"}
                answer = served.ask("POST", COMPLETIONS, body, header).content
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == held
                texts.add(answer["choices"][0]["text"])
    assert len(texts) == 1
