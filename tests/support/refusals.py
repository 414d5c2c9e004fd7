"""Errors that a user can correct: each is one line."""

from collections.abc import Callable
from typing import Any

import pytest

from specqd.errors import SpecqdError


def refused(kind: type[SpecqdError], call: Callable[..., Any], *given: Any, **more: Any) -> str:
    """The line with which a call is refused."""
    with pytest.raises(kind) as caught:
        call(*given, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def done_or_refused(
    kind: type[SpecqdError], call: Callable[..., Any], *given: Any, **more: Any
) -> Any:
    """What a call returns, or None if it is refused in one line."""
    try:
        return call(*given, **more)
    except kind as error:
        problem = str(error)
    assert "\n" not in problem
    return None
