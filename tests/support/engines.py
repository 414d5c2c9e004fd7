"""Engines that a test steps itself."""

import numpy as np
import pytest

from specqd.engine.engine import Engine


def run_to_end(engine: Engine) -> None:
    while not engine.is_idle:
        engine.step()


def preempt_at_random(
    engine: Engine, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejects three of ten requests for pages, so that sequences are preempted at any time."""
    scheduler, has_pages = engine.scheduler, engine.scheduler.has_pages
    monkeypatch.setattr(
        scheduler, "has_pages", lambda ahead: rng.random() < 0.7 and has_pages(ahead)
    )
