"""Logits against transformers' in float32, recorded by parity/make_goldens.py."""

from pathlib import Path

import numpy as np
import pytest

from specqd.config import families
from support import reference
from support.families import FAMILIES
from support.random_models import read_model
from support.reference import rms_error

GOLDENS = sorted(path.parent for path in Path(__file__).parent.glob("goldens/*/golden.npz"))
each_golden = pytest.mark.parametrize("directory", GOLDENS, ids=lambda path: path.name)


def test_every_family_has_a_record_and_a_golden() -> None:
    assert set(FAMILIES) == set(families.FAMILIES) - {"mimo"}  # it is Qwen 2 but for its MTP layer
    types = {read_model(directory)[0]["model_type"] for directory in GOLDENS}
    assert types == set(FAMILIES)


@each_golden
def test_reference_equals_the_golden_to_float32_rounding(directory: Path) -> None:
    golden = np.load(directory / "golden.npz")
    logits = reference.logits(*read_model(directory), golden["tokens"].tolist())
    assert rms_error(logits, golden["logits"]) < 1e-5


@each_golden
def test_our_logits_err_no_more_than_transformers_in_bf16(directory: Path) -> None:
    model = pytest.importorskip("specqd.model.model").Model
    golden = np.load(directory / "golden.npz")
    logits = model.open(directory).logits(golden["tokens"].tolist())
    assert logits.dtype == np.float32
    assert rms_error(logits, golden["logits"]) <= golden["bf16_error"]
