"""What the files of a trained head say about it, without the model that it drafts for."""

import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from specqd.config.fields import Fields
from specqd.errors import TensorError
from specqd.formats.safetensors import TensorDirectory, is_matrix

_LAYER = re.compile(r"(?:layers\.(\d+)|midlayer)\.")
_FP4_BITS = 4.25  # per weight


@dataclass(frozen=True, slots=True)
class HeadSummary:
    """A head's kind and size. `block` is the number of rows of a block; None for EAGLE-3 heads.
    Bytes are those of all tensors, in BF16 and with matrices in 4 bits."""

    kind: Literal["DFlash drafter", "EAGLE-3 head"]
    block: int | None
    layers: int
    hidden_size: int
    parameters: int
    bf16_bytes: int
    fp4_bytes: int

    @classmethod
    def of(cls, directory: Path) -> "HeadSummary | None":
        """None if the directory holds no head that is known by its tensors. Raises ConfigError for
        a wrong `block_size`."""
        try:
            tensors = TensorDirectory.open(directory)
        except TensorError:
            return None
        names = (_LAYER.match(name) for name in tensors)
        layers = {found[0]: found for found in names if found}
        is_eagle = any(f"{at}hidden_norm.weight" in tensors for at in layers)
        is_block = "hidden_norm.weight" in tensors
        if "fc.weight" not in tensors or not (is_eagle or is_block):
            return None
        shapes = [view.shape for view in tensors.values() if view.dtype in ("BF16", "F16", "F32")]
        matrices = sum(prod(shape) for shape in shapes if is_matrix(shape))
        parameters = sum(map(prod, shapes))
        return cls(
            kind="DFlash drafter" if is_block else "EAGLE-3 head",
            block=_block(directory) if is_block else None,
            layers=len(layers),
            hidden_size=tensors["fc.weight"].shape[0],
            parameters=parameters,
            bf16_bytes=2 * parameters,
            fp4_bytes=2 * (parameters - matrices) + round(_FP4_BITS / 8 * matrices),
        )


def _block(directory: Path) -> int:
    fields = Fields.read(directory / "config.json")
    own = fields.part("dflash_config")
    return (own if own.get("block_size") is not None else fields).integer("block_size", least=2)
