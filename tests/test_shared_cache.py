"""The two precisions of a model share one cache."""

from pathlib import Path

from specqd import _native
from specqd._native import Sequence
from specqd.model.model import Machine, Model
from support.random_models import Shape, make_model


def test_a_draft_opened_first_shares_the_exact_precisions_slot(
    tmp_path: Path,
) -> None:
    machine = Machine.choose(1, "portable")
    model = Model.open(make_model(tmp_path, Shape(), 1), machine=machine, cache_positions=64)
    draft = model.as_draft()
    sequence = Sequence([1, 2, 3], _native.Sampler(), 3)
    slot = draft.context(sequence).slot  # before the exact precision has a context
    assert slot == model.context(sequence).slot
