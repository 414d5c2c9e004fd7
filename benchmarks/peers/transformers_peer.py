"""Hugging Face transformers, eager PyTorch."""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from arms import Arm
from protocol import Run


class FirstToken(transformers.StoppingCriteria):
    """Stops nothing; notes when the first token is there."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self.seen: float | None = None

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if self.seen is None and input_ids.shape[1] > self._prompt_tokens:
            self.seen = perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Transformers:
    def __init__(self, arm: Arm, model: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        loaded.generation_config.eos_token_id = [-1]  # no token ends a text
        self._model = loaded.eval()
        self.bytes_read: dict[str, int] = {}
        self._lookup = {"prompt_lookup_num_tokens": arm.length} if arm.draft == "lookup" else {}
        self.version = f"{transformers.__version__}, torch {torch.__version__}"
        self.notes = f"eager, {loaded.dtype}, attention {loaded.config._attn_implementation}"

    def generate(self, arm: str, prompt: Sequence[int], new_tokens: int) -> Run:
        ids = torch.tensor([list(prompt)])
        first = FirstToken(len(prompt))
        begun = perf_counter()
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=transformers.StoppingCriteriaList([first]),
                **self._lookup,
            )
        ended = perf_counter()
        assert first.seen is not None
        tokens = out[0, len(prompt) :].tolist()
        return Run(tokens, first.seen - begun, ended - first.seen, ended - begun)


def open_peer(arms: Sequence[Arm], model: Path, work: Path, threads: int) -> Transformers:
    [arm] = arms
    return Transformers(arm, model, threads)
