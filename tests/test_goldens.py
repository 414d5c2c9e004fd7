"""Logits against transformers' in float32, recorded by parity/make_goldens.py."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from support import reference
from support.random_families import ModelType
from support.random_models import read_model
from support.reference import rms_error

GOLDENS = sorted(path.parent for path in Path(__file__).parent.glob("goldens/*/golden.npz"))
each_golden = pytest.mark.parametrize("directory", GOLDENS, ids=lambda path: path.name)


def test_every_model_type_has_a_golden() -> None:
    types = {read_model(directory)[0]["model_type"] for directory in GOLDENS}
    assert types == set(get_args(ModelType))


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
