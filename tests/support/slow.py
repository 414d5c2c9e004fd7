"""Values of a parameter: `make test` runs the quick ones, `make test-all` the slow ones too."""

from collections.abc import Iterable
from typing import Any

import pytest


def values(*quick: Any, slow: Iterable[Any]) -> list[Any]:
    return [*quick, *(pytest.param(value, marks=pytest.mark.slow) for value in slow)]
