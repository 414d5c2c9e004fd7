"""Writes tests/goldens: small random models, and their logits by transformers in float32."""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import theirs
from random_models import ROPE_SCALINGS, Shape, make_model
from run import rms_error

ROOT = Path(__file__).resolve().parent.parent
SEED = 20260
TOKENS = 48

GOLDENS: dict[str, Shape] = {
    "llama": Shape(
        "llama", hidden=56, heads=7, kv_heads=1, head_dim=40, ffn=76, vocab=269,
        rope_theta=500000.0, rope_scaling=ROPE_SCALINGS["llama3"], is_peaked=True,
    ),
    "llama-biases": Shape(
        "llama", hidden=48, heads=2, kv_heads=2, head_dim=24, ffn=100, vocab=263,
        has_biases=True, is_tied=True, rope_scaling=ROPE_SCALINGS["linear"],
    ),
    "mistral": Shape(
        "mistral", hidden=72, heads=3, kv_heads=3, head_dim=24, ffn=84, vocab=271, window=11,
        spells_rope_parameters=True,
    ),
    "qwen2": Shape(
        "qwen2", hidden=72, heads=2, kv_heads=1, head_dim=72, ffn=92, vocab=262,
        window=7, is_tied=True, rope_theta=1e6, rope_scaling=ROPE_SCALINGS["yarn"],
    ),
    "qwen3": Shape(
        "qwen3", hidden=44, heads=4, kv_heads=2, head_dim=96, ffn=68, vocab=267,
        rope_theta=1e6, is_peaked=True,
    ),
}  # fmt: skip


def main() -> None:
    for name, shape in GOLDENS.items():
        directory = make_model(ROOT / "tests" / "goldens" / name, shape, SEED)
        tokens = np.random.default_rng(SEED).integers(0, shape.vocab, TOKENS)
        logits = theirs.logits(directory, tokens.tolist(), "float32")
        bf16_error = rms_error(theirs.logits(directory, tokens.tolist(), "bfloat16"), logits)
        path = directory / "golden.npz"
        np.savez_compressed(path, tokens=tokens, logits=logits, bf16_error=bf16_error)
        print(f"{path.relative_to(ROOT)}: bf16 error {bf16_error:.5f}")


if __name__ == "__main__":
    main()
