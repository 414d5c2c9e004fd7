"""`specqd bench levels`: a result only with equal tokens, and ratios within prompts."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specqd import LLM, SamplingParams, _native
from specqd.bench import levels, rounds
from specqd.bench.levels import (
    Arm,
    Run,
    Trial,
    chain_to_open,
    check_equal,
    default_chains,
    first_difference,
    make_arms,
    name_of,
    read_prompts,
    summarised,
    timed,
    trials,
)
from specqd.cli import main
from specqd.errors import MachineError, RequestError, SpecqdError, TensorError
from specqd.extras import install_command
from specqd.formats.fp4 import DraftFormat
from specqd.model.model import Model
from support.command_line import Refuse
from support.command_line import Run as RunMain
from support.fixtures import an_llm
from support.random_models import Shape, make_model

PARAMS = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)


llm = an_llm("small_model")


@pytest.fixture(scope="module")
def arms(llm: LLM) -> list[Arm]:
    return make_arms(llm, ["fp4:k=3", "none", "fp4:k=3"])


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "bandwidth_at", lambda machine, size: 8.0)


def write_prompts(path: Path, *prompts: str) -> Path:
    lines = [json.dumps({"id": i, "prompt": prompt}) for i, prompt in enumerate(prompts)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# --- Arms and prompts -------------------------------------------------------------------------


def test_plain_decoding_comes_first_and_each_chain_once(arms: list[Arm]) -> None:
    assert [arm.chain for arm in arms] == ["none", "fp4:k=3"]
    assert [[level.name for level in arm.levels] for arm in arms] == [["bf16"], ["bf16", "fp4"]]


def test_the_default_chains_are_the_papers() -> None:
    assert default_chains(None) == ["fp4", "auto"]
    assert default_chains("./s") == ["fp4", "./s:bf16", "fp4 ./s:fp4 ngram", "auto"]


def test_names_of_chains_have_only_the_last_part_of_each_path() -> None:
    assert name_of("none") == "plain"
    assert name_of("'fp4|/a b/s|ngram' /c/t.gguf:bf16:k=3") == "fp4|s|ngram t.gguf:bf16:k=3"


def test_chains_in_two_formats_run_over_the_model_loaded_in_both(llm: LLM) -> None:
    plain, *drafted = make_arms(llm, ["mxfp4:k=3", "fp4", "ngram", "mxfp4"])
    assert [[level.name for level in arm.levels] for arm in drafted] == [
        ["bf16", "mxfp4"], ["bf16", "fp4"], ["bf16"], ["bf16", "mxfp4"],
    ]  # fmt: skip
    own, again = llm.model, drafted[0].llm.model
    assert [arm.llm.model for arm in drafted] == [again, own, own, again]
    assert again.weights is not own.weights
    assert again.machine is own.machine
    assert again.cache.total_pages == own.cache.total_pages
    done = list(trials([plain, *drafted], ["ab", "cd"], replace(PARAMS, temperature=0.8)))
    assert len(done) == 2  # with equal tokens


@pytest.mark.parametrize(
    ("chains", "opened"),
    [
        (["mxfp4:k=3", "mxfp4 ngram"], "mxfp4:k=3"),
        (["fp4|ngram"], "fp4|ngram"),
        (["mxfp4", "fp4"], "none"),
        (["mxfp4", "auto"], "none"),  # auto drafts in the format that a user gets
        (["./small:mxfp4"], "none"),
    ],
)
def test_a_model_is_loaded_once_if_all_chains_state_one_format(
    chains: list[str], opened: str
) -> None:
    assert chain_to_open(chains) == opened


def test_a_small_model_is_loaded_in_two_formats(
    tmp_path: Path, small_model: Path, seed: int
) -> None:
    small = make_model(tmp_path / "small", Shape(layers=1, context=256), seed + 1)
    plain = LLM(small_model, "none", threads=1)
    arms = make_arms(plain, [f"fp4 {small}:fp4", f"fp4 {small}:mxfp4", f"{small}:bf16"])
    names = [[level.name for level in arm.levels] for arm in arms[1:]]
    assert names == [["bf16", "fp4", f"small:{each}"] for each in ("fp4", "mxfp4")] + [
        ["bf16", "small:bf16"]
    ]


def test_a_packed_model_in_another_format_is_refused_before_anything_is_loaded(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed"
    assert main(["pack", str(llm.directory), str(packed), "--calibrate", "none"]) == 0
    plain = LLM(packed, "none", threads=1)
    monkeypatch.setattr(Model, "open", lambda *_, **__: pytest.fail("loaded"))
    for target, chain in ((plain, "mxfp4"), (llm, f"fp4 {packed}:mxfp4")):
        with pytest.raises(TensorError, match="packed as fp4; draft with fp4, or pack"):
            make_arms(target, [chain])


def test_a_second_format_must_fit_into_memory(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "usable_memory", lambda: 1000)
    monkeypatch.setattr(Model, "open", lambda *_, **__: pytest.fail("loaded"))
    make_arms(llm, ["fp4"])
    with pytest.raises(MachineError, match="GB are available"):
        make_arms(llm, ["fp4", "mxfp4"])


def test_prompts_are_read_up_to_the_limit(tmp_path: Path) -> None:
    file = write_prompts(tmp_path / "p.jsonl", "one", "zwei ü", "three")
    assert read_prompts(file, 2) == ["one", "zwei ü"]
    assert len(read_prompts(file, 9)) == 3
    file.write_text(file.read_text(encoding="utf-8").replace("\n", "\n \n"), encoding="utf-8")
    assert read_prompts(file, 9) == ["one", "zwei ü", "three"]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"", "no prompts"),
        (b'{"prompt": "a"}\n{"text": "b"}\n', ":2: no text"),
        (b'{"prompt": 5}\n', ":1: no text"),
        (b'["a"]\n', ":1: no text"),
        (b'{"prompt": "a"}\nnonsense\n', ":2: not one JSON object"),
        (b"\xff\xfe\n", ":1: not one JSON object"),
    ],
)
def test_a_bad_file_of_prompts_is_refused_by_line(
    tmp_path: Path, content: bytes, where: str
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(content)
    with pytest.raises(RequestError, match=where):
        read_prompts(file, 9)


# --- Equal tokens -----------------------------------------------------------------------------


def test_the_first_difference_is_found() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_every_arm_is_compared_while_it_is_timed(
    arms: list[Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = levels.timed
    calls = 0

    def spoiled(llm: LLM, prompt: list[int], params: SamplingParams) -> Run:
        nonlocal calls
        calls += 1
        run = real(llm, prompt, params)
        if llm is arms[1].llm and params.seed == 1:
            return replace(run, tokens=[*run.tokens[:7], run.tokens[7] + 1, *run.tokens[8:]])
        return run

    monkeypatch.setattr(levels, "timed", spoiled)
    running = trials(arms, ["ab", "cd", "ef"], PARAMS)
    assert next(running).prompt == 0
    with pytest.raises(SpecqdError, match=r"NOT EQUAL: prompt 1, new token 7: fp4:k=3 differs"):
        next(running)
    assert calls == 2 + 2 * 2  # warm-up and two prompts


def test_missing_tokens_are_a_difference(arms: list[Arm]) -> None:
    whole = Run([1, 2, 3], 1.0, 1.0, ())
    check_equal(arms, Trial(0, (whole, whole), {}))
    with pytest.raises(SpecqdError, match="new token 2"):
        check_equal(arms, Trial(0, (whole, replace(whole, tokens=[1, 2])), {}))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_real_arms_are_equal(arms: list[Arm], llm: LLM, temperature: float) -> None:
    params = replace(PARAMS, temperature=temperature)
    prompts = ["ab", "a longer prompt " * 30]
    done = list(trials(arms, prompts, params, rounds=2))
    assert [trial.prompt for trial in done] == [0, 1, 0, 1]
    for trial in done:
        assert all(len(run.tokens) == 24 for run in trial.runs)
    seeded = replace(params, seed=1)
    [expected] = llm.generate([llm.encode(prompts[1])[-(256 - 24) :]], seeded)
    assert done[1].runs[0].tokens == done[3].runs[1].tokens == expected.tokens


# --- Times and ratios -------------------------------------------------------------------------


def test_prefill_and_decoding_are_timed_separately(llm: LLM, arms: list[Arm]) -> None:
    for arm in arms:
        for _ in range(2):  # a prefix hit would change the second run's rows
            ticks = iter([10.0, 13.0, 18.0])
            run = timed(arm.llm, [65] * 150, PARAMS, clock=lambda ticks=ticks: next(ticks))
            assert (run.prefill_s, run.decode_s, run.wall_s) == (3.0, 5.0, 8.0)
            assert run.tokens_per_s == 23 / 5.0
            verifier = run.levels[0]
            assert verifier.rows == 23 - verifier.accepted + verifier.drafted  # none of the prompt
    assert llm.engine.is_idle


def test_ratios_are_taken_within_prompts_and_rounds(arms: list[Arm], llm: LLM) -> None:
    base = timed(arms[1].llm, [65, 66], PARAMS)
    plain = timed(llm, [65, 66], PARAMS)
    bf16 = llm.model.bf16_bytes_per_forward
    sizes = [level.model.bytes_per_forward for level in arms[1].levels]

    def trial(prompt: int, plain_s: float, drafted_s: float, bandwidth: float) -> Trial:
        runs = (
            replace(plain, prefill_s=1.0, decode_s=plain_s),
            replace(base, prefill_s=1.0, decode_s=drafted_s),
        )
        return Trial(prompt, runs, dict.fromkeys([bf16, *sizes], bandwidth))

    done = [
        trial(0, 4.0, 2.0, 8.0),  # twice as fast
        trial(1, 9.0, 3.0, 8.0),  # three times, in the middle of three rounds
        trial(1, 90.0, 3.0, 8.0),
        trial(1, 3.0, 3.0, 8.0),
        trial(2, 8.0, 2.0, 8.0),  # four times
    ]
    summary = summarised(arms, done)[1]
    assert summary.over_plain.median == pytest.approx(3.0)
    assert (summary.over_plain.low, summary.over_plain.high) == pytest.approx((2.0, 4.0))
    limit = 8e9 / bf16
    assert summary.over_bf16_limit.median == pytest.approx(23 / 2.0 / limit)
    assert summary.wall_over_plain.median == pytest.approx(10.0 / 4.0)
    assert summary.levels[0].forwards == 5 * base.levels[0].forwards
    assert summary.shares[0] == pytest.approx(summary.levels[0].gb_per_s / 8.0)


# --- The command ------------------------------------------------------------------------------


def test_the_results_are_written_as_json_where_asked(
    llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", "ab", "cd", "ef")
    file = tmp_path / "out.json"
    command = ["bench", "levels", str(llm.directory), "--prompts", str(prompts), "--limit", "2"]
    command += ["-n", "12", "--threads", "1", "--json", str(file), "--chain", "fp4:k=2"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "{" not in "".join(lines)
    printed = json.loads(file.read_text())
    assert (printed["num_prompts"], printed["max_tokens"], printed["rounds"]) == (2, 12, 1)
    assert printed["bf16_bytes_per_token"] == llm.model.bf16_bytes_per_forward
    assert [each["temperature"] for each in printed["temperatures"]] == [0.0, 0.8]
    for each in printed["temperatures"]:
        plain, drafted = each["arms"]
        assert (plain["chain"], drafted["chain"]) == ("none", "fp4:k=2")
        assert (plain["name"], drafted["name"]) == ("plain", "fp4:k=2")
        assert plain["over_plain"] == {"median": 1.0, "low": 1.0, "high": 1.0}
        for key in ("over_plain", "over_bf16_limit", "wall_over_plain"):
            assert drafted[key]["low"] <= drafted[key]["median"] <= drafted[key]["high"]
        assert all(drafted[key] > 0 for key in ("tokens_per_s", "prefill_s", "decode_s", "wall_s"))
        assert [level["name"] for level in drafted["levels"]] == ["bf16", "fp4"]
        assert all(level["bandwidth_share"] > 0 for level in drafted["levels"])
    assert sum("equal tokens in all chains" in line for line in lines) == 2
    judged = [(each["draft_format"], each["temperature"]) for each in printed["agreement"]]
    assert judged == [(draft.value, t) for draft in DraftFormat for t in (0.0, 0.8)]
    shares = [f"{each['agreement']['share']:.1%}" for each in printed["agreement"]]
    table = next(at for at, line in enumerate(lines) if line.startswith("own draft"))
    assert [line.split()[2] for line in lines[table + 1 : table + 7]] == shares


def test_the_table_comes_last(llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", "ab")
    command = ["bench", "levels", str(llm.directory), "--prompts", str(prompts), "--threads", "1"]
    assert main([*command, "-n", "8", "--chain", "fp4:k=2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("fp4:k=2 ")


def test_an_interrupted_run_reports_what_was_done(
    llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> Iterator[Trial]:
        params = given[2]
        for number, trial in enumerate(trials(*given)):
            if params.temperature > 0 and number == 1:
                raise KeyboardInterrupt
            yield trial

    monkeypatch.setattr(levels, "trials", interrupted)
    prompts, file = write_prompts(tmp_path / "p.jsonl", "ab", "cd"), tmp_path / "out.json"
    command = ["bench", "levels", str(llm.directory), "--prompts", str(prompts), "--threads", "1"]
    assert main([*command, "-n", "8", "--chain", "fp4:k=2", "--json", str(file)]) == 130
    assert (
        "temperature 0.8: equal tokens in all chains, in 1 of 2 runs\n" in capsys.readouterr().out
    )
    temperatures = json.loads(file.read_text())["temperatures"]
    assert [[arm["runs"] for arm in each["arms"]] for each in temperatures] == [[2, 2], [1, 1]]


def test_a_plot_without_matplotlib_is_refused_before_any_work(
    tmp_path: Path, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    prompts = write_prompts(tmp_path / "p.jsonl", "ab")
    plot = tmp_path / "p.png"
    problem = refuse("bench", "levels", "/nowhere/at/all", "--prompts", prompts, "--plot", plot)
    assert problem.endswith(install_command("bench"))


def test_the_plot_is_drawn(llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra")
    prompts = write_prompts(tmp_path / "p.jsonl", "ab", "cd")
    plot = tmp_path / "p.png"
    command = ["bench", "levels", str(llm.directory), "--prompts", str(prompts), "--threads", "1"]
    assert main([*command, "-n", "8", "--chain", "fp4:k=2", "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_too_many_new_tokens_are_refused(llm: LLM, tmp_path: Path, run: RunMain) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", "ab")
    command = ["bench", "levels", llm.directory, "--prompts", prompts, "-n", "256"]
    status, _, err = run(*command, "--threads", "1", "--chain", "fp4")
    assert status == 1
    assert "leave no room" in err


def test_small_with_chain_is_wrong_usage(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path / "p.jsonl", "ab")
    command = ["bench", "levels", "--prompts", str(prompts), "--chain", "fp4", "--small", "x"]
    assert main(command) == 2
