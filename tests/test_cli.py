"""The commands as a user runs them: what goes where, and how they end."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from family_shapes import FAMILY_SHAPES
from random_models import (
    Shape,
    make_escaping_model,
    make_model,
    tensor_sizes,
)
from specqd import LLM, SamplingParams, _native
from specqd.bench.bandwidth import bandwidth_at, measure
from specqd.cli import main
from specqd.cli.terminal import aligned, harmless
from specqd.model import Machine

PROGRAM = [sys.executable, "-c", "import sys; from specqd.cli import main; sys.exit(main())"]
HEAVY = ("numpy", "tokenizers", "huggingface_hub", "jinja2", "rich", "specqd._native")
BIASED = Shape(model_type="llama", has_biases=True, is_tied=True)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    shape = Shape(is_peaked=True, context=256)
    return make_model(tmp_path_factory.mktemp("models") / "small", shape, seed)


@pytest.fixture(scope="module")
def escaping(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Path:
    return make_escaping_model(tmp_path_factory.mktemp("models") / "escaping", seed)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run_main(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run_main


def run_program(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, **options)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["generate", "--help"], ["bench", "--help"]]
)
def test_help_loads_nothing_heavy(arguments: Sequence[str]) -> None:
    code = (
        f"import sys; from specqd.cli import main; status = main({list(arguments)!r}); "
        f"print([name for name in {HEAVY} if name in sys.modules], status, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[] 0"
    assert ran.stdout


def test_help_answers_at_once() -> None:
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        run_program("--help")
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) <= 0.3


@pytest.mark.parametrize(
    "command", ["generate", "demo", "serve", "inspect", "bench bandwidth", "bench kernels"]
)
def test_help_shows_real_commands(run: Run, command: str) -> None:
    status, out, _ = run(*command.split(), "--help")
    assert status == 0
    assert f"specqd {command}" in out


def test_generate_prints_the_text_and_one_summary_line(model: Path, run: Run) -> None:
    status, out, err = run("generate", model, "-p", "ab", "-n", "20")
    expected = LLM(model).generate("ab", SamplingParams(max_tokens=20, temperature=0))[0]
    assert status == 0
    assert out == expected.text
    assert err.startswith("specqd: 20 tokens, ")
    assert err.count("\n") == 1
    assert "bf16:" in err
    assert "mxfp4:" in err
    assert "seed" not in err


@pytest.mark.parametrize("draft", [["none"], ["auto"], ["mxfp4"], ["mxfp4:k=3"]])
def test_drafts_change_no_text(model: Path, run: Run, draft: list[str]) -> None:
    sampling = ["-n", "30", "--temperature", "0.8", "--seed", "11"]
    plain = run("generate", model, "-p", "ab", *sampling)
    assert run("generate", model, "-p", "ab", *sampling, "--draft", *draft)[1] == plain[1]


def test_without_a_model_the_shipped_one_writes(run: Run) -> None:
    status, out, _ = run("generate", "-p", "def fibonacci(n):", "-n", "24")
    assert status == 0
    assert out == LLM().generate("def fibonacci(n):", SamplingParams(24, temperature=0))[0].text


def test_the_summary_names_the_seed_that_repeats_a_sampled_text(model: Path, run: Run) -> None:
    _, first, summary = run("generate", model, "-p", "ab", "-n", "20", "--temperature", "0.9")
    seed = summary.strip().rpartition("seed ")[2]
    again = ["-n", "20", "--temperature", "0.9", "--seed", seed]
    assert run("generate", model, "-p", "ab", *again)[1] == first


def test_json_is_one_object_as_documented(model: Path, run: Run) -> None:
    options = ("-n", "20", "--json", "--draft", "mxfp4", "--logprobs", "2", "--seed", "5")
    status, out, err = run("generate", model, "-p", "ab", *options)
    assert (status, err) == (0, "")
    printed = json.loads(out)
    keys = ["text", "tokens", "logprobs", "finish_reason", "seed", "stats"]
    assert list(printed) == keys
    params = SamplingParams(max_tokens=20, temperature=0, seed=5, logprobs=2)
    [expected] = LLM(model).generate("ab", params)[0].completions
    assert printed["text"] == expected.text
    assert printed["tokens"] == expected.tokens
    assert (printed["finish_reason"], printed["seed"]) == ("length", 5)
    assert expected.logprobs is not None
    for shown, each in zip(printed["logprobs"], expected.logprobs, strict=True):
        assert (shown["token"], shown["logprob"]) == (each.token, each.logprob)
        assert [(top["token"], top["logprob"]) for top in shown["top"]] == list(each.top)
    stats = printed["stats"]
    assert stats["prompt_tokens"] == len(LLM(model).encode("ab"))
    assert stats["new_tokens"] == 20
    assert all(stats[key] > 0 for key in ("prefill_s", "decode_s", "tokens_per_s"))
    assert [level["name"] for level in stats["levels"]] == ["bf16", "mxfp4"]
    names = (
        "name forwards rows seconds pick_seconds drafted accepted acceptance acceptance_at "
        "drafted_at mean_accepted_length gain_s gb_per_s"
    )
    assert {*names.split()} == set(stats["levels"][0])
    assert stats["levels"][1]["acceptance"] is None


def test_json_without_logprobs_has_none(model: Path, run: Run) -> None:
    assert "logprobs" not in json.loads(run("generate", model, "-p", "a", "-n", "2", "--json")[1])


def test_stop_strings_end_the_text(model: Path, run: Run) -> None:
    whole = run("generate", model, "-p", "ab", "-n", "30")[1]
    stop = whole[10:12]
    stopped = run("generate", model, "-p", "ab", "-n", "30", "--stop", "never", "--stop", stop)
    assert stopped[1] == whole[: whole.index(stop)]


def test_the_draft_reading_speaks(model: Path, run: Run) -> None:
    status, _, err = run("generate", model, "-p", "ab", "-n", "8", "--reading", "draft")
    assert status == 0
    assert "mxfp4:" in err
    assert "bf16" not in err


def test_prompts_come_from_options_files_and_standard_input(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("héllo\n", encoding="utf-8")
    text = "héllo"
    rest = ["-n", "12"]
    by_option = run_program("generate", model, "-p", text, *rest)
    by_file = run_program("generate", model, "-f", file, *rest)
    by_pipe = run_program("generate", model, *rest, input=f"{text}\n".encode())
    by_dash = run_program("generate", model, "-p", "-", *rest, input=text.encode())
    assert by_option.returncode == 0
    assert by_option.stdout == by_file.stdout == by_pipe.stdout == by_dash.stdout


def test_chat_goes_through_the_template(tmp_path: Path, seed: int, run: Run) -> None:
    directory = make_model(tmp_path / "chat", Shape(), seed)
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    (directory / "chat_template.jinja").write_text(template)
    chatted = run("generate", directory, "--chat", "-p", "Hi", "-n", "9")
    assert chatted[0] == 0
    assert chatted[1] == run("generate", directory, "-p", "<user>Hi", "-n", "9")[1]


def test_piped_text_is_raw_and_a_terminal_gets_it_harmless(escaping: Path) -> None:
    arguments = ["generate", str(escaping), "-p", "ab", "-n", "4"]
    assert run_program(*arguments).stdout == b"\x1b" * 4
    leader, terminal = pty.openpty()
    try:
        ran = subprocess.run(
            [*PROGRAM, *arguments], stdout=terminal, stderr=subprocess.PIPE, check=True
        )
        os.write(terminal, b"end")
        shown = b""
        while not shown.endswith(b"end"):
            shown += os.read(leader, 4096)
        assert shown == b"\r\nend"
    finally:
        os.close(leader)
        os.close(terminal)
    assert ran.stderr.startswith(b"specqd: 4 tokens")


def test_what_steers_a_terminal_is_taken_out() -> None:
    hostile = "a\x1b[31m\x07\r\x00\x7f\x9b\u202e\u2066\u200f\u061cb\n\tü🙂"
    assert harmless(hostile) == "a[31mb\n\tü🙂"


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["generate", "--bogus"],
        ["generate", "-p", "a", "-n", "many"],
        ["generate", "-p", "a", "--isa", "sse2"],
        ["generate", "-p", "a", "-f", __file__],
        ["generate", "-f", "/nowhere/at/all"],
        ["generate", "-p", "a", "--logprobs", "2"],
        ["generate", "model", "another", "-p", "a"],
    ],
)
def test_wrong_usage_is_status_2(run: Run, arguments: list[str]) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "Usage:" in err
    assert "Traceback" not in err


def test_no_prompt_on_a_terminal_is_wrong_usage() -> None:
    leader, terminal = pty.openpty()
    try:
        ran = run_program("generate", stdin=terminal)
    finally:
        os.close(leader)
        os.close(terminal)
    assert ran.returncode == 2
    assert b"no prompt" in ran.stderr


@pytest.fixture
def writing() -> Iterator[subprocess.Popen[bytes]]:
    """The program, which has begun to write a long text."""
    arguments = ["generate", "-p", "import os", "-n", "500", "--temperature", "1.5"]
    with subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        yield process


def test_ctrl_c_is_status_130_without_a_traceback(writing: subprocess.Popen[bytes]) -> None:
    writing.send_signal(signal.SIGINT)
    _, err = writing.communicate()
    assert writing.returncode == 130
    assert not err.strip()


def test_a_closed_pipe_ends_quietly(writing: subprocess.Popen[bytes]) -> None:
    assert writing.stdout is not None
    assert writing.stderr is not None
    writing.stdout.close()
    assert writing.stderr.read() == b""
    assert writing.wait() == 1


def weights_an_item(name: str) -> int:
    """Of MXFP4 a byte holds two weights, or is the scale of some."""
    return 2 if name.endswith("_blocks") else 0 if name.endswith("_scales") else 1


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        BIASED,
        Shape(model_type="mistral", window=32),
        Shape(model_type="qwen2", is_tied=True),
        Shape(model_type="qwen3"),
        *FAMILY_SHAPES.values(),
    ],
    ids=lambda shape: shape.model_type,
)
def test_parameters_are_counted_as_in_the_file(tmp_path: Path, seed: int, shape: Shape) -> None:
    loaded = LLM(make_model(tmp_path, shape, seed), "none").model
    in_file = sum(int(np.prod(size)) * weights_an_item(n) for n, size in tensor_sizes(shape))
    assert loaded.weights.parameters == in_file


def test_inspect_shows_shape_bits_memory_and_machine(model: Path, run: Run) -> None:
    status, out, err = run("inspect", model, "--threads", "1", "--isa", "portable")
    assert (status, err) == (0, "")
    for fact in (
        "llama",
        "2 of 64, feed-forward 160",
        "4 query, 2 key/value, of 16",
        "256 positions, full attention",
        "320 tokens",
        "no chat template",
        "bits a weight",
        "residuals",
        "are patches",
        "chosen portable",
    ):
        assert fact in out
    assert "model.layers.1.mlp.down_proj.weight" not in out
    assert "model.layers.1.mlp.down_proj.weight" in run("inspect", model, "--matrices")[1]


def test_inspect_json_adds_up(model: Path, run: Run) -> None:
    facts = json.loads(run("inspect", model, "--json")[1])
    weights = sum(each["rows"] * each["columns"] for each in facts["matrices"])
    planes = facts["plane_bytes"]
    assert facts["bytes_per_token"]["bf16"] == 2 * weights
    assert facts["bytes_per_token"]["draft"] == planes["codes"] + planes["scales"]
    assert facts["bits_per_weight"]["draft"] == 8 * (planes["codes"] + planes["scales"]) / weights
    for plane, size in planes.items():
        assert size == sum(each["planes"][plane] for each in facts["matrices"])
    assert facts["machine"]["isa"] == _native.available_isas()[0]


def test_bandwidth_is_the_median_after_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_seconds(pool: object, isa: str, size: int, repeats: int) -> list[float]:
        return [99.0, 99.0, *np.linspace(1, 3, repeats - 2)]

    monkeypatch.setattr(_native, "read_seconds", read_seconds)
    [measured] = measure(Machine.choose(1), [10**9])
    assert measured.gb_per_s == pytest.approx(0.5)
    assert measured.lower_quartile == pytest.approx(0.4)
    assert measured.upper_quartile == pytest.approx(2 / 3)
    assert bandwidth_at(Machine.choose(1), 4 * 10**9) == pytest.approx(2)


def test_bandwidth_of_more_than_half_the_memory_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_native, "usable_memory", lambda: 3 * 10**6)
    sizes = [each.working_set_bytes for each in measure(Machine.choose(1), [10**6, 2 * 10**6])]
    assert sizes == [10**6]


def test_bench_bandwidth_prints_and_writes(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specqd.bench.bandwidth.SIZES", (10**6, 4 * 10**6))
    file = tmp_path / "bandwidth.json"
    status, out, _ = run("bench", "bandwidth", "--threads", "1", "--json", file)
    assert status == 0
    assert "4 MB" in out
    written = json.loads(file.read_text())
    assert written["threads"] == 1
    assert [each["working_set_bytes"] for each in written["sizes"]] == [10**6, 4 * 10**6]
    for each in written["sizes"]:
        assert 0 < each["lower_quartile"] <= each["gb_per_s"] <= each["upper_quartile"]


def test_bench_kernels_prints_and_writes(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "kernels.json"
    words = ("--threads", "1", "--megabytes", "1", "--rows", "1", "--rows", "3", "--json", file)
    status, out, _ = run("bench", "kernels", *words)
    assert status == 0
    assert len(out.splitlines()) == 2 + 2 * 2
    written = json.loads(file.read_text())
    cases = [(each["case"]["reading"], each["case"]["rows"]) for each in written["speeds"]]
    assert cases == [(reading, rows) for reading in ("draft", "exact") for rows in (1, 3)]
    assert 1.8e6 < written["weights"] < 1.9e6
    for each in written["speeds"]:
        least, most = each["share_range"]
        assert 0 < least <= each["share"] <= most
        bits = 8 * each["gb_per_s"] / each["gweights_per_s"]
        assert bits == pytest.approx(4.25) if each["case"]["reading"] == "draft" else 12 < bits < 14
        limit = each["share"] * 16 / bits
        assert each["over_bf16_limit"] == pytest.approx(limit)


def test_bench_kernels_refuses_more_weights_than_there_is_memory(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "usable_memory", lambda: 10**6)
    status, _, err = run("bench", "kernels", "--megabytes", "1")
    assert status == 1
    assert "--megabytes" in err


def test_demo_shows_identical_texts_and_both_speedups(model: Path, run: Run) -> None:
    status, out, err = run("demo", model, "-p", "ab", "-n", "24", "--seed", "9")
    params = SamplingParams(max_tokens=24, temperature=0.7, seed=9)
    text = LLM(model).generate("ab", params)[0].text
    assert (status, err) == (0, "")
    assert out.count(f"ab{text}") == 2
    assert "Identical: all 24 tokens" in out
    for row in ("tokens/s", "MB moved per token", "x plain decoding", "x the BF16 limit"):
        assert f"\n{row} " in out


def test_demo_says_loudly_where_tokens_differ(
    model: Path, tmp_path: Path, seed: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LLM(make_model(tmp_path, Shape(context=256), seed + 1))
    monkeypatch.setattr(LLM, "with_draft", lambda self, draft: other)
    status, out, err = run("demo", model, "-p", "ab", "-n", "24")
    assert status == 1
    assert "Identical" not in out
    assert err.startswith("specqd: error: NOT IDENTICAL: new token ")
    assert err.count("\n") == 1


def test_tables_are_aligned() -> None:
    assert aligned([["a", "bc"], ["def", "g"]]) == ["a    bc", "def   g"]
