"""Bad input gives status 1, and one line on standard error that names the problem and the place."""

import json
import math
import os
from pathlib import Path

import pytest

from specqd import LLM, _native
from specqd.errors import SpecqdError
from specqd.formats.small_file import MOST_JSON_BYTES, MOST_VOCABULARY_BYTES
from support.command_line import Refuse, Run, run_program
from support.random_models import (
    Shape,
    change_model,
    drop,
    make_config,
    make_model,
    safetensors_header,
    tensor_sizes,
    write_tokenizer,
)

SHAPE = Shape(context=64)
WEIGHTS = "model.safetensors"


@pytest.fixture
def model(tmp_path: Path, seed: int) -> Path:
    return make_model(tmp_path / "model", SHAPE, seed)


@pytest.fixture
def refused(model: Path, refuse: Refuse) -> Refuse:
    """Returns the error of `generate` with the test's model and further options."""
    return lambda *options: refuse("generate", model, "-p", "ab", "-n", "4", *options)


def test_a_good_model_is_not_rejected(model: Path, run: Run) -> None:
    status, _, err = run("generate", model, "-p", "ab", "-n", "4")
    assert status == 0
    assert err.startswith("specqd: 4 tokens")


def test_the_error_for_a_missing_directory_names_it(tmp_path: Path, refuse: Refuse) -> None:
    missing = tmp_path / "nowhere"
    assert str(missing) in refuse("generate", missing, "-p", "x")
    assert "no such file or directory" in refuse("inspect", missing)


def test_the_error_for_a_truncated_file_says_to_fetch_it_again(
    model: Path, refused: Refuse
) -> None:
    path = model / WEIGHTS
    os.truncate(path, path.stat().st_size - 100)
    problem = refused()
    assert f"{path}: truncated" in problem
    assert "fetch the file again" in problem


def test_the_error_for_a_missing_tensor_names_it(model: Path, refused: Refuse, seed: int) -> None:
    change_model(model, drop("model.layers.1.mlp.down_proj.weight"))
    problem = refused()
    assert "model.layers.1.mlp.down_proj.weight" in problem
    assert str(model) in problem


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"intermediate_size": SHAPE.ffn + 32}, "has shape [160, 64], [192, 64] was expected"),
        ({"model_type": "mamba"}, "config.json: model_type 'mamba' is not supported; known: llama"),
    ],
)
def test_a_configuration_of_another_model_is_rejected(
    model: Path, refused: Refuse, change: dict[str, object], says: str
) -> None:
    change_model(model, **change)
    assert says in refused()


def test_a_prompt_longer_than_the_context_is_rejected(model: Path, refuse: Refuse) -> None:
    problem = refuse("generate", model, "-p", "xy" * 300)
    assert "tokens" in problem
    assert "context" in problem
    assert "64" in problem
    assert "shorten the prompt" in problem


def test_an_empty_prompt_is_rejected(model: Path, refuse: Refuse) -> None:
    assert "the prompt is empty" in refuse("generate", model, "-p", "")


def test_a_prompt_that_is_not_unicode_is_rejected(
    model: Path, tmp_path: Path, refuse: Refuse
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"abc\xff")
    problem = refuse("generate", model, "-f", file)
    assert f"{file}: byte 3 is not UTF-8" in problem
    assert "not valid Unicode" in refuse("generate", model, "-p", "a\udcff")


def test_a_tokenizer_of_another_model_is_rejected(model: Path, refused: Refuse) -> None:
    write_tokenizer(model, SHAPE.vocab + 7)
    problem = refused()
    assert str(model) in problem
    assert "the tokenizer has 327 tokens and the model 320" in problem


def test_a_tokenizer_of_another_model_is_rejected_by_pack(
    model: Path, tmp_path: Path, refuse: Refuse
) -> None:
    write_tokenizer(model, SHAPE.vocab + 600)
    assert "outside the model's vocabulary" in refuse("pack", model, tmp_path / "packed")


def test_chat_without_a_template_is_rejected(refused: Refuse) -> None:
    assert "no chat template" in refused("--chat")


@pytest.mark.parametrize(
    ("name", "most_bytes"),
    [
        ("config.json", MOST_JSON_BYTES),
        ("generation_config.json", MOST_JSON_BYTES),
        ("tokenizer_config.json", MOST_JSON_BYTES),
        ("tokenizer.json", MOST_VOCABULARY_BYTES),
        ("chat_template.jinja", MOST_JSON_BYTES),
    ],
)
def test_an_oversized_file_is_rejected_without_reading_it(
    name: str, most_bytes: int, model: Path, refused: Refuse
) -> None:
    with (model / name).open("ab") as file:
        file.truncate(most_bytes + 1)
    message = refused()
    assert str(model / name) in message
    assert f"is longer than {most_bytes} bytes" in message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_pipe_in_place_of_a_file_is_rejected(name: str, model: Path, refused: Refuse) -> None:
    (model / name).unlink()
    os.mkfifo(model / name)
    assert str(model) in refused()


def test_a_pipe_named_as_a_gguf_file_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(SpecqdError, match="is not a file"):
        LLM(tmp_path / "pipe.gguf")


def test_a_model_larger_than_memory_is_rejected(model: Path, refused: Refuse) -> None:
    """A sparse file of terabytes has a valid header, and its weights are never read."""
    huge = Shape(hidden=4096, heads=64, head_dim=64, vocab=2**30, is_tied=True)
    (model / "config.json").write_text(json.dumps(make_config(huge)))
    sizes = dict(tensor_sizes(huge))
    header = safetensors_header(sizes)
    data = 2 * sum(math.prod(size) for size in sizes.values())
    (model / WEIGHTS).write_bytes(header)
    try:
        os.truncate(model / WEIGHTS, len(header) + data)
    except OSError as error:
        pytest.skip(f"no sparse file of {data >> 40} TiB here: {error}")
    problem = refused()
    assert str(model) in problem
    assert "GB of memory" in problem
    assert "available" in problem


def test_the_error_for_too_little_free_memory_gives_both_sizes(
    refused: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "usable_memory", lambda: 200 << 20)
    problem = refused()
    assert "need about 0.3 GB of memory and 0.2 GB are available" in problem


def test_a_failed_allocation_is_reported(refused: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(_native, "KvCache", fail)
    assert "out of memory" in refused()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--top-p", "1.5"),
        ("--top-p", "0"),
        ("--top-k", "-1"),
        ("--min-p", "2"),
        ("--seed", "-1"),
        ("--stop", ""),
    ],
)
def test_a_sampling_value_out_of_range_is_named(refused: Refuse, option: str, value: str) -> None:
    problem = refused(option, value)
    assert problem.startswith(f"{option}: ")
    assert value in problem


def test_an_instruction_set_that_the_machine_lacks_is_rejected(
    refused: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "available_isas", lambda: ["portable"])
    problem = refused("--isa", "amx")
    assert "--isa amx: not available here" in problem
    assert "portable" in problem


@pytest.mark.parametrize("threads", ["0", "-2", "1000000"])
def test_the_error_for_a_number_of_threads_out_of_range_names_it(
    refused: Refuse, threads: str
) -> None:
    assert f"--threads {threads}" in refused("--threads", threads)


def test_names_from_files_are_printed_without_control_characters(
    model: Path, refused: Refuse
) -> None:
    change_model(model, model_type="\x1b]0;owned\x07\nspecqd: error: \u202eother")
    assert refused().isprintable()


def test_the_program_itself_prints_an_error_in_one_line(model: Path) -> None:
    os.truncate(model / WEIGHTS, 5000)
    ran = run_program("generate", model, "-p", "x", text=True)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert str(model / WEIGHTS) in ran.stderr
