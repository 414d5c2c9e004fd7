"""Levels under a grammar: it binds every token of every level, and may allow none."""

from collections.abc import Sequence as SequenceOf

import numpy as np
import pytest

from specqd._native import DraftRequest, Level, NoDraft
from support.fake_model import FakeModel, Rule
from test_level import TARGET, VOCABULARY, Scripted, new_sequence, new_tokens, plain


class Alternating:
    """Even and odd tokens take turns, after the tokens that were accepted."""

    def __init__(self, accepted: list[int]) -> None:
        self.accepted = accepted

    def masks(self, proposal: SequenceOf[int]) -> np.ndarray:
        even, odd = 0x55555555, 0xAAAAAAAA
        last = [self.accepted[-1], *proposal]
        rows = [[odd if token % 2 == 0 else even] * (VOCABULARY // 32) for token in last]
        return np.array(rows, np.uint32)

    def accept(self, token: int) -> None:
        self.accepted.append(token)


def obedient(rule: Rule) -> Rule:
    """Tokens of a fake model with `rule` under that grammar."""
    return lambda prefix: (rule(prefix) + (rule(prefix) % 2 == prefix[-1] % 2)) % VOCABULARY


@pytest.mark.parametrize("length", [1, 4, 8])
def test_a_grammar_binds_every_token_of_every_level(length: int) -> None:
    target = FakeModel(TARGET)
    level = Level(target, Level(target.as_draft(TARGET), NoDraft(), length=length))
    accepted = [1, 2, 3]
    sequence = new_sequence(accepted, grammar=Alternating(accepted))
    while len(sequence.tokens) < 60:
        [step] = level.advance([DraftRequest(sequence, 60)])
        assert step.tokens
        sequence.tokens.extend(step.tokens)
        accepted.extend(step.tokens)
    assert sequence.tokens[3:] == plain(obedient(TARGET), (1, 2, 3), len(sequence.tokens) - 3)
    # The draft says the same, so it must have been held to the same rules, at every place.
    assert level.stats.accepted == level.stats.drafted > 0


class Forbidding:
    """Nothing may follow."""

    def masks(self, proposal: SequenceOf[int]) -> np.ndarray:
        return np.zeros((len(proposal) + 1, VOCABULARY // 32), np.uint32)

    def accept(self, token: int) -> None:
        pass


class Ending:
    """Nothing may follow the first `allowed` tokens of a proposal."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed

    def masks(self, proposal: SequenceOf[int]) -> np.ndarray:
        rows = np.full((len(proposal) + 1, VOCABULARY // 32), 0xFFFFFFFF, np.uint32)
        rows[self.allowed :] = 0
        return rows

    def accept(self, token: int) -> None:
        pass


@pytest.mark.parametrize(("allowed", "accepted"), [(0, 0), (2, 2), (4, 4), (5, 4)])
def test_all_accepted_tokens_count_where_no_token_may_follow(allowed: int, accepted: int) -> None:
    level = Level(FakeModel(TARGET), drafter := Scripted(TARGET))
    sequence = new_sequence()
    new_tokens(level, [sequence], 1)
    before = level.stats.accepted
    sequence.grammar = Ending(allowed)
    [step] = level.advance([DraftRequest(sequence, 5)])
    assert drafter.asked[-1] == step.drafted == 4
    assert (len(step.tokens), step.accepted) == (allowed, accepted)
    assert level.stats.accepted - before == accepted


def test_nothing_is_returned_where_nothing_is_allowed() -> None:
    target = FakeModel(TARGET)
    level = Level(target, Level(target.as_draft(TARGET), NoDraft(), length=4))
    sequence = new_sequence()
    new_tokens(level, [sequence], 3)
    sequence.grammar = Forbidding()
    assert level.advance([DraftRequest(sequence, 9)])[0].tokens == []
    sequence.grammar = None
    assert new_tokens(level, [sequence], 20) == [plain(TARGET, (1, 2, 3), 20)]
