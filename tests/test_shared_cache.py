"""The two precisions of a model share one cache."""

from pathlib import Path

from specqd import _native
from specqd._native import Sequence
from specqd.model.model import Machine, Model
from support.random_models import Shape, make_model


def test_draft_reads_the_exact_cache_of_a_sequence_whose_prompt_is_still_unread(
    tmp_path: Path,
) -> None:
    machine = Machine.choose(1, "portable")
    model = Model.open(make_model(tmp_path, Shape(), 1), machine=machine, cache_positions=64)
    draft = model.as_draft()
    sequence = Sequence([1, 2, 3], _native.Picker(), 3)
    slot = draft.context(sequence).slot  # asked for before the exact precision has seen anything
    assert slot == model.context(sequence).slot
