"""Writes the goldens of embeddings: small random models of decoder families as embedding models are
published, and the vectors that transformers computes in float32.

Arguments: the names of goldens; without any, all. A golden that exists keeps its model and texts.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from support.embedding_models import as_base_model, write_modules
from support.random_models import change_model, make_model
from support.reference import rms_error
from support.shapes import Shape

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

GOLDENS = Path(__file__).resolve().parent.parent / "tests" / "goldens" / "embeddings"
SEED = 20261
LENGTHS = (1, 2, 37, 70, 96)


@dataclass(frozen=True, slots=True)
class Case:
    """A golden: its shape, its pooling, and whether it is saved without an output head."""

    shape: Shape
    pooling: Literal["lasttoken", "mean"] = "lasttoken"
    normalizes: bool = True
    is_base: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


_SMALL = Shape(hidden=72, heads=3, kv_heads=1, head_dim=24, ffn=84, vocab=271, context=128)
CASES: Mapping[str, Case] = {
    "qwen3": Case(replace(_SMALL, model_type="qwen3", is_tied=True), is_base=True),
    "mistral": Case(replace(_SMALL, model_type="mistral", window=40), is_base=True),
    "llama": Case(_SMALL, "mean"),
    "gemma3_text": Case(
        replace(_SMALL, model_type="gemma3_text", is_tied=True), "mean", normalizes=False
    ),
    "qwen2": Case(replace(_SMALL, model_type="qwen2"), config={"is_causal": False}),
}


def main() -> None:
    for name in sys.argv[1:] or CASES:
        case, directory = CASES[name], GOLDENS / name
        path = directory / "golden.npz"
        if not path.exists():
            make(directory, case)
        rng = np.random.default_rng(SEED)
        texts = [rng.integers(0, case.shape.vocab, length).tolist() for length in LENGTHS]
        vectors = np.stack([vector(directory, case, text, "float32") for text in texts])
        rounded = np.stack([vector(directory, case, text, "bfloat16") for text in texts])
        error = rms_error(rounded, vectors)
        tokens = np.concatenate(texts)
        np.savez_compressed(path, tokens=tokens, lengths=LENGTHS, vectors=vectors, bf16_error=error)
        print(f"{name}: bf16 error {error:.5f}")


def make(directory: Path, case: Case) -> None:
    make_model(directory, case.shape, SEED)
    change_model(directory, **case.config)
    if case.is_base:
        as_base_model(directory)
    write_modules(directory, case.pooling, normalizes=case.normalizes)


def vector(
    directory: Path, case: Case, tokens: Sequence[int], dtype: Literal["float32", "bfloat16"]
) -> NDArray[np.float32]:
    """The vector of one text; the rows are those of the model without its output head."""
    model, loading = transformers.AutoModel.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    assert not loading["missing_keys"], loading["missing_keys"]
    with torch.inference_mode():
        rows = model(torch.tensor([list(tokens)]), use_cache=False).last_hidden_state[0].float()
    pooled = rows.mean(0) if case.pooling == "mean" else rows[-1]
    if case.normalizes:
        pooled = torch.nn.functional.normalize(pooled, dim=0)
    array: NDArray[np.float32] = pooled.numpy()
    return array


if __name__ == "__main__":
    main()
