"""Checks errors that a user can correct: each must be one line."""

from collections.abc import Callable
from typing import Any

import pytest

from specqd.errors import SpecqdError


def refused(kind: type[SpecqdError], call: Callable[..., Any], *given: Any, **more: Any) -> str:
    """Returns the error message of a call, which must be one line."""
    with pytest.raises(kind) as caught:
        call(*given, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def done_or_refused(
    kind: type[SpecqdError], call: Callable[..., Any], *given: Any, **more: Any
) -> Any:
    """Returns the result of a call, or None if it raises an error of one line."""
    try:
        return call(*given, **more)
    except kind as error:
        problem = str(error)
    assert "\n" not in problem
    return None
