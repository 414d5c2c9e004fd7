"""When another draft token pays in a batch, whose rows share forwards."""

import pytest

from specqd import _native
from specqd._native import DraftRequest, Level, NoDraft, Sequence
from support.fake_model import often
from support.slow import values
from support.timed_models import TARGET, WRONG, Clock, FreeDrafter, TimedModel, seconds_per_token


@pytest.mark.parametrize("free_rows", values(1, 16, slow=[8, 24, 48]))
@pytest.mark.parametrize("percent", [60, 90])
def test_a_batch_drafts_as_much_as_all_of_its_rows_pay(free_rows: int, percent: int) -> None:
    """A row that is free for one sequence need not be for eight at once."""
    rule = often(TARGET, WRONG, percent=percent)
    case = {"batch": 8, "free_rows": free_rows, "row": 0.12, "count": 400}
    plain = seconds_per_token(None, **case)
    fixed = [seconds_per_token(rule, length=k, **case) for k in (1, 2, 3, 4, 6)]
    found = seconds_per_token(rule, **case)
    assert found <= 1.1 * plain
    # Between a dozen numbers of rows costs are interpolated: a kink is seen as a bend.
    assert found <= 1.1 * min(plain, *fixed)


@pytest.mark.parametrize("batch", values(49, slow=[48, 56]))
def test_a_batch_of_more_rows_than_were_measured_learns_what_they_cost(batch: int) -> None:
    """Also where they seemed dearer than they are: all its rounds are beyond the measured rows."""
    case = {"batch": batch, "row": 0.05, "count": 60}
    below = FreeDrafter(often(TARGET, WRONG, percent=30), 0.3)
    plain = seconds_per_token(None, **case)
    assert seconds_per_token(WRONG, below=below, draft_cost=1.0, busy=1.2, **case) <= 1.05 * plain


def test_a_sequence_alone_is_drafted_for_as_well_after_a_batch() -> None:
    """Tokens come faster in a batch: what one is worth there is too little for a sequence alone."""
    rule = often(TARGET, WRONG, percent=90)

    def seconds_alone(batch_tokens: int) -> float:
        clock = Clock()
        target = TimedModel(TARGET).takes(clock, 1.0, 0.05)
        draft = Level(target.as_draft(rule).takes(clock, 0.25, 0.01), NoDraft(), clock=clock)
        level = Level(target, draft, clock=clock)
        level.measure()

        def write(count: int, sequences: list[Sequence]) -> float:
            begun = clock.now
            while any(len(sequence.tokens) < count + 3 for sequence in sequences):
                for sequence, made in zip(
                    sequences, level.advance([DraftRequest(t, 99) for t in sequences]), strict=True
                ):
                    sequence.tokens.extend(made.tokens)
            return clock.now - begun

        write(batch_tokens, [Sequence([i + 1, 2, 3], _native.Sampler(), 3) for i in range(16)])
        return write(100, [Sequence([99, 2, 3], _native.Sampler(), 3)])

    assert seconds_alone(600) <= 1.05 * seconds_alone(0)


@pytest.mark.parametrize("batch", values(8, 32, slow=[12, 16]))
@pytest.mark.parametrize("cache", [0.1, 0.3])
def test_a_batch_drafts_as_much_behind_long_contexts(batch: int, cache: float) -> None:
    """Keys and values are read for each sequence, whatever the number of its rows."""
    rule = often(TARGET, WRONG, percent=94)
    case = {"batch": batch, "row": 0.01, "cache": cache, "count": 300}
    fixed = [seconds_per_token(rule, length=k, **case) for k in (2, 3, 4, 6, 8)]
    assert seconds_per_token(rule, **case) <= 1.1 * min(fixed)
