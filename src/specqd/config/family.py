"""The record of one family: how its configuration is read, and the names of its tensors."""

from collections.abc import Callable
from dataclasses import dataclass

from specqd.config.decoder import DecoderConfig
from specqd.config.fields import Fields
from specqd.config.tensor_names import LLAMA, MtpNames, TensorNames


@dataclass(frozen=True, slots=True)
class Family:
    """The models of one `model_type`.

    `read` takes the members of `config.json` and the longest sequence, if that is known. `mtp`
    takes the number of layers, and returns the names of the MTP layer that follows them. `wrapper`
    is the `model_type` of models that also read images and whose text part is of this family.
    """

    read: Callable[[Fields, int | None], DecoderConfig]
    names: TensorNames = LLAMA
    mtp: Callable[[int], MtpNames] | None = None
    wrapper: str | None = None
    is_mxfp4: bool = False  # its checkpoints are quantised, in a form that is read
    bf16_checkpoints: str = ""  # where to find them, for a message
    shares_norm: bool = False  # one norm for both blocks where these are parallel
