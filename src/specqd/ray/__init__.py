"""Runs on several machines: the server as a Ray Serve application, and batches with Ray Data.

Needs the extra `ray`. Only `specqd batch --ray` imports this package; nothing else knows Ray.
Serving needs neither Ray Data nor pyarrow, so `app` and `batch` are imported at their first use.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from specqd.errors import MachineError

if TYPE_CHECKING:
    from specqd.ray.documents import batch
    from specqd.ray.serving import app

__all__ = ["app", "batch"]

if not hasattr(os, "sched_getaffinity"):
    raise MachineError("Ray's replicas and workers need Linux; use one machine, without Ray")

_MODULES = {"app": "serving", "batch": "documents"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
