"""Checks the arguments of `serve run specqd.ray:app NAME=VALUE ...`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from specqd.errors import RequestError, shown
from specqd.hub import real_path

_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of the application.

    model, draft, isa, context, cache_positions, small: as in LLM. The parts of `draft` are
        separated by commas.
    replicas: copies of the model.
    max_replicas: the most copies. Serve adds copies while each has more than `ongoing` requests,
        and removes them, down to `replicas`, after fewer would have sufficed for `idle_seconds`.
    threads: cores that Ray reserves for a replica. None: all cores of the machine that builds the
        application, so that each machine has one replica.
    pin: give each replica its own cores, from a single NUMA node if that has enough.
    max_batch: sequences that a replica decodes at once.
    ongoing: requests on a replica above which Serve prefers or adds another one. None: max_batch.
    fronts: processes that receive requests and choose replicas.
    routing: `prefix` or `random`.
    """

    model: str | None = None
    draft: tuple[str, ...] = ()
    replicas: int = 1
    max_replicas: int | None = None
    idle_seconds: int = 600
    threads: int | None = None
    pin: bool = False
    isa: str | None = None
    max_batch: int = 16
    ongoing: int | None = None
    context: int | None = None
    cache_positions: int | None = None
    served_model_name: str | None = None
    lenient: bool = False
    small: str = "auto"
    fronts: int = 1
    routing: str = "prefix"
    allow_host: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Options":
        """Reads arguments, whose values may be strings from a command line. Raises RequestError."""
        known = {each.name: each.type for each in fields(cls)}
        for name in given:
            if name not in known:
                raise RequestError(f"{shown(name)} is not an argument; known: {', '.join(known)}")
        options = cls(**{name: _value(name, known[name], given[name]) for name in given})
        if options.routing not in ("prefix", "random"):
            raise RequestError(f"routing={shown(options.routing)} is unknown; use prefix or random")
        if options.max_replicas is not None and options.max_replicas < options.replicas:
            raise RequestError(
                f"max_replicas={options.max_replicas} is below replicas={options.replicas}; "
                "raise max_replicas"
            )
        return options

    @property
    def cores(self) -> int:
        """Cores that Ray reserves for a replica."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def most_ongoing(self) -> int:
        """Requests on a replica above which Serve prefers or adds another one."""
        return self.ongoing or self.max_batch


def _value(name: str, kind: Any, given: Any) -> Any:
    if "int" in str(kind):
        try:
            number = int(given)
        except (TypeError, ValueError):
            number = 0
        if number < 1:
            raise RequestError(f"{name}={shown(given)} is not a whole number of at least 1")
        return number
    if kind is bool:
        if (flag := _FLAGS.get(str(given).lower())) is None:
            raise RequestError(f"{name}={shown(given)} is not true or false")
        return flag
    if "tuple" in str(kind):
        words = given.split(",") if isinstance(given, str) else list(given)
        return tuple(str(word).strip() for word in words if str(word).strip())
    if not isinstance(given, str) or not given:
        raise RequestError(f"{name}={shown(given)} is empty or not a string; give a value")
    return given


def absolute(model: str | None) -> str | None:
    """Makes a local model's path valid in any working directory. Leaves other names as they are."""
    if model is not None and Path(model).exists():
        return str(real_path(Path(model)))
    return model
