"""Logits of transformers. The only module that imports torch."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl

from support import reference
from support.random_models import bf16_bits, read_model, write_safetensors

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


class Qwen3VLTextForCausalLM(qwen3_vl.Qwen3VLPreTrainedModel):
    """transformers has no class for this text part alone."""

    config: qwen3_vl.Qwen3VLTextConfig
    base_model_prefix = "model"

    def __init__(self, config: qwen3_vl.Qwen3VLTextConfig) -> None:
        super().__init__(config)
        self._tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
        self.model = qwen3_vl.Qwen3VLTextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> CausalLMOutput:
        rows = self.model(input_ids=input_ids, use_cache=use_cache).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(rows))


transformers.AutoModelForCausalLM.register(
    qwen3_vl.Qwen3VLTextConfig, Qwen3VLTextForCausalLM, exist_ok=True
)


def logits(
    directory: Path, tokens: Sequence[int], dtype: Literal["float32", "bfloat16"]
) -> NDArray[np.float32]:
    """Logits after each token, [n, vocab]; float32 uses the same BF16 weights.

    Uses each family's eager code: other implementations refuse some sizes.
    """
    with tempfile.TemporaryDirectory() as folder:
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            _as_bf16(directory, Path(folder) / "bf16"),
            dtype=dtype,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not loading[kind], f"{kind}: {loading[kind]}"  # our names of tensors are theirs
    with torch.inference_mode():
        rows = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    array: NDArray[np.float32] = rows.float().numpy()
    return array


def _as_bf16(directory: Path, folder: Path) -> Path:
    """The model, or a copy with its MXFP4 experts as BF16, which represents them exactly."""
    config, tensors = read_model(directory)
    if config.pop("quantization_config", None) is None:
        return directory
    bf16 = {}
    for name, values in reference.values(tensors).items():
        is_expert = f"{name}_blocks" in tensors  # transposed in transformers
        bf16[name] = bf16_bits((values.swapaxes(1, 2) if is_expert else values).astype(np.float32))
    shutil.copytree(directory, folder)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", bf16)
    return folder
