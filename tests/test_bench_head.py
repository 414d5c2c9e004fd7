"""`specqd bench head`: guesses are counted by place along the target's own text."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specqd import LLM, SamplingParams
from specqd._native import BlockDrafter, DraftRequest, Proposal, Rows
from specqd.bench.agreement import new_sequence
from specqd.bench.heads import HeadAcceptance, head_acceptance, head_level
from specqd.bench.readings import NextTokenBlocks, level_of, other_levels, readings
from specqd.cli import main
from specqd.errors import RequestError
from support.random_dflash import BlockShape, make_drafter
from support.random_heads import HeadShape, make_head
from support.random_models import Shape, make_model
from support.random_mtp import make_mtp_model
from support.writers import write_lines

SHAPE = Shape(layers=4, context=128, is_peaked=True)
NEW, GUESSES = 20, 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), SHAPE, seed=1)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_head(tmp_path_factory.mktemp("head"), SHAPE, HeadShape(), seed=2)


@pytest.fixture(scope="module")
def llm(model: Path, head: Path) -> LLM:
    return LLM(model, f"head:{head}:k={GUESSES}")


def quiet(done: int, total: int) -> None:
    assert 0 < done <= total


@dataclass
class Stats:
    seconds: float = 0.0
    forwards: int = 0


class FakeLevel:
    """Proposes the truth, but for the tokens at some places of the text."""

    def __init__(self, truth: list[int], wrong: set[int]) -> None:
        self.truth, self.wrong = truth, wrong
        self.length, self.stats = GUESSES, Stats()

    def propose(self, requests: list[DraftRequest]) -> list[Proposal]:
        [request] = requests
        first = len(request.sequence.tokens)
        tokens = [
            -1 if at in self.wrong or at >= len(self.truth) else self.truth[at]
            for at in range(first, first + request.at_most)
        ]
        self.stats.forwards += request.at_most
        self.stats.seconds += 0.5 * request.at_most
        return [Proposal(tokens, [1.0] * len(tokens))]

    def release(self, sequence: Any) -> None:
        pass


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_guesses_count_if_all_before_them_are_accepted(
    llm: LLM, rng: np.random.Generator, temperature: float
) -> None:
    prompt = rng.integers(0, 250, int(rng.integers(1, 9))).tolist()
    params = SamplingParams(max_tokens=NEW, temperature=temperature, seed=3)
    params = params.resolved(llm.defaults)
    [made] = llm.generate([prompt], params)[0].completions
    truth = [*prompt, *made.tokens]
    new = len(truth) - len(prompt)
    wrong = {len(prompt) + int(at) for at in rng.choice(NEW, 6, replace=False)}
    level: Any = FakeLevel(truth, wrong)
    seconds = iter(range(10**6))
    found = head_acceptance(llm, level, [prompt], params, quiet, clock=lambda: next(seconds))
    starts = range(len(prompt) + 1, len(truth) + 1)
    for place in range(GUESSES):
        known = [at for at in starts if at + place < len(truth)]
        good = [at for at in known if not wrong & {*range(at, at + place)}]
        assert found.judged[place] == len(known)
        assert found.reached[place] == len(good)
        assert found.accepted[place] == len([at for at in good if at + place not in wrong])
    shares = [r / j if j else 0.0 for r, j in zip(found.accepted, found.judged, strict=True)]
    assert found.accepted_length == pytest.approx(1 + sum(shares))
    if new > 1:
        assert found.step_s == pytest.approx(0.5)
    assert found.target_s == 1.0


def test_a_head_is_measured_on_the_text_that_the_model_writes(
    llm: LLM, rng: np.random.Generator
) -> None:
    prompts = [rng.integers(0, 250, 5).tolist() for _ in range(2)]
    params = SamplingParams(max_tokens=NEW, temperature=0.0).resolved(llm.defaults)
    new = [len(each.completions[0].tokens) for each in llm.generate(prompts, params)]
    found = head_acceptance(llm, head_level(llm.engine), prompts, params, quiet)
    for place in range(GUESSES):
        assert found.judged[place] == sum(max(count - 1 - place, 0) for count in new)
    assert found.step_s > 0
    assert found.target_s > 0


def test_other_readings_differ_in_one_thing(llm: LLM) -> None:
    head = head_level(llm.engine).model
    stated, others = head.files.config, dict(readings(head, SHAPE.layers))
    assert others["layer ids -1"].config.taps == tuple(tap - 1 for tap in stated.taps)
    assert others["layer ids +1"].config.taps == tuple(tap + 1 for tap in stated.taps)
    assert others["norm_output true"].config.recycles_normed
    assert others["norm_before_residual true"].config.keeps_normed
    for name, files in others.items():
        differing = [
            field
            for field in ("taps", "rope", "keeps_normed", "recycles_normed", "num_heads")
            if getattr(files.config, field) != getattr(stated, field)
        ]
        assert len(differing) == 1, name
        level = level_of(files, head, llm.model, GUESSES)
        params = SamplingParams(max_tokens=4, temperature=0.0).resolved(llm.defaults)
        assert head_acceptance(llm, level, [[5, 6, 7]], params, quiet, name).reading == name


@pytest.mark.parametrize("is_dflash2", [False, True])
def test_a_drafter_of_blocks_is_measured_in_other_readings(
    is_dflash2: bool, model: Path, tmp_path: Path
) -> None:
    kinds = ("sliding_attention", "full_attention")
    shape = BlockShape(taps=(1, 3), block=6, layer_types=kinds, window=8, rope_theta=1e4)
    if is_dflash2:
        shape = replace(shape, convolution=(2, 8), selector=(12, 16))
    drafter = make_drafter(tmp_path, SHAPE, shape, seed=3)
    llm = LLM(model, f"head:{drafter}:k=5")
    level = head_level(llm.engine)
    others = dict(readings(level.model, SHAPE.layers))
    thetas = {"rope theta 500000", "rope theta 1e+06"}
    causal = {"is_causal false", "causal in all layers"}
    selector = {"no selector"} if is_dflash2 else set[str]()
    assert {*others} == {"layer ids -1", "layer ids +1", *causal, *thetas, *selector}
    assert others["is_causal false"].layers.causal == (False, False)
    assert others["causal in all layers"].layers.causal == (True, True)
    params = SamplingParams(max_tokens=6, temperature=0.0).resolved(llm.defaults)
    stated = head_acceptance(llm, level, [[5, 6, 7]], params, quiet)
    assert stated.judged[0] == 5
    assert stated.step_s > 0
    for name, files in others.items():
        level = level_of(files, level.model, llm.model, 5)
        assert head_acceptance(llm, level, [[5, 6, 7]], params, quiet, name).reading == name


def test_nats_are_the_cross_entropy_of_the_text(model: Path, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, SHAPE, BlockShape(taps=(1, 3), block=6), seed=3)
    llm = LLM(model, f"head:{drafter}:k={GUESSES}")
    level, target = head_level(llm.engine), llm.model
    assert isinstance(level, BlockDrafter)
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True).resolved(llm.defaults)
    prompts = [[5, 6, 7], [8, 9]]
    found = head_acceptance(llm, level, prompts, params, quiet)
    losses: list[list[float]] = [[] for _ in range(GUESSES)]
    for prompt, reply in zip(prompts, llm.generate(prompts, params), strict=True):
        text = [*prompt, *reply.completions[0].tokens]
        for length in range(len(prompt) + 1, len(text)):
            sequence = new_sequence(text[:length], params, 0, llm.engine.eos_token_ids)
            target.forward([Rows(target.context(sequence), 0, text[: length - 1], 0)])
            level.propose([DraftRequest(sequence, GUESSES)])
            logits = level.model.logits().astype(np.float64)
            for place, token in enumerate(text[length : length + GUESSES]):
                row = logits[place] - logits[place].max()
                losses[place].append(np.log(np.exp(row).sum()) - row[token])
            level.release(sequence)
            target.release(sequence)
    assert found.nats == pytest.approx(np.mean([np.mean(each) for each in losses]), rel=1e-5)


def test_readings_are_compared_by_prompt(rng: np.random.Generator) -> None:
    judged = rng.integers(20, 30, (9, GUESSES))
    accepted, nats = rng.integers(0, 20, (9, GUESSES)), rng.random((9, GUESSES))
    stated = HeadAcceptance("as stated", 0.0, judged, accepted, judged, nats, 1.0, 1.0)
    worse = replace(stated, nats_by_prompt=nats + 0.25 * judged)
    assert stated.length_above(stated) == (0, 0, 0)
    assert worse.nats_above(stated) == pytest.approx((0.25, 0.25, 0.25))
    mixed = replace(stated, accepted_by_prompt=rng.permutation(accepted))
    difference, low, high = mixed.length_above(stated)
    assert difference == pytest.approx(mixed.accepted_length - stated.accepted_length)
    assert low <= difference <= high
    assert low < high
    fewer = judged - [0, 1, 2]  # its proposals end earlier
    shorter = replace(stated, judged_by_prompt=fewer, accepted_by_prompt=accepted * fewer // judged)
    assert shorter.length_above(stated)[0] == pytest.approx(
        shorter.accepted_length - stated.accepted_length
    )
    assert replace(stated, nats_by_prompt=None).nats_above(stated) is None


def test_rows_that_predict_the_next_token_are_one_row_earlier(model: Path, tmp_path: Path) -> None:
    drafter = make_drafter(tmp_path, SHAPE, BlockShape(taps=(1, 3), block=6), seed=3)
    llm = LLM(model, f"head:{drafter}:k=5")
    level, target = head_level(llm.engine), llm.model
    shifted = dict(other_levels(level, target))["rows predict the next token"]
    assert isinstance(shifted, NextTokenBlocks)
    params = SamplingParams(max_tokens=1, temperature=0.0).resolved(llm.defaults)
    sequence = new_sequence([5, 6, 7], params, 0, llm.engine.eos_token_ids)
    target.forward([Rows(target.context(sequence), 0, [5, 6], 0)])
    [proposal] = level.propose([DraftRequest(sequence, 5)])
    [other] = shifted.propose([DraftRequest(sequence, 5)])
    assert other.tokens[1:] == proposal.tokens[:4]
    assert sequence.tokens[:] == [5, 6, 7]
    assert shifted.stats.forwards == 1
    found = head_acceptance(llm, shifted, [[5, 6, 7]], replace(params, max_tokens=6), quiet)
    assert found.judged[0] == 5


@pytest.mark.parametrize("draft", ["none", "fp4", "ngram", "auto"])
def test_other_drafts_are_refused(model: Path, draft: str) -> None:
    with pytest.raises(RequestError, match="write head:DIR"):
        head_level(LLM(model, draft).engine)


def test_the_command_prints_a_table_and_one_json_object(
    model: Path, head: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = write_lines(tmp_path / "prompts.jsonl", [{"prompt": "abc"}, {"prompt": "xyz"}])
    words = ["bench", "head", model, "--draft", f"head:{head}", "--prompts", prompts, "-n", 8]
    words += ["--guesses", 2, "--temperature", 0, "--json", "-"]
    assert main(list(map(str, words))) == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert "guess 2" in table[1]
    [result] = json.loads(last)["results"]
    assert result["reading"] == "as stated"
    assert len(result["acceptance_at"]) == 2


def test_other_readings_of_an_mtp_layer_are_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = Shape("qwen2", context=256, is_peaked=True)
    model = make_mtp_model(tmp_path / "model", shape, 1, is_knowing=True)
    prompts = write_lines(tmp_path / "prompts.jsonl", [{"prompt": "abc"}, {"prompt": "xyz"}])
    words = ["bench", "head", model, "--draft", "mtp", "--prompts", prompts, "-n", 20]
    words += ["--guesses", 2, "--temperature", 0, "--probe", "--json", "-"]
    assert main(list(map(str, words))) == 0
    *table, last = capsys.readouterr().out.splitlines()
    results = json.loads(last)["results"]
    differences = table[table.index("Differences from the configuration as stated:") + 2 :]
    assert [line.split("  ")[0] for line in differences] == [
        each["reading"] for each in results if each["reading"] != "as stated"
    ]
    found = {each["reading"]: each["mean_accepted_length"] for each in results}
    fields = ("reads_normed false", "recycles_normed false", "hidden_first false")
    assert {*found} == {"as stated", *(f"mtp_{field}" for field in (*fields, "blanks_first false"))}
    assert found["as stated"] > found["mtp_hidden_first false"]  # which swaps the halves


@pytest.mark.parametrize("word", ["fp4", "head:x|ngram", "head:x:k=3"])
def test_the_command_refuses_other_words(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    prompts = write_lines(tmp_path / "prompts.jsonl", [{"prompt": "abc"}])
    words = ["bench", "head", str(model), "--draft", word, "--prompts", str(prompts)]
    assert main(words) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("write head:DIR or mtp, then :bf16 or :fp4 if needed")
