"""Small settings for training a head. Knows nothing of torch."""

from pathlib import Path
from typing import Any

from specqd.config import read_config
from specqd.train.settings import TrainSettings, make_settings


def settings_for(model: Path, **changed: Any) -> TrainSettings:
    """Settings that train in a second."""
    usual = {"tokens": 600, "epochs": 1, "length": 24, "batch": 2, "rate": 1e-3, "seed": 0}
    return make_settings(read_config(model), **(usual | changed))
