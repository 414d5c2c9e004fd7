"""What `make bench-peers` asks, and what it makes of the answers: prompts, summaries, tables."""

import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from specqd.hub import shipped_model
from specqd.text.tokenizer import Tokenizer
from support.served import add_template

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks" / "peers"))

import page
import prepare
import processes
import prompts
import summary
from arms import FORMATS, Arm
from prompts import PromptSet

PLAIN = Arm("specqd", "packed")
OURS = Arm("specqd", "packed", "auto")
SMALL = Arm("specqd", "packed", "small/packed")
FAST = Arm("llama.cpp", "q4_k_m")
SLOW = Arm("llama.cpp", "bf16")
LENGTHS = [Arm("llama.cpp", "q4_k_m", "small/q4_k_m", length) for length in (2, 4)]
END = 9


def write_prompts(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


def run(tokens: list[int], seconds: float = 1.0) -> dict[str, Any]:
    return {"tokens": tokens, "prefill_s": 0.5, "decode_s": seconds, "wall_s": seconds + 0.5}


def write_raw(path: Path, rounds: list[dict[Arm, dict[str, Any]]], **plan: Any) -> Path:
    """A raw file of run.py; sets `a` and `b` alternate."""
    arms = list(dict.fromkeys(arm for each in rounds for arm in each))
    header = {"experiment": "formats", "model": "m", "new_tokens": 4, "prompts": "a; b"}
    described = {
        "begun": "2026-11-25T10:00:00+00:00",
        "machine": {"cpu": "C", "threads": 2, "isa": "avx512", "commit": f"of {path.name}"},
        "parameters": 100,
        "small": "s",
        "eos_token_ids": [END],
        "stored_bytes": {arm.name: 200 for arm in arms},
        "bytes_read": {},
        "absent": {},
    }
    records = [
        {
            "prompt": number,
            "set": "ab"[number % 2],
            "before": {"8": 30.0},
            "after": {"8": 32.0},
            "memory": {arm.name: {"peak": 10**9 + number, "now": 7} for arm in each},
            "runs": {arm.name: found for arm, found in each.items()},
        }
        for number, each in enumerate(rounds)
    ]
    lines = [header | plan | {"arms": [asdict(arm) for arm in arms]}, described, *records]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_an_option_without_files_means_the_standard_library(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    assert PromptSet.named(None, None) == []
    assert [each.name for each in PromptSet.named([], [file, file])] == [
        "standard library",
        "questions.jsonl, chat",
        "questions.jsonl, chat",
    ]


def test_prompts_of_several_files_alternate_and_more_rounds_keep_the_first(tmp_path: Path) -> None:
    texts = write_prompts(tmp_path / "texts.jsonl", *(f"text {i}" for i in range(9)))
    chats = write_prompts(tmp_path / "chats.jsonl", *(f"chat {i}" for i in range(9)))
    sets, model = PromptSet.named([texts], [chats]), tmp_path / "model"
    shutil.copytree(shipped_model(), model, ignore=shutil.ignore_patterns("*.safetensors"))
    add_template(model)
    found = prompts.alternating(sets, model, 3, 200)
    assert found.sets == ["texts.jsonl", "chats.jsonl, chat", "texts.jsonl"]
    decoded = [Tokenizer.open(model).decode(text) for text in (*found.texts, found.warm_up)]
    assert "text 0" in decoded[0]
    assert "text 1" in decoded[2]
    assert all("chat" in each for each in (decoded[1], decoded[3]))
    assert decoded[1] != decoded[3]
    assert prompts.alternating(sets, model, 5, 200).texts[:3] == found.texts


def test_too_few_prompts_are_refused(tmp_path: Path) -> None:
    few = write_prompts(tmp_path / "few.jsonl", "one", "two")
    with pytest.raises(SystemExit, match=r"few\.jsonl: 3 prompts are needed, 2 fit"):
        prompts.alternating([PromptSet(few, False)], shipped_model(), 2, 200)


def test_raw_files_with_other_arms_on_the_same_prompts_are_one_experiment(tmp_path: Path) -> None:
    one = write_raw(tmp_path / "one", [{OURS: run([1, 2], 1.0), FAST: run([1, 2], 2.0)}])
    two = write_raw(tmp_path / "two", [{OURS: run([1, 2], 3.0), SLOW: run([1, 2], 12.0)}])
    found = summary.summarised(summary.merged([summary.read(one), summary.read(two)]))
    assert found["rounds"] == 1
    assert found["commits"] == ["of one", "of two"]
    assert [(arm["name"], arm["runs"]) for arm in found["arms"]] == [
        (OURS.name, 2),
        (FAST.name, 1),
        (SLOW.name, 1),
    ]
    ratios = found["specqd_over"][OURS.name]
    assert ratios[FAST.name]["decode"]["median"] == 2.0
    assert ratios[SLOW.name]["decode"]["median"] == 4.0


def test_arms_that_never_met_have_no_ratio(tmp_path: Path) -> None:
    one = write_raw(tmp_path / "one", [{OURS: run([1, 2]), FAST: run([1, 2])}])
    two = write_raw(tmp_path / "two", [{PLAIN: run([1, 2]), SLOW: run([1, 2])}])
    found = summary.summarised(summary.merged([summary.read(one), summary.read(two)]))
    assert found["specqd_over"][PLAIN.name].keys() == {SLOW.name}


def test_raw_files_of_other_plans_are_refused(tmp_path: Path) -> None:
    files = [
        write_raw(tmp_path / f"{tokens}", [{OURS: run([1, 2])}], new_tokens=tokens)
        for tokens in (4, 8)
    ]
    with pytest.raises(ValueError, match="different plans"):
        summary.merged([summary.read(file) for file in files])


def test_each_set_of_prompts_has_its_own_medians(tmp_path: Path) -> None:
    rounds = [{OURS: run([1, 2], seconds)} for seconds in (1.0, 0.25, 1.0, 0.25)]
    found = summary.summarised(summary.read(write_raw(tmp_path / "raw", rounds)))
    speeds = {
        name: of_set["arms"][0]["decode_tokens_per_s"]["median"]
        for name, of_set in found["sets"].items()
    }
    assert speeds == {"a": 1.0, "b": 4.0}
    assert found["arms"][0]["peak_memory"] == 10**9 + 3
    assert found["arms"][0]["bits_per_weight"] == 16


def test_a_run_that_reached_only_one_set_of_prompts_has_tables_too(tmp_path: Path) -> None:
    found = summary.summarised(
        summary.read(write_raw(tmp_path / "raw", [{OURS: run([1, 2]), FAST: run([1, 2])}]))
    )
    assert [row[0] for row in page.sets_table(found)["rows"]] == [
        "SpecQD BF16 + `auto`",
        "llama.cpp Q4_K_M",
    ]


def test_a_text_is_exact_if_it_is_ours_until_its_end(tmp_path: Path) -> None:
    ours = run([1, 2, END, 4])
    one = [{OURS: ours, FAST: run([1, 2, END, 5])}, {OURS: ours, FAST: run([1, 3, END, 4])}]
    two = [{SLOW: run([1, 2, END])}, {SLOW: run([1, 2, 7])}]
    files = [write_raw(tmp_path / "one", one), write_raw(tmp_path / "two", two)]
    found = summary.summarised(summary.merged([summary.read(file) for file in files]))
    exact = {arm["name"]: arm["equal_to_exact"] for arm in found["arms"]}
    assert exact == {
        OURS.name: {"outputs": 2, "equal": 2},
        FAST.name: {"outputs": 2, "equal": 1},
        SLOW.name: {"outputs": 2, "equal": 1},
    }


def test_a_draft_is_compared_with_its_own_plain_text_of_another_raw_file(tmp_path: Path) -> None:
    one = write_raw(tmp_path / "one", [{OURS: run([1, 2])}, {OURS: run([1, 3])}])
    two = write_raw(tmp_path / "two", [{PLAIN: run([1, 2])}, {PLAIN: run([1, 2])}])
    found = summary.summarised(summary.merged([summary.read(file) for file in (one, two)]))
    assert [arm["name"] for arm in found["arms"]] == [PLAIN.name, OURS.name]
    assert found["arms"][1]["equal_to_own_plain"] == {"outputs": 2, "equal": 1}


def test_the_table_shows_the_fastest_length_of_a_draft(tmp_path: Path) -> None:
    arms = {OURS: 1.0, SMALL: 0.5, FAST: 2.0, LENGTHS[0]: 1.5, LENGTHS[1]: 4.0}
    rounds = [{arm: run([1, 2], seconds) for arm, seconds in arms.items()}] * 2
    found = summary.summarised(summary.read(write_raw(tmp_path / "raw", rounds)))
    table = page.formats_table(found)
    assert [row[0] for row in table["rows"]] == [
        "SpecQD BF16 + `auto`",
        "SpecQD BF16 + `auto` with the small model",
        "llama.cpp Q4_K_M",
        "llama.cpp Q4_K_M + small model in Q4_K_M",
    ]
    llama = dict(zip([str(column) for column in table["columns"]], table["rows"][2], strict=True))
    assert list(llama.values())[1:] == [[0.5] * 3, [2.0] * 3, [4.0] * 3, 1.0, 16.0, "2 of 2"]
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
    of_sets = page.sets_table(found)
    assert all(len(row) == len(of_sets["columns"]) for row in of_sets["rows"])


def test_every_format_of_an_arm_can_be_prepared() -> None:
    files = {"specqd": "{}", "llama.cpp": "{}.gguf", "openvino": "openvino-{}"}
    for arm in FORMATS:
        names = [arm.weights] + [arm.draft.partition("/")[2]] * arm.draft.startswith("small/")
        assert {files[arm.engine].format(name) for name in names} <= prepare.FORMATS.keys()


def test_only_a_small_model_needs_another_process_of_ours() -> None:
    assert PLAIN.process == OURS.process != SMALL.process
    peers = [arm for arm in FORMATS if arm.engine != "specqd"]
    assert len({arm.process for arm in peers}) == len(peers)


def test_formats_are_made_once_and_after_those_that_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def write(_: object, to: Path) -> None:
        made.append(to.name)
        to.touch()

    monkeypatch.setitem(prepare.FORMATS, "bf16.gguf", write)
    monkeypatch.setattr(prepare, "_run", lambda *words: write(None, words[-2]))
    formats = prepare.Formats(tmp_path / "m", tmp_path, tmp_path, None)
    for _ in range(2):
        formats.make("q8_0.gguf")
    assert made == ["partial-bf16.gguf", "partial-q8_0.gguf"]
    with pytest.raises(ValueError, match="not made of a GGUF file"):
        formats.make("q4_k_m.gguf")


def test_memory_is_read_in_bytes_from_the_kernels_report() -> None:
    assert processes.kilobytes("VmPeak:\t 9 kB\nVmHWM:\t 123 kB\n", "VmHWM") == 123
    found = processes.Memory.of(os.getpid())
    assert found.peak > found.now > 10**6
