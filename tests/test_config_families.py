"""Each family's traits are read as transformers reads them; impossible ones are refused by name."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specqd.config import RopeConfig, read_config
from support.config_files import SHAPE, read, refusal
from support.families import FAMILIES


@pytest.mark.parametrize(
    ("model_type", "changes", "traits"),
    [(name, *case) for name, family in FAMILIES.items() for case in family.traits],
)
def test_families_have_their_traits(
    tmp_path: Path, model_type: str, changes: Mapping[str, Any], traits: Mapping[str, Any]
) -> None:
    config = read(tmp_path, {"model_type": model_type, **SHAPE}, **changes)
    assert {name: getattr(config, name) for name in traits} == traits


@pytest.mark.parametrize(
    ("model_type", "changes", "mentions"),
    [(name, *case) for name, family in FAMILIES.items() for case in family.refusals],
)
def test_impossible_trait_of_a_family_is_named(
    tmp_path: Path, model_type: str, changes: Mapping[str, Any], mentions: Sequence[str]
) -> None:
    message = refusal(tmp_path, {"model_type": model_type, **SHAPE, **changes})
    for mention in mentions:
        assert mention in message


def test_longrope_takes_the_factors_of_the_context(tmp_path: Path) -> None:
    scaling = {"type": "su", "short_factor": [1, 1, 1, 1], "long_factor": [1.0, 2, 3, 4]}
    changes = {"rope_scaling": scaling, "original_max_position_embeddings": 128}
    config = read(tmp_path, {"model_type": "phi3", **SHAPE}, **changes)
    assert config.max_positions == 512
    assert config.ropes[0] == RopeConfig(
        "longrope", 1e4, factor=4.0, original_max_positions=128, factors=(1.0, 2.0, 3.0, 4.0)
    )
    short = read_config(tmp_path, context=128)
    assert short.max_positions == 128
    assert short.ropes[0] == replace(config.ropes[0], factors=(1.0,) * 4)


def test_dynamic_rope_is_plain_rope_within_the_context(tmp_path: Path) -> None:
    config = read(
        tmp_path, {"model_type": "llama", **SHAPE}, rope_scaling={"type": "dynamic", "factor": 2.0}
    )
    assert config.ropes[0] == RopeConfig("default", 10_000.0)
    assert config.max_positions == 512
