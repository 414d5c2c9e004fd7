"""Logits of transformers. The one place that imports torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def logits(
    directory: Path, tokens: Sequence[int], dtype: Literal["float32", "bfloat16"]
) -> NDArray[np.float32]:
    """Logits after each token, [n, vocab]; float32 reads the same BF16 weights.

    By the plain code of each family: others refuse some sizes.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
    )
    with torch.inference_mode():
        rows = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    array: NDArray[np.float32] = rows.float().numpy()
    return array
