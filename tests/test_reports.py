"""Statistics of a call add up, and count that call alone."""

import json

import pytest

from specqd import LLM, SamplingParams
from specqd._native import LevelStats
from specqd.engine.reports import Stats
from support.fixtures import an_llm
from support.level_reports import report

GREEDY = SamplingParams(max_tokens=40, temperature=0, seed=1, ignore_eos=True)


llm = an_llm("small_model", "fp4:k=4")


def run(llm: LLM, count: int = 40, prompts: int = 1) -> Stats:
    params = SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)
    return llm.generate([[65, 66, 67 + i] for i in range(prompts)], params)[0].stats


@pytest.mark.parametrize("prompts", [1, 3])
def test_numbers_of_a_call_add_up(llm: LLM, prompts: int) -> None:
    stats = run(llm, prompts=prompts)
    target, draft = stats.levels
    assert (target.name, draft.name) == stats.chain == ("bf16", "fp4")
    assert stats.new_tokens == 40 * prompts
    assert stats.decoded_tokens == 39 * prompts  # the first came with the prompt
    assert target.drafted == sum(target.drafted_at) > 0
    assert target.accepted == sum(target.accepted_at)
    assert list(target.drafted_at) == sorted(target.drafted_at, reverse=True)
    assert len(target.drafted_at) <= 4
    # Rows: each prompt, then each round's last token and its drafts.
    rounds = stats.decoded_tokens - target.accepted
    assert target.rows == 3 * prompts + rounds + target.drafted
    assert draft.rows >= target.drafted  # each was sampled from one of its rows
    assert (draft.drafted, draft.acceptance, draft.mean_accepted_length) == (0, None, None)
    assert target.seconds + target.pick_seconds < stats.prefill_s + stats.decode_s
    gigabytes = target.forwards * llm.model.bytes_per_forward / 1e9
    assert target.gigabytes == pytest.approx(gigabytes)
    assert target.gb_per_s == pytest.approx(gigabytes / target.seconds)


def test_the_report_tells_how_much_of_a_long_context_a_draft_read() -> None:
    llm = LLM(draft="fp4:k=4:context=192")
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    stats = llm.generate([[65 + i % 50 for i in range(440)]], params)[0].stats
    target, draft = stats.levels
    assert target.cache_share == 1
    # 3 of 7 to 8 pages, in blocks of half a page; a draft that grows into a page reads 4.
    assert draft.cache_share is not None
    assert 2.5 / 8 < draft.cache_share < 4 / 7
    assert report().cache_share is None
    described = stats.described()["levels"][1]
    assert described["cache_share"] == draft.cache_share


def test_mean_accepted_length_is_tokens_per_round_if_all_rounds_draft(llm: LLM) -> None:
    stats = run(llm, 39)
    target = stats.levels[0]
    rounds = target.forwards - 1
    if target.drafted_at[0] == rounds:  # the last round may be too short for a draft
        assert target.mean_accepted_length == pytest.approx(stats.decoded_tokens / rounds)
    assert target.mean_accepted_length == 1 + target.accepted / target.drafted_at[0]


def test_a_second_call_reports_only_itself(llm: LLM) -> None:
    first, second, short = run(llm), run(llm), run(llm, 3)
    for ours, theirs in zip(first.levels, second.levels, strict=True):
        assert (ours.forwards, ours.drafted_at, ours.accepted_at) == (
            theirs.forwards,
            theirs.drafted_at,
            theirs.accepted_at,
        )
    assert short.levels[0].drafted == sum(short.levels[0].drafted_at) <= 2
    assert len(short.levels[0].drafted_at) <= 2  # no places of earlier, longer proposals


def test_a_report_does_not_change_after_the_call(llm: LLM) -> None:
    stats = run(llm)
    before = json.dumps(stats.described())
    run(llm)
    assert json.dumps(stats.described()) == before


def test_acceptance_is_counted_by_place() -> None:
    counted = LevelStats()
    for drafted, accepted in [(3, 3), (3, 1), (1, 0), (0, 0)]:
        counted.count(drafted, accepted)
    level = report(
        drafted=counted.drafted,
        accepted=counted.accepted,
        drafted_at=tuple(counted.drafted_at),
        accepted_at=tuple(counted.accepted_at),
    )
    assert level.acceptance == 4 / 7
    assert level.acceptance_at == (2 / 3, 1 / 2, 1 / 2)
    assert level.mean_accepted_length == pytest.approx((4 + 2 + 1) / 3)


def test_sums_and_differences_undo_each_other() -> None:
    long = report(forwards=3, drafted=5, accepted=4, drafted_at=(2, 2, 1), accepted_at=(2, 1, 1))
    short = report(forwards=1, drafted=1, accepted=0, drafted_at=(1,), accepted_at=(0,))
    assert (long + short).drafted_at == (3, 2, 1)
    assert (long + short).since(long) == short
    assert (short + long).since(short) == long


def test_statistics_are_written_as_json(llm: LLM) -> None:
    described = json.loads(json.dumps(run(llm).described()))
    assert list(described) == [
        *("prompt_tokens", "read_tokens", "new_tokens", "prefill_s", "decode_s"),
        *("tokens_per_s", "levels"),
    ]
    target, draft = described["levels"]
    assert len(target["acceptance_at"]) == len(target["drafted_at"])
    assert draft["acceptance"] is None
    assert all(0 <= share <= 1 for share in target["acceptance_at"])


def test_every_token_has_an_origin(llm: LLM) -> None:
    result = llm.generate([[65, 66, 67]], GREEDY)[0]
    origins = result.completions[0].origins
    assert len(origins) == len(result.tokens)
    target = result.stats.levels[0]
    assert sum(origin.depth == 1 for origin in origins) == target.accepted
    assert sum(origin.depth == 0 for origin in origins) == target.forwards
    assert all(0 < origin.probability <= 1 for origin in origins)
    plain = llm.with_draft("none").generate([[65, 66, 67]], GREEDY)[0].completions[0]
    assert {origin.depth for origin in plain.origins} == {0}
    assert [o.probability for o in plain.origins] == [o.probability for o in origins]
    assert plain == result.completions[0]  # origins do not enter equality


def test_a_prompt_is_prefilled_again_without_prefix_reuse(llm: LLM) -> None:
    other = llm.with_draft("none")
    prompt = [[65 + i % 50 for i in range(150)]]
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    rows = []
    for reuses in (True, True, False):
        other.engine.scheduler.reuses_prefixes = reuses
        rows.append(other.generate(prompt, params)[0].stats.levels[0].rows)
    assert rows == [151, 151 - 128, 151]


def test_a_draft_reports_the_value_of_its_tokens(llm: LLM) -> None:
    target, draft = run(llm).levels
    assert target.token_value_s is None  # no level requests from the outermost
    assert draft.token_value_s is not None
    assert 0.0 < draft.token_value_s < 10.0
    assert draft.asked == target.drafted_at[0]
