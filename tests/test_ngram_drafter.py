"""The n-gram drafter: its manners, what it takes a row to be worth, and exact levels over it."""

from math import inf
from pathlib import Path

import numpy as np
import pytest

from specqd import _native
from specqd._native import DraftRequest, Level, NgramDrafter, NoDraft, Proposal, RowCosts, Sequence
from specqd.engine.roles import Drafter
from specqd.model.model import Machine, Model
from support.random_models import Shape, make_model

# --- The drafter ----------------------------------------------------------------------------------


def sequence_of(tokens: list[int], stop_ids: frozenset[int] = frozenset()) -> Sequence:
    return Sequence(list(tokens), _native.Sampler(), len(tokens), stop_ids=stop_ids)


def propose(
    drafter: NgramDrafter,
    sequence: Sequence,
    at_most: int = 16,
    *,
    token_value_s: float = inf,
    costs: RowCosts | None = None,
) -> Proposal:
    return drafter.propose([DraftRequest(sequence, at_most, token_value_s, costs=costs)])[0]


def costs_of(row_seconds: float) -> RowCosts:
    """Costs of a verifier whose rows after the first take `row_seconds` each."""
    costs = RowCosts()
    costs.begin({1: 1.0, 101: 1.0 + 100 * row_seconds})
    return costs


def write(
    drafter: NgramDrafter, sequence: Sequence, rest: list[int], row_seconds: float
) -> tuple[int, int]:
    """Continues a sequence by `rest`, verifying as a level would; tokens drafted and accepted."""
    drafted = accepted = 0
    while rest:
        request = DraftRequest(
            sequence, len(rest) - 1, token_value_s=1.0, costs=costs_of(row_seconds)
        )
        proposal = drafter.propose([request])[0]
        pairs = enumerate(zip(proposal.tokens, rest, strict=False))
        right = next((i for i, (a, b) in pairs if a != b), len(proposal.tokens))
        drafter.observe(request, proposal, right)
        drafted += len(proposal.tokens)
        accepted += right
        sequence.tokens.extend(rest[: right + 1])
        rest = rest[right + 1 :]
    return drafted, accepted


def test_never_proposes_more_than_it_is_asked() -> None:
    drafter, sequence = NgramDrafter(), sequence_of([1, 2, 3] * 20)
    for at_most in (-1, 0, 1, 5, 32):
        proposal = propose(drafter, sequence, at_most)
        assert proposal.tokens == ([1, 2, 3] * 20)[: max(at_most, 0)]
        assert len(proposal.confidences) == len(proposal.tokens)
    assert len(propose(NgramDrafter(length=4), sequence).tokens) == 4
    assert len(propose(NgramDrafter(length=40), sequence, 64).tokens) == 40


def test_a_stop_id_ends_the_proposal() -> None:
    sequence = sequence_of([1, 2, 9, 4] * 10, frozenset({9, 10}))
    assert propose(NgramDrafter(), sequence).tokens == [1, 2, 9]
    assert propose(NgramDrafter(length=2), sequence).tokens == [1, 2]


def test_a_token_is_proposed_while_it_is_worth_its_row() -> None:
    sequence = sequence_of([1, 2, 3, 1, 2, 3, 1, 2])
    lengths = [
        len(propose(NgramDrafter(), sequence, token_value_s=1.0, costs=costs_of(seconds)).tokens)
        for seconds in (0.0, 0.3, 0.6, 2.0)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[2] > lengths[3] == 0
    assert propose(NgramDrafter(), sequence, token_value_s=0.0).tokens == []


def test_a_token_is_worth_no_more_than_its_round_takes_per_token() -> None:
    sequence = sequence_of([1, 2, 3, 1, 2, 3, 1, 2])

    def length(token_value_s: float) -> int:
        costs = costs_of(0.3)
        proposal = propose(NgramDrafter(), sequence, token_value_s=token_value_s, costs=costs)
        return len(proposal.tokens)

    assert 0 < length(1.0) == length(100.0) < 16
    assert length(0.4) < length(1.0)


def test_a_fixed_length_is_worth_what_its_tokens_save() -> None:
    """Otherwise no choice would ever take it."""
    sequence = sequence_of([1, 2, 3, 1, 2, 3, 1, 2])
    for row_seconds, token_value_s in ((0.01, 1.0), (2.0, 1.0), (0.01, inf)):
        request = DraftRequest(sequence, 16, token_value_s, costs=costs_of(row_seconds))
        [(worth, tokens)] = NgramDrafter(length=6).values([request])
        assert (worth > 0.0) == (row_seconds < 1.0 and token_value_s < inf)
        assert tokens > 0.0
        [proposal] = NgramDrafter(length=6).propose([request])
        assert len(proposal.tokens) == 6


def test_rejections_shorten_what_is_proposed() -> None:
    drafter, sequence = NgramDrafter(), sequence_of([1, 2, 3] * 5)
    request = DraftRequest(sequence, 16, token_value_s=1.0, costs=costs_of(0.2))
    before = drafter.propose([request])[0]
    for _ in range(200):
        drafter.observe(request, drafter.propose([request])[0], 0)
    after = drafter.propose([request])[0]
    assert len(after.tokens) < len(before.tokens)


def test_rejections_say_little_of_tokens_that_are_more_certain() -> None:
    drafter, sequence = NgramDrafter(), sequence_of([1, 2, 3] * 200)
    request = DraftRequest(sequence, 16, token_value_s=1.0, costs=costs_of(0.02))
    before = drafter.propose([request])[0]
    assert min(before.confidences) > 0.992
    for _ in range(20):
        drafter.observe(request, Proposal([1], [0.98]), 0)
    assert drafter.propose([request])[0].tokens == before.tokens


def test_guesses_of_outer_levels_are_continued_but_not_learned() -> None:
    drafter, sequence = NgramDrafter(), sequence_of([5, 6, 7, 8, 9, 1])
    sequence.guess([5, 6])
    assert propose(drafter, sequence, 2).tokens == [7, 8]
    sequence.forget_guesses(2)
    assert propose(drafter, sequence).tokens == []
    sequence.tokens.extend([4, 5])
    assert propose(drafter, sequence, 2).tokens == [6, 7]


def test_interleaved_sequences_know_only_their_own_text(rng: np.random.Generator) -> None:
    coming = [rng.integers(0, 3, 200).tolist() for _ in range(4)]
    together = NgramDrafter(length=6)
    sequences = [sequence_of(tokens[:1]) for tokens in coming]
    while active := [i for i in range(4) if len(sequences[i].tokens) < len(coming[i])]:
        some = [i for i in active if rng.random() < 0.7]
        proposals = together.propose([DraftRequest(sequences[i], 6) for i in some])
        for i, proposal in zip(some, proposals, strict=True):
            alone = propose(NgramDrafter(length=6), sequence_of(sequences[i].tokens), 6)
            assert (proposal.tokens, proposal.confidences) == (alone.tokens, alone.confidences)
            count = len(sequences[i].tokens)
            sequences[i].tokens.extend(coming[i][count : count + int(rng.integers(1, 30))])


def test_a_key_that_is_used_again_means_the_new_text() -> None:
    drafter = NgramDrafter()
    old = sequence_of([1, 2, 3, 1, 2])
    assert propose(drafter, old, 1).tokens == [3]
    for is_released in (True, False):
        new = sequence_of([1, 2, 4, 5, 6, 1, 2])
        new.key = old.key
        if is_released:
            drafter.release(old)
        assert propose(drafter, new, 1).tokens == [4]
        drafter.release(new)
        assert propose(drafter, old, 1).tokens == [3]
    drafter.release(sequence_of([1]))  # never seen: nothing to forget


# --- In levels ------------------------------------------------------------------------------------

NEW_TOKENS = 96


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Model:
    path: Path = tmp_path_factory.mktemp("target")
    shape = Shape(is_peaked=True)
    return Model.open(make_model(path, shape, seed), machine=Machine.choose(1))


def decode(level: Level, prompts: list[list[int]], temperature: float) -> list[list[int]]:
    """New tokens of each prompt, in one batch."""
    sequences = [
        Sequence(list(prompt), _native.Sampler(temperature=temperature, seed=i), len(prompt))
        for i, prompt in enumerate(prompts)
    ]
    while requests := [
        DraftRequest(sequence, left)
        for sequence in sequences
        if (left := sequence.prompt_length + NEW_TOKENS - len(sequence.tokens))
    ]:
        for request, step in zip(requests, level.advance(requests), strict=True):
            request.sequence.tokens.extend(step.tokens)
    for sequence in sequences:
        level.release(sequence)
    return [sequence.tokens[sequence.prompt_length :] for sequence in sequences]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("length", [None, 5])
@pytest.mark.parametrize("chain", ["ngram", "fp4, ngram", "corpus"])
def test_levels_over_it_decode_plain_decoding_s_tokens(
    chain: str, length: int | None, temperature: float, target: Model, rng: np.random.Generator
) -> None:
    plain = Level(target, NoDraft())
    starts = [rng.integers(3, 30, count).tolist() for count in (1, 20, 70)]
    said = decode(plain, starts, temperature)
    prompts = starts
    if chain != "corpus":  # what it said stands in the prompt, and the same question again
        prompts = [[*a, *b, *a] for a, b in zip(starts, said, strict=True)]
    ngram = NgramDrafter(corpus=said if chain == "corpus" else (), length=length)
    drafter: Drafter = ngram
    if chain == "fp4, ngram":
        drafter = Level(target.as_draft(), ngram, length=4)
    level = Level(target, drafter)
    assert decode(level, prompts, temperature) == decode(plain, prompts, temperature)
    over = [each for each in level.levels if isinstance(each, Level)][-1]
    assert over.drafter is ngram
    assert length is None or over.stats.accepted > 0  # else what pays depends on the machine
    assert target.cache.free_pages == target.cache.total_pages


def test_a_repeating_sequence_is_accepted() -> None:
    tokens = [token for _ in range(8) for token in range(3, 43)]
    begun = sequence_of(tokens[:50])
    drafted, accepted = write(NgramDrafter(), begun, tokens[50:], row_seconds=0.1)
    assert accepted == drafted > 200
