"""`specqd inspect --drafts`: what is tried, who leaves, what is suggested."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from specqd import LLM, SamplingParams
from specqd.bench import levels, rounds
from specqd.bench.agreement import agreement
from specqd.bench.levels import Arm, Run, Summary, make_arms, summarised, trials, words_of
from specqd.bench.suggestion import (
    DEFAULT_PROMPTS,
    HEATS,
    best_of,
    candidates,
    hold_heats,
    usable_arms,
)
from specqd.cli import main
from specqd.cli.suggest import command_for
from specqd.errors import HubError, RequestError
from specqd.llm.draft_words import parse_chain
from support.families import FAMILY_SHAPES
from support.random_models import Shape, make_model, swap_tokens

PARAMS = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
CHAINS = [f"fp4:k={k}" for k in range(1, 7)]


@dataclass(frozen=True, slots=True)
class Models:
    target: Path
    small: Path  # may draft for it; its name holds a blank
    stranger: Path  # has another tokenizer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Models:
    at = tmp_path_factory.mktemp("models")
    shape = Shape(is_peaked=True, context=256)
    target = make_model(at / "target", shape, seed)
    small = make_model(at / "a small one", replace(shape, layers=1), seed + 1)
    stranger = make_model(at / "stranger", replace(shape, layers=1), seed + 2)
    swap_tokens(stranger, 3, 4)
    return Models(target, small, stranger)


@pytest.fixture(scope="module")
def plain(models: Models) -> LLM:
    return LLM(models.target, "none", threads=1)


@pytest.fixture(autouse=True)
def quick_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "bandwidth_at", lambda machine, size: 8.0)


# --- What is tried ----------------------------------------------------------------------------


def test_each_model_is_tried_alone_in_both_precisions_and_in_a_chain() -> None:
    chains = candidates(["./s", "./my models/t", "./s"])
    assert [words_of(chain) for chain in chains] == [
        ["fp4"], ["ngram"], ["auto"],
        ["./s:bf16"], ["./s:fp4"], ["fp4", "./s:fp4", "ngram"],
        ["./my models/t:bf16"], ["./my models/t:fp4"],
        ["fp4", "./my models/t:fp4", "ngram"],
    ]  # fmt: skip


def test_a_model_in_mxfp4_is_not_its_own_draft() -> None:
    words = [words_of(chain) for chain in candidates(["s"], is_mxfp4=True)]
    assert words == [["ngram"], ["s:bf16"], ["s:fp4"], ["s:fp4", "ngram"]]


def test_nothing_drafts_for_a_head() -> None:
    chains = [words_of(chain) for chain in candidates(["head:h"])[3:]]
    assert chains == [["head:h:bf16"], ["head:h:fp4"], ["fp4", "head:h:fp4"]]
    for chain in chains:
        parse_chain(chain)


def test_a_chain_with_an_open_quotation_is_refused() -> None:
    with pytest.raises(RequestError, match="close the quotation"):
        words_of("fp4 'a small")


def test_a_model_that_cannot_draft_is_left_out_of_all_chains(models: Models, plain: LLM) -> None:
    stranger, small = str(models.stranger), str(models.small)
    arms, left_out = usable_arms(plain, [stranger, small])
    assert [arm.chain for arm in arms] == ["none", *candidates([small])]
    [only] = left_out
    assert only.draft == stranger
    assert "a draft must have the model's tokenizer" in only.reason


def test_a_model_that_is_not_there_is_an_error(plain: LLM, tmp_path: Path) -> None:
    with pytest.raises(HubError, match="nowhere"):
        usable_arms(plain, [str(tmp_path / "nowhere")])


# --- Heats ------------------------------------------------------------------------------------


@pytest.fixture
def timed_as(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, int]]]:
    """Gives runs the seconds that a function of chain and seed says; lists the runs made."""
    real = levels.timed

    def install(arms: list[Arm], seconds: Callable[[str, int], float]) -> list[tuple[str, int]]:
        made: list[tuple[str, int]] = []
        chains = {id(arm.llm): arm.chain for arm in arms}

        def timed(llm: LLM, prompt: list[int], params: SamplingParams) -> Run:
            assert params.seed is not None
            run = real(llm, prompt, params)
            if params.max_tokens == PARAMS.max_tokens:
                made.append((chains[id(llm)], params.seed))
            return replace(run, decode_s=seconds(chains[id(llm)], params.seed))

        monkeypatch.setattr(levels, "timed", timed)
        return made

    return install


def test_clear_losers_leave_after_each_heat_and_the_best_stays(
    plain: LLM, timed_as: Callable[..., list[tuple[str, int]]]
) -> None:
    arms = make_arms(plain, CHAINS)
    made = timed_as(arms, lambda chain, seed: 1.0 + CHAINS.index(chain) if chain in CHAINS else 9.0)
    summaries = hold_heats(arms, DEFAULT_PROMPTS, PARAMS, 60.0, clock=lambda: 0.0)
    assert [summary.chain for summary in summaries] == ["none", *CHAINS]
    assert [round(s.over_plain.median, 6) for s in summaries[:3]] == [1.0, 9.0, 4.5]
    runs = {chain: sum(made_chain == chain for made_chain, _ in made) for chain in CHAINS}
    assert list(runs.values()) == [14, 14, 6, 2, 2, 2]
    assert sum(chain == "none" for chain, _ in made) == sum(HEATS)
    assert best_of(summaries).chain == CHAINS[0]


def test_what_may_yet_be_the_best_stays(
    plain: LLM, timed_as: Callable[..., list[tuple[str, int]]]
) -> None:
    arms = make_arms(plain, CHAINS[:4])
    made = timed_as(arms, lambda chain, seed: 1.0 if seed % 2 else 2.0 + len(chain) / 100)
    hold_heats(arms, DEFAULT_PROMPTS, PARAMS, 60.0, clock=lambda: 0.0)
    assert len(made) == 5 * sum(HEATS)


def test_heats_end_when_their_time_is_over(
    plain: LLM, timed_as: Callable[..., list[tuple[str, int]]]
) -> None:
    arms = make_arms(plain, CHAINS[:1])
    made = timed_as(arms, lambda chain, seed: 1.0)
    ticks = iter(range(0, 10**6, 1000))
    hold_heats(arms, DEFAULT_PROMPTS, PARAMS, 60.0, clock=lambda: float(next(ticks)))
    assert len(made) == 2 * len(HEATS)  # one prompt each, of two arms


def test_the_best_is_the_shortest_of_those_that_are_as_fast(plain: LLM) -> None:
    arms = make_arms(plain, ["fp4", "fp4 ngram"])
    real = summarised(arms, list(trials(arms, ["ab"], PARAMS)))

    def best(*speeds: float) -> str:
        summaries: list[Summary] = [
            replace(summary, over_plain=rounds.Interval(speed, speed, speed))
            for summary, speed in zip(real, speeds, strict=True)
        ]
        return best_of(summaries).chain

    assert best(1.0, 2.0, 2.5) == "fp4 ngram"
    assert best(1.0, 2.0, 2.01) == "fp4"
    assert best(1.0, 0.9, 1.01) == "none"


def test_the_command_is_quoted_for_a_shell() -> None:
    assert command_for(None, "auto") == "specqd generate --draft auto"
    chain = "fp4 'my small:fp4' ngram"
    assert command_for("./m 1", chain) == (
        "specqd generate './m 1' --draft fp4 --draft 'my small:fp4' --draft ngram"
    )


# --- The command ------------------------------------------------------------------------------


def test_the_table_ends_with_a_command_that_runs(
    models: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["inspect", str(models.target), "--drafts", str(models.small), str(models.stranger)]
    assert main([*command, "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert f"specqd: note: {models.stranger} is left out: " in err
    lines = out.splitlines()
    header = ["own", "draft", "temperature", "agrees", "positions", "bits/weight", "of"]
    assert lines[0].split() == header
    assert [line.split()[0] for line in lines[1:4]] == ["fp4", "mxfp4", "mxfp4-floor"]
    assert lines[4] == ""
    assert len(lines) == 5 + 2 + 7 + 1  # the formats; setting, header; plain, six chains; best
    best = words_of(lines[-1].removeprefix("best: specqd "))
    assert best[:2] == ["generate", str(models.target)]
    assert main([*best, "-p", "ab", "-n", "4", "--threads", "1"]) == 0


def test_json_is_one_object(
    models: Models, plain: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "ab"}\n{"prompt": "cd"}\n{"prompt": "ef"}\n')
    command = ["inspect", str(models.target), "--json", "--threads", "1"]
    assert main([*command, "--prompts", str(prompts), "--temperature", "0.8", "--drafts"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["prompts"], printed["num_prompts"]) == ("p.jsonl", 3)
    [sampled] = printed["temperatures"]
    assert sampled["temperature"] == 0.8
    assert [arm["chain"] for arm in sampled["arms"]] == ["none", "fp4", "ngram", "auto"]
    assert printed["best"]["chain"] in [arm["chain"] for arm in sampled["arms"]]
    assert printed["best"]["command"].startswith(f"specqd generate {models.target} --draft ")
    assert printed["left_out"] == []
    params = SamplingParams(max_tokens=64, temperature=0.8)
    prompts = [plain.encode(text) for text in ("ab", "cd", "ef")]
    stop_ids = frozenset(plain.model.config.eos_token_ids)
    expected = agreement(plain.model, prompts, params, stop_ids=stop_ids)
    own, *others = printed["agreement"]
    assert own | expected.described() == own
    assert own["draft_format"] == "fp4"
    assert [each["draft_format"] for each in others] == ["mxfp4", "mxfp4-floor"]
    bits = own["bits_per_weight"]
    assert 4 < bits["draft"] < 5 < bits["exact"] < 20.5


def test_a_model_in_mxfp4_has_no_agreement(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(tmp_path / "model", FAMILY_SHAPES["gpt_oss"], seed)
    assert main(["inspect", str(model), "--drafts", "--json", "--threads", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["agreement"] == []


@pytest.mark.parametrize(
    "options", [["--matrices", "--drafts"], ["--prompts", __file__], ["--temperature", "1"]]
)
def test_options_that_do_not_go_together_are_wrong_usage(options: list[str]) -> None:
    assert main(["inspect", *options]) == 2
