"""Older names of arguments, accepted with a note. Knows nothing of what they mean."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from specqd.errors import SpecqdWarning

P = ParamSpec("P")
T = TypeVar("T")


def accepts_older(**new_names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Lets a function take keywords by older names: `accepts_older(older="newer")`."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for older in new_names.keys() & kwargs:
                warnings.warn(f"{older}= is now {new_names[older]}=", SpecqdWarning, stacklevel=2)
                kwargs[new_names[older]] = kwargs.pop(older)
            return function(*args, **kwargs)

        return call

    return decorate
