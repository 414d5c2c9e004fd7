"""What tests know of one family."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.shapes import Shape


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type`, of which FAMILIES fills in the name.

    `shapes` are small peaked models, by what distinguishes them; the first one has no name.
    `parity` are awkward shapes that are compared with transformers. `entries` are those of
    `config.json` that every model of the family has. `traits` are changes of `config.json`, and the
    fields of the configuration that is then read; `refusals` are changes that are refused, and what
    the message mentions.
    """

    shapes: Mapping[str, Shape]
    parity: Mapping[str, Shape]
    has_ropes_by_type: bool = False  # in `rope_parameters`: for full and for sliding attention
    entries: Mapping[str, Any] = field(default_factory=dict)
    traits: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = ()
    refusals: Sequence[tuple[Mapping[str, Any], Sequence[str]]] = ()
