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
_NOT_PACKED = ("_codebook", ".base_kernel")  # matrices that are BF16 in every precision


@dataclass(frozen=True, slots=True)
class HeadSummary:
    """A head's kind and size. `block` is the number of rows of a block; None for EAGLE-3 heads.
    Bytes are those of all tensors, in BF16 and with matrices in 4 bits."""

    kind: Literal["DFlash drafter", "DFlash2 drafter", "EAGLE-3 head"]
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
        sizes = {
            name: prod(view.shape)
            for name, view in tensors.items()
            if view.dtype in ("BF16", "F16", "F32")
        }
        matrices = sum(
            size
            for name, size in sizes.items()
            if is_matrix(tensors[name].shape) and not name.endswith(_NOT_PACKED)
        )
        parameters = sum(sizes.values())
        return cls(
            kind=_kind(tensors) if is_block else "EAGLE-3 head",
            block=_block(directory) if is_block else None,
            layers=len(layers),
            hidden_size=tensors["fc.weight"].shape[0],
            parameters=parameters,
            bf16_bytes=2 * parameters,
            fp4_bytes=2 * (parameters - matrices) + round(_FP4_BITS / 8 * matrices),
        )


def _kind(tensors: TensorDirectory) -> Literal["DFlash drafter", "DFlash2 drafter"]:
    is_dflash2 = any(name.startswith("candidate_selector.") for name in tensors)
    return "DFlash2 drafter" if is_dflash2 else "DFlash drafter"


def _block(directory: Path) -> int:
    fields = Fields.read(directory / "config.json")
    own = fields.part("dflash_config")
    return (own if own.get("block_size") is not None else fields).integer("block_size", least=2)
