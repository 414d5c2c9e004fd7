"""Levels over a fake model: whatever drafts, the outermost level's tokens are its own."""

import gc
import random
import weakref
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specqd import _native
from specqd._native import Context, DraftRequest, Level, NoDraft, Proposal, Sequence
from specqd.engine.roles import Drafter, Grammar
from support.fake_model import FakeDrafter, FakeModel, Rule, next_by_hash, often

VOCABULARY = 64


class Scripted(FakeDrafter):
    """Proposes what a function of the tokens says, right or wrong, as far as it is asked."""

    def __init__(self, script: "Rule | random.Random") -> None:
        self._script = script
        self.asked: list[int] = []
        self.released: list[int] = []

    def answer(self, request: DraftRequest) -> Proposal:
        self.asked.append(request.at_most)
        tokens: list[int] = []
        if isinstance(self._script, random.Random):
            length = self._script.randint(0, request.at_most)
            tokens = [self._script.randrange(VOCABULARY) for _ in range(length)]
        else:
            while len(tokens) < request.at_most:
                tokens.append(self._script((*request.sequence.tokens, *tokens)))
        return Proposal(tokens, [0.9] * len(tokens))

    def release(self, sequence: Sequence) -> None:
        self.released.append(sequence.key)


def new_sequence(
    prompt: SequenceOf[int] = (1, 2, 3),
    *,
    stop_ids: frozenset[int] = frozenset(),
    grammar: Grammar | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> Sequence:
    sampler = _native.Sampler(temperature=temperature, seed=seed)
    return Sequence(list(prompt), sampler, len(prompt), grammar=grammar, stop_ids=stop_ids)


def new_tokens(level: Level, sequences: SequenceOf[Sequence], count: int) -> list[list[int]]:
    """Advances until each sequence has `count` new tokens."""
    while active := [s for s in sequences if len(s.tokens) - s.prompt_length < count]:
        requests = [DraftRequest(s, count - (len(s.tokens) - s.prompt_length)) for s in active]
        for request, step in zip(requests, level.advance(requests), strict=True):
            assert 1 <= len(step.tokens) <= request.at_most
            assert len(step.confidences) == len(step.tokens)
            request.sequence.tokens.extend(step.tokens)
    return [s.tokens[s.prompt_length :] for s in sequences]


def plain(rule: Rule, prompt: SequenceOf[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(rule(tuple(tokens)))
    return tokens[len(prompt) :]


TARGET = next_by_hash(VOCABULARY)
WRONG: Rule = lambda prefix: (TARGET(prefix) + 1) % VOCABULARY  # noqa: E731


# --- One step ---------------------------------------------------------------------------------


def test_a_prompt_is_read_before_anything_is_drafted() -> None:
    drafter = Scripted(TARGET)
    model = FakeModel(TARGET)
    sequence = new_sequence((5, 6, 7, 8))
    [step] = Level(model, drafter).advance([DraftRequest(sequence, 9)])
    assert drafter.asked == [0]
    assert step.tokens == plain(TARGET, (5, 6, 7, 8), 1)
    assert model.forwards == [[4]]
    assert sequence.tokens == [5, 6, 7, 8]


def test_a_part_of_a_prompt_is_read_beside_a_sequence_that_decodes() -> None:
    drafter = Scripted(TARGET)
    model = FakeModel(TARGET)
    level = Level(model, drafter)
    decoding, long = new_sequence(), new_sequence(range(40))
    new_tokens(level, [decoding], 1)
    made, part = level.advance([DraftRequest(decoding, 6), DraftRequest(long, 6, reads=25)])
    assert made.tokens == plain(TARGET, decoding.tokens, 6)
    assert part.tokens == []
    assert level.num_unread(long) == 39 - 25
    assert model.forwards[-1] == [6, 25]
    assert drafter.asked[-2:] == [5, 0]
    [step] = level.advance([DraftRequest(long, 6, reads=14)])
    assert step.tokens == plain(TARGET, range(40), 1)


def test_scored_rows_come_before_those_that_are_verified() -> None:
    model = FakeModel(TARGET)
    level = Level(model, NoDraft())
    first, second = new_sequence(range(20)), new_sequence(range(20, 30))
    requests = [DraftRequest(first, 1, reads=10, scores=4), DraftRequest(second, 1, scores=9)]
    part, step = level.advance(requests)
    assert (part.row, step.row) == (4, 4 + 9)
    assert model.logit_rows == 4 + 9 + 1
    assert step.tokens == plain(TARGET, range(20, 30), 1)


def test_a_drafter_reads_a_long_prompt_in_parts_and_proposes_nothing_before() -> None:
    """Forwards of the fake model take no time, so a part has as many tokens as a forward may."""
    small = FakeModel(TARGET)
    level = Level(FakeModel(TARGET), Level(small, NoDraft(), length=3))
    prompt, made = [i % VOCABULARY for i in range(1500)], []
    sequence = new_sequence(prompt)
    for _ in range(6):
        [step] = level.advance([DraftRequest(sequence, 4)])
        sequence.tokens.extend(step.tokens)
        made.append(len(step.tokens))
    assert made == [1, 1, 1, 1, 4, 4]
    assert [sum(rows) for rows in small.forwards[:3]] == [64, 512, 512]
    assert sequence.tokens == [*prompt, *plain(TARGET, prompt, sum(made))]


@pytest.mark.parametrize("right", range(6))
def test_a_step_is_the_right_prefix_and_then_its_own_token(right: int) -> None:
    """From no token of five accepted to all of them."""
    sequence = new_sequence()
    right_length = len(sequence.tokens) + 1 + right
    drafter = Scripted(lambda prefix: (TARGET if len(prefix) < right_length else WRONG)(prefix))
    model = FakeModel(TARGET)
    level = Level(model, drafter)
    new_tokens(level, [sequence], 1)
    [step] = level.advance([DraftRequest(sequence, 6)])
    assert step.tokens == plain(TARGET, sequence.tokens, right + 1)
    assert step.drafted == 5
    assert level.advance([DraftRequest(sequence, 1)])[0].drafted == 0
    assert model.forwards[-2] == [6]  # the last token and five guesses
    assert (level.stats.drafted, level.stats.accepted) == (5, right)


@pytest.mark.parametrize("at_most", [1, 2, 3, 7])
def test_no_more_is_drafted_than_may_be_used(at_most: int) -> None:
    drafter = Scripted(TARGET)
    level = Level(FakeModel(TARGET), drafter)
    sequence = new_sequence()
    new_tokens(level, [sequence], 1)
    [step] = level.advance([DraftRequest(sequence, at_most)])
    assert max(drafter.asked, default=0) == at_most - 1
    assert len(step.tokens) == at_most


# --- Recursion --------------------------------------------------------------------------------


def chain(target: FakeModel, rng: random.Random, depth: int) -> Level:
    """Levels of any kind under the target: its own drafts, other models, a random drafter."""
    drafter: Drafter = NoDraft() if rng.random() < 0.3 else Scripted(random.Random(rng.random()))
    for _ in range(depth):
        rule = often(TARGET, next_by_hash(VOCABULARY, salt=1), percent=rng.randrange(101))
        is_own = rng.random() < 0.5
        model = target.as_draft(rule) if is_own else FakeModel(rule, VOCABULARY)
        drafter = Level(model, drafter, length=rng.choice([None, 1, 2, 3, 5, 8]))
    return Level(target, drafter)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), depth=st.integers(0, 3), batch=st.integers(1, 4))
def test_any_chain_gives_the_target_s_own_tokens(seed: int, depth: int, batch: int) -> None:
    rng = random.Random(seed)
    prompts = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 9))] for _ in range(batch)]
    target = FakeModel(TARGET)
    level = chain(target, rng, depth)
    sequences = [new_sequence(prompt) for prompt in prompts]
    found = new_tokens(level, sequences, 40)
    assert found == [plain(TARGET, prompt, 40) for prompt in prompts]
    for each in sequences:
        level.release(each)
    assert all(model.cached_sequences == 0 for model in models_of(level))


def models_of(level: Level) -> Iterator[FakeModel]:
    for each in level.levels:
        if isinstance(each, Level):
            assert isinstance(each.model, FakeModel)
            yield each.model


def test_three_levels_count_what_they_do() -> None:
    """Each level's forwards, rows, drafted and accepted tokens add up to those of the others."""
    target = FakeModel(TARGET)
    middle = target.as_draft(often(TARGET, WRONG, percent=80))
    small = FakeModel(often(TARGET, WRONG, percent=60), VOCABULARY)
    level = Level(target, Level(middle, Level(small, NoDraft(), length=3), length=6))
    new_tokens(level, [new_sequence(), new_sequence((9,))], 60)
    stats = [each.stats for each in level.levels if isinstance(each, Level)]
    for each, model in zip(stats, models_of(level), strict=True):
        assert each.forwards == len(model.forwards)
        assert each.rows == sum(map(sum, model.forwards))
        assert each.drafted == sum(each.drafted_at)
        assert each.accepted == sum(each.accepted_at)
        assert each.drafted_at == sorted(each.drafted_at, reverse=True)
        assert each.accepted_at == sorted(each.accepted_at, reverse=True)
        assert all(a <= d for a, d in zip(each.accepted_at, each.drafted_at, strict=True))
    # Two sequences of 60 tokens: one of each from the prefill.
    assert stats[0].accepted + sum(map(len, target.forwards)) == 2 * 60
    assert stats[0].drafted > stats[0].accepted > 0
    assert stats[1].drafted > stats[1].accepted > 0
    assert stats[2].drafted == 0


def test_a_separate_model_reads_each_token_once_while_its_guesses_hold() -> None:
    """Its cache lives on from proposal to proposal, whether it is opened as a draft or not."""
    for as_draft in (False, True):
        small = FakeModel(TARGET, VOCABULARY)
        if as_draft:
            small = small.as_draft(TARGET)
        level = Level(FakeModel(TARGET), Level(small, NoDraft(), length=4))
        new_tokens(level, [new_sequence(range(20))], 50)
        rows = [rows for [rows] in small.forwards]
        assert rows[0] == 21
        assert max(rows[1:]) <= 2


@pytest.mark.parametrize("length", range(2, 7))
def test_a_separate_model_forgets_guesses_that_a_level_above_it_rejected(length: int) -> None:
    """The fake model fails where its cache holds other tokens than the sequence."""
    target = FakeModel(TARGET)
    middle = target.as_draft(often(TARGET, next_by_hash(VOCABULARY, salt=2), percent=70))
    small = FakeModel(often(TARGET, next_by_hash(VOCABULARY, salt=3), percent=70), VOCABULARY)
    level = Level(target, Level(middle, Level(small, NoDraft(), length=3), length=length))
    found = new_tokens(level, [new_sequence(), new_sequence((4, 5))], 200)
    assert found == [plain(TARGET, prompt, 200) for prompt in ((1, 2, 3), (4, 5))]


@pytest.mark.parametrize("accepted", [[], [7, 8]])
def test_a_draft_takes_over_where_the_exact_context_ends(accepted: list[int]) -> None:
    """It keeps what it has of a proposal that others continued, until the exact context grows."""
    exact = Context(0)
    draft = Context(0, exact)
    tokens = [4, 5, 6, *accepted]
    exact.record(0, tokens)
    draft.begin(len(tokens))
    assert exact.length == draft.length == len(tokens) - 1
    draft.record(len(tokens) - 1, [tokens[-1], 9, 9])
    assert draft.match([*tokens, 9, 3], len(tokens)) == len(tokens) + 1
    draft.begin(len(tokens) + 3)  # others made two tokens of the proposal
    assert draft.match([*tokens, 9, 4, 3], len(tokens)) == len(tokens) + 1
    draft.begin(len(tokens))
    assert draft.match(tokens, len(tokens)) == len(tokens)
    exact.record(len(tokens) - 1, [tokens[-1], 8])
    assert draft.match([*tokens, 8, 9, 9], len(tokens) + 1) == exact.length
    draft.begin(len(tokens) + 2)
    assert draft.length == exact.length == len(tokens) + 1


def test_a_context_compares_what_was_accepted_once() -> None:
    context = Context(0)
    context.record(0, [1, 2, 3, 4, 5])
    assert context.match([1, 2, 3, 9, 9, 9], 3) == 3
    context.record(3, [9, 9])
    assert context.match([1, 2, 3, 9, 8], 4) == 4
    assert context.match([0, 0, 0, 0, 8], 4) == 4  # not looked at again
    context.record(1, [7])
    assert context.match([1, 7, 3], 3) == 2


# --- What a proposal leaves behind ------------------------------------------------------------


def test_a_proposal_leaves_the_sequence_as_it_was() -> None:
    sequence = new_sequence()
    target = FakeModel(TARGET)
    drafter = Level(target.as_draft(TARGET), Scripted(TARGET), length=7)
    level = Level(target, drafter)
    new_tokens(level, [sequence], 5)
    before = list(sequence.tokens)
    [proposal] = drafter.propose([DraftRequest(sequence, 7)])
    assert proposal.tokens == plain(TARGET, before, 7)
    assert sequence.tokens == before


class Failing(Scripted):
    """Runs out of something at its third proposal."""

    def propose(self, requests: SequenceOf[DraftRequest]) -> list[Proposal]:
        if len(self.asked) >= 3:
            raise RuntimeError("no pages left")
        return super().propose(requests)


def test_a_proposal_that_fails_leaves_the_sequence_as_it_was() -> None:
    sequence = new_sequence()
    target = FakeModel(TARGET)
    drafter = Level(target.as_draft(TARGET), Failing(lambda _: 0), length=9)
    new_tokens(Level(target, NoDraft()), [sequence], 5)
    before = list(sequence.tokens)
    with pytest.raises(RuntimeError, match="no pages left"):
        drafter.propose([DraftRequest(sequence, 9)])
    assert sequence.tokens == before
    assert new_tokens(Level(target, NoDraft()), [sequence], 20) == [plain(TARGET, (1, 2, 3), 20)]


@pytest.mark.parametrize("inner_length", [0, 1, 2, 3, 4, 5])
def test_a_proposal_ends_with_the_first_stop_id(inner_length: int) -> None:
    """Also where the stop comes amid tokens that an inner level proposed."""
    sequence = new_sequence()
    target = FakeModel(TARGET)
    new_tokens(Level(target, NoDraft()), [sequence], 5)
    coming = plain(TARGET, sequence.tokens, 12)
    first = next(i for i in range(3, 12) if coming[i] not in coming[:i])
    sequence.stop_ids = frozenset([coming[first]])
    inner: Drafter = Scripted(TARGET) if inner_length else NoDraft()
    if inner_length:
        inner = Level(FakeModel(TARGET), inner, length=inner_length)
    level = Level(target.as_draft(TARGET), inner, length=12)
    [proposal] = level.propose([DraftRequest(sequence, 12)])
    assert proposal.tokens == coming[: first + 1]
    assert len(proposal.confidences) == len(proposal.tokens)


def test_a_release_reaches_every_level() -> None:
    sequence = new_sequence()
    target = FakeModel(TARGET)
    drafter = Scripted(TARGET)
    level = Level(target, Level(target.as_draft(TARGET), drafter, length=2))
    new_tokens(level, [sequence], 9)
    assert all(model.cached_sequences for model in models_of(Level(target, level.drafter)))
    level.release(sequence)
    assert drafter.released == [sequence.key]
    assert target.cached_sequences == 0


def test_levels_and_sequences_are_collected_with_whoever_knows_them() -> None:
    """The core holds drafters, clocks and grammars of Python's, which may hold it in turn."""

    class Knowing(Scripted):
        level: Level
        sequence: Sequence

        def __call__(self) -> float:
            return 0.0

        def masks(self, proposal: SequenceOf[int]) -> np.ndarray:
            return np.full((len(proposal) + 1, VOCABULARY // 32), 0xFFFFFFFF, np.uint32)

        def accept(self, token: int) -> None:
            pass

    knowing = Knowing(TARGET)
    knowing.sequence = new_sequence(grammar=knowing)
    knowing.level = Level(FakeModel(TARGET), knowing, clock=knowing)
    new_tokens(knowing.level, [knowing.sequence], 9)
    gone = weakref.ref(knowing)
    del knowing
    gc.collect()
    assert gone() is None
