"""Hugging Face transformers, eager PyTorch."""

import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import torch
import transformers
from arms import Arm
from protocol import Run, weight_files
from transformers.generation.streamers import BaseStreamer


class FirstToken(BaseStreamer):
    """Records the time of the first new token."""

    def __init__(self) -> None:
        self._has_prompt = False
        self.seen: float | None = None

    def put(self, value: torch.Tensor) -> None:
        if self._has_prompt and self.seen is None:
            self.seen = perf_counter()
        self._has_prompt = True

    def end(self) -> None:
        pass


class Transformers:
    def __init__(self, arm: Arm, model: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        loaded.generation_config.eos_token_id = [-1]  # no token ends the sequence
        self._model = loaded.eval()
        self.process = os.getpid()
        self.stored_bytes = weight_files(model)
        self.bytes_read: dict[str, int] = {}
        self._lookup = {"prompt_lookup_num_tokens": arm.length} if arm.draft == "lookup" else {}
        self.version = f"{transformers.__version__}, torch {torch.__version__}"
        self.notes = f"eager, {loaded.dtype}, attention {loaded.config._attn_implementation}"

    def generate(self, arm: str, prompt: Sequence[int], new_tokens: int) -> Run:
        ids = torch.tensor([list(prompt)])
        first = FirstToken()
        begun = perf_counter()
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
                streamer=first,
                **self._lookup,
            )
        ended = perf_counter()
        assert first.seen is not None
        tokens = out[0, len(prompt) :].tolist()
        return Run(tokens, first.seen - begun, ended - first.seen, ended - begun)


def open_peer(arms: Sequence[Arm], model: Path, work: Path, threads: int) -> Transformers:
    [arm] = arms
    return Transformers(arm, model, threads)
