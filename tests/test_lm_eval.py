"""The lm-evaluation-harness's model has the same numbers as the Python API."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="needs the extra eval")

from specqd import LLM, SamplingParams
from specqd.errors import ConfigError, RequestError
from specqd.lm_eval import SpecqdLM
from specqd.model.scoring import score
from support.fixtures import an_llm

TASK = """\
task: next_letter
dataset_path: json
dataset_kwargs: {data_files: DATA}
test_split: train
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
target_delimiter: ""
metric_list: [{metric: acc}]
"""


@dataclass(frozen=True, slots=True)
class Request:
    """An instance of the harness, as far as the model reads it."""

    args: tuple[Any, ...]


@pytest.fixture(scope="module")
def model(small_model: Path) -> SpecqdLM:
    return SpecqdLM(str(small_model), threads=1)


llm = an_llm("small_model")


def test_loglikelihoods_are_scores(model: SpecqdLM, llm: LLM) -> None:
    pairs = [("abc", "de"), ("abc ", "de"), ("", "xyz"), ("a" * 400, "b")]
    found = model.loglikelihood([Request(pair) for pair in pairs], disable_tqdm=True)
    bos = llm.tokenizer.id_of(llm.tokenizer.named_tokens["bos_token"])
    assert bos is not None
    expected = [
        score(llm.model, llm.encode("abc"), llm.encode("de")),
        score(llm.model, llm.encode("abc"), llm.encode(" de")),
        score(llm.model, [bos], llm.encode("xyz")),
        score(llm.model, llm.encode("a" * 256), llm.encode("b")),
    ]
    assert found == [(each.logprob, each.is_greedy) for each in expected]


def test_rolling_windows_score_every_token_once(model: SpecqdLM, llm: LLM) -> None:
    text = "some words " * 40
    ids = llm.encode(text)
    bos = llm.tokenizer.id_of(llm.tokenizer.named_tokens["bos_token"])
    assert bos is not None
    assert 256 < len(ids) < 512
    [found] = model.loglikelihood_rolling([Request((text,))], disable_tqdm=True)
    first = score(llm.model, [bos], ids[:256])
    rest = score(llm.model, ids[len(ids) - 257 : 256], ids[256:])
    assert found == pytest.approx(first.logprob + rest.logprob, rel=1e-12)


def test_generated_texts_equal_the_python_api_and_stop(model: SpecqdLM, llm: LLM) -> None:
    whole = llm.generate("ab", SamplingParams(max_tokens=30, temperature=0))[0].text
    stop = whole[10:12]
    asked = [
        ("ab", {"until": [stop], "max_gen_toks": 30, "do_sample": False, "temperature": 0.0}),
        ("ab", {"until": [], "max_gen_toks": 30}),
        ("x" * 400, {"until": [], "max_gen_toks": 30}),
    ]
    found = model.generate_until([Request(each) for each in asked], disable_tqdm=True)
    long = llm.generate([llm.encode("x" * 226)], SamplingParams(max_tokens=30, temperature=0))[0]
    assert found == [whole[: whole.index(stop)], whole, long.text]


def test_sampled_texts_repeat_from_run_to_run_and_differ_among_repeats(model: SpecqdLM) -> None:
    asked = ("ab", {"until": [], "max_gen_toks": 20, "do_sample": True, "temperature": 1.0})
    requests = [Request(asked)] * 4
    found = model.generate_until(requests, disable_tqdm=True)
    assert len(set(found)) > 1
    assert model.generate_until(requests, disable_tqdm=True) == found


def test_unsupported_arguments_are_refused_by_name(model: SpecqdLM, small_model: Path) -> None:
    with pytest.raises(RequestError, match="num_beams"):
        model.generate_until([Request(("ab", {"num_beams": 4}))], disable_tqdm=True)
    with pytest.raises(ConfigError, match="max_length"):
        SpecqdLM(str(small_model), max_length=257)


def test_the_harness_runs_a_local_task(small_model: Path, llm: LLM, tmp_path: Path) -> None:
    letters, right = "abcdefgh", 0
    rows = []
    for i, letter in enumerate(letters):
        text = f"{letter}{letters[i - 1]}"
        rows.append({"text": text, "choices": list(letters), "label": i})
        scores = [score(llm.model, llm.encode(text), llm.encode(each)) for each in letters]
        right += max(range(8), key=lambda k: scores[k].logprob) == i
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = TASK.replace("DATA", str(tmp_path / "rows.jsonl"))
    (tmp_path / "next_letter.yaml").write_text(task)
    command = [sys.executable, "-m", "specqd.lm_eval", "--model", "specqd"]
    command += ["--model_args", f"pretrained={small_model},draft=fp4+ngram"]
    command += ["--include_path", str(tmp_path), "--tasks", "next_letter"]
    out = tmp_path / "results"
    subprocess.run([*command, "--output_path", str(out)], check=True, capture_output=True)
    [file] = out.rglob("results*.json")
    assert json.loads(file.read_text())["results"]["next_letter"]["acc,none"] == right / 8
