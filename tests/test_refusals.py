"""Bad input ends in one line on standard error that says what and where, and in status 1."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from specqd import _native
from specqd.cli import main
from support.random_models import (
    Shape,
    make_config,
    make_model,
    make_tensors,
    safetensors_header,
    tensor_sizes,
    write_safetensors,
    write_tokenizer,
)
from support.writers import entry, write_raw, write_shards

SHAPE = Shape(context=64)
WEIGHTS = "model.safetensors"

Refuse = Callable[..., str]


@pytest.fixture
def model(tmp_path: Path, seed: int) -> Path:
    return make_model(tmp_path / "model", SHAPE, seed)


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Runs a command line that must be refused, and returns what its one line says."""

    def run(*arguments: str | Path) -> str:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert status == 1
        assert out == ""
        assert err.startswith("specqd: error: ")
        assert err.count("\n") == 1
        assert err.endswith("\n")
        assert "Traceback" not in err
        return err.removeprefix("specqd: error: ").strip()

    return run


@pytest.fixture
def refused(model: Path, refuse: Refuse) -> Refuse:
    """The same for `generate` on the test's model, with any further options."""
    return lambda *options: refuse("generate", model, "-p", "ab", "-n", "4", *options)


def tensors(seed: int) -> dict[str, np.ndarray]:
    return dict(make_tensors(SHAPE, seed))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_good_model_is_not_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(model), "-p", "ab", "-n", "4"]) == 0
    assert capsys.readouterr().err.startswith("specqd: 4 tokens")


def test_missing_directory(tmp_path: Path, refuse: Refuse) -> None:
    missing = tmp_path / "nowhere"
    assert str(missing) in refuse("generate", missing, "-p", "x")
    assert "no such directory" in refuse("inspect", missing)


def test_missing_weights(model: Path, refused: Refuse) -> None:
    (model / WEIGHTS).unlink()
    assert f"{model / WEIGHTS}: is missing" in refused()


def test_truncated_file(model: Path, refused: Refuse) -> None:
    path = model / WEIGHTS
    os.truncate(path, path.stat().st_size - 100)
    problem = refused()
    assert f"{path}: truncated" in problem
    assert "fetch the file again" in problem


def test_file_cut_within_its_header(model: Path, refused: Refuse) -> None:
    os.truncate(model / WEIGHTS, 100)
    assert "is longer than the file" in refused()


def test_header_longer_than_the_file(model: Path, refused: Refuse) -> None:
    write_raw(model / WEIGHTS, b"{}", length=2**62)
    problem = refused()
    assert str(model / WEIGHTS) in problem
    assert f"header of {2**62} bytes is longer than the file" in problem


def test_overlapping_offsets(model: Path, refused: Refuse) -> None:
    header = {"a": entry("BF16", [4], 0, 8), "b": entry("BF16", [4], 4, 12)}
    write_raw(model / WEIGHTS, header, bytes(12))
    problem = refused()
    assert str(model / WEIGHTS) in problem
    assert "'b' overlaps another tensor" in problem


def test_dtype_that_does_not_match_its_bytes(model: Path, refused: Refuse) -> None:
    write_raw(model / WEIGHTS, {"a": entry("F32", [4], 0, 8)}, bytes(8))
    assert "'a' holds 8 bytes, but F32 of shape [4] needs 16" in refused()


def test_dtype_that_is_no_float(model: Path, refused: Refuse, seed: int) -> None:
    arrays = tensors(seed)
    name = "model.layers.1.mlp.up_proj.weight"
    sizes = {key: array.shape for key, array in arrays.items()}
    header = safetensors_header(sizes).decode("latin1")
    [where] = [i for i in range(len(header)) if header.startswith(f'"{name}"', i)]
    edited = header[:where] + header[where:].replace('"BF16"', '"I16" ', 1)
    body = b"".join(array.tobytes() for array in arrays.values())
    (model / WEIGHTS).write_bytes(edited.encode("latin1") + body)
    problem = refused()
    assert name in problem
    assert "is I16, not BF16, FP16 or FP32" in problem


def test_missing_tensor(model: Path, refused: Refuse, seed: int) -> None:
    arrays = tensors(seed)
    del arrays["model.layers.1.mlp.down_proj.weight"]
    write_safetensors(model / WEIGHTS, arrays)
    problem = refused()
    assert "model.layers.1.mlp.down_proj.weight" in problem
    assert str(model) in problem


def test_tensor_of_another_shape(model: Path, refused: Refuse) -> None:
    edit(model / "config.json", intermediate_size=SHAPE.ffn + 32)
    assert "has shape [160, 64], [192, 64] was expected" in refused()


@pytest.mark.parametrize("place", ["../outside.safetensors", "/etc/outside.safetensors"])
def test_shard_path_that_leaves_the_directory(
    model: Path, refused: Refuse, seed: int, place: str
) -> None:
    (model / WEIGHTS).unlink()
    write_shards(model, {"a.safetensors": tensors(seed)}, **{"model.norm.weight": place})
    problem = refused()
    assert "model.safetensors.index.json" in problem
    assert place in problem
    assert "beside it" in problem


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xFF80], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.self_attn.k_proj.weight",
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.norm.weight",
    ],
)
def test_weight_that_is_not_finite(
    model: Path, refused: Refuse, seed: int, name: str, bits: int
) -> None:
    arrays = tensors(seed)
    rng = np.random.default_rng(seed)
    at = tuple(int(rng.integers(size)) for size in arrays[name].shape)
    arrays[name] = arrays[name].copy()
    arrays[name][at] = bits
    write_safetensors(model / WEIGHTS, arrays)
    problem = refused()
    assert f"{name}{list(at)} is NaN or infinite" in problem
    assert str(model) in problem


def test_unknown_model_type(model: Path, refused: Refuse) -> None:
    edit(model / "config.json", model_type="mamba")
    problem = refused()
    assert f"{model / 'config.json'}: model_type 'mamba' is not supported" in problem
    assert "known: llama" in problem


def test_config_that_is_not_json(model: Path, refused: Refuse) -> None:
    (model / "config.json").write_text("{")
    assert f"{model / 'config.json'}: is not valid JSON" in refused()


def test_file_in_place_of_a_directory(model: Path, refuse: Refuse) -> None:
    problem = refuse("generate", model / WEIGHTS, "-p", "x")
    assert str(model / WEIGHTS) in problem
    assert "is a file" in problem


def test_prompt_longer_than_the_context(model: Path, refuse: Refuse) -> None:
    problem = refuse("generate", model, "-p", "xy" * 300)
    assert "tokens" in problem
    assert "context" in problem
    assert "64" in problem
    assert "shorten the prompt" in problem


def test_prompt_that_fills_the_context(model: Path, refused: Refuse) -> None:
    edit(model / "config.json", max_position_embeddings=1)
    assert "and the context has 1; shorten the prompt" in refused("-p", "a")


def test_empty_prompt(model: Path, refuse: Refuse) -> None:
    assert "the prompt is empty" in refuse("generate", model, "-p", "")


def test_prompt_that_is_not_text(model: Path, tmp_path: Path, refuse: Refuse) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"abc\xff")
    problem = refuse("generate", model, "-f", file)
    assert f"{file}: byte 3 is not UTF-8" in problem
    assert "not valid Unicode" in refuse("generate", model, "-p", "a\udcff")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "Nonsense"}}'])
def test_unreadable_tokenizer(model: Path, refused: Refuse, content: str) -> None:
    (model / "tokenizer.json").write_text(content)
    assert f"{model / 'tokenizer.json'}: not a tokenizer" in refused()


def test_missing_tokenizer(model: Path, refused: Refuse) -> None:
    (model / "tokenizer.json").unlink()
    assert f"{model / 'tokenizer.json'}: not found" in refused()


def test_tokenizer_of_another_model(model: Path, refused: Refuse) -> None:
    write_tokenizer(model, SHAPE.vocab + 7)
    problem = refused()
    assert str(model) in problem
    assert "the tokenizer has 327 tokens and the model 320" in problem


def test_chat_with_a_model_that_has_no_template(refused: Refuse) -> None:
    assert "no chat template" in refused("--chat")


def test_more_memory_than_there_is(model: Path, refused: Refuse) -> None:
    """A sparse file of terabytes: its header is true, and nothing of it is ever read."""
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


def test_less_memory_than_the_weights_need(
    refused: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "usable_memory", lambda: 200 << 20)
    problem = refused()
    assert "need about 0.3 GB of memory and 0.2 GB are available" in problem


def test_memory_that_runs_out(refused: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(_native, "KvCache", fail)
    assert "out of memory" in refused()


@pytest.mark.parametrize(
    ("drafts", "named"),
    [
        (["nonsense"], "nonsense"),
        (["mxfp4:k=0"], "k=0"),
        (["mxfp4:k=many"], "k=many"),
        (["mxfp4:x=1"], "x=1"),
        (["none", "mxfp4"], "stand alone"),
        (["mxfp4", "mxfp4"], "once"),
    ],
)
def test_unknown_draft(refused: Refuse, drafts: list[str], named: str) -> None:
    options = [word for draft in drafts for word in ("--draft", draft)]
    problem = refused(*options)
    assert problem.startswith("--draft")
    assert named in problem


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("-n", "0", "max_tokens"),
        ("-n", "-5", "max_tokens"),
        ("--temperature", "-1", "temperature"),
        ("--temperature", "nan", "temperature"),
        ("--top-p", "1.5", "top_p"),
        ("--top-p", "0", "top_p"),
        ("--top-k", "-1", "top_k"),
        ("--min-p", "2", "min_p"),
        ("--seed", "-1", "seed"),
        ("--stop", "", "stop"),
    ],
)
def test_sampling_value_out_of_range(refused: Refuse, option: str, value: str, named: str) -> None:
    problem = refused(option, value)
    assert named in problem
    assert value in problem


def test_instruction_set_that_this_machine_lacks(
    refused: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "available_isas", lambda: ["portable"])
    problem = refused("--isa", "amx")
    assert "--isa amx: not available here" in problem
    assert "portable" in problem


@pytest.mark.parametrize("threads", ["0", "-2", "1000000"])
def test_number_of_threads_out_of_range(refused: Refuse, threads: str) -> None:
    assert f"--threads {threads}" in refused("--threads", threads)


def test_result_file_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specqd.model.bandwidth.SIZES", (10**6,))
    file = tmp_path / "no" / "such" / "place.json"
    assert main(["bench", "bandwidth", "--json", str(file)]) == 1
    assert f"specqd: error: {file}: No such file or directory\n" == capsys.readouterr().err


def test_names_from_files_cannot_steer_the_terminal(model: Path, refused: Refuse) -> None:
    edit(model / "config.json", model_type="\x1b]0;owned\x07\nspecqd: error: \u202eother")
    problem = refused()
    assert problem.isprintable()


def test_a_refusal_of_the_real_program_is_one_line(model: Path) -> None:
    os.truncate(model / WEIGHTS, 5000)
    command = [sys.executable, "-c", "import sys; from specqd.cli import main; sys.exit(main())"]
    ran = subprocess.run(
        [*command, "generate", str(model), "-p", "x"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert len(ran.stderr.splitlines()) == 1
    assert str(model / WEIGHTS) in ran.stderr
