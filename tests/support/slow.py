"""Marks slow values of parameters, which `make test` skips and `make test-all` runs."""

from collections.abc import Iterable
from typing import Any

import pytest


def values(*quick: Any, slow: Iterable[Any]) -> list[Any]:
    return [*quick, *(pytest.param(value, marks=pytest.mark.slow) for value in slow)]
