"""Structs of the core take their members by name, and all of them."""

from typing import Any

import numpy as np
import pytest

from specqd import _native

FIELDS: dict[type[Any], dict[str, Any]] = {
    _native.Norm: {"weight": np.ones(4, np.uint16), "bias": None},
    _native.AttentionShape: {
        "heads": 4, "kv_heads": 2, "head_dim": 16, "value_dim": 16, "scale": 0.25, "cap": 0.0,
    },
    _native.StateShape: {
        "channels": 8, "kernel_width": 4, "key_heads": 0, "value_heads": 0, "key_dim": 0,
        "value_dim": 0,
    },
}  # fmt: skip
EVERY = [(struct, name) for struct, fields in FIELDS.items() for name in fields]


@pytest.mark.parametrize(("struct", "name"), EVERY)
def test_a_missing_name_is_refused(struct: type[Any], name: str) -> None:
    fields = FIELDS[struct]
    struct(**fields)
    with pytest.raises(TypeError, match=name):
        struct(**{other: value for other, value in fields.items() if other != name})


@pytest.mark.parametrize(("struct", "name"), EVERY)
def test_a_wrong_name_is_refused(struct: type[Any], name: str) -> None:
    fields = {f"{other}s" if other == name else other: v for other, v in FIELDS[struct].items()}
    with pytest.raises(TypeError, match=f"{name}s"):
        struct(**fields)


@pytest.mark.parametrize("struct", FIELDS)
def test_order_says_nothing(struct: type[Any]) -> None:
    fields = FIELDS[struct]
    struct(**dict(reversed(fields.items())))
    with pytest.raises(TypeError):
        struct(*fields.values())


def test_only_optional_members_may_be_none() -> None:
    with pytest.raises(TypeError):
        _native.Norm(weight=None, bias=None)  # type: ignore[arg-type]
