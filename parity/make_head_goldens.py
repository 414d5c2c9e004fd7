"""Writes tests/goldens/heads: a small target, random heads, and logits of torch in float32."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from eagle3 import Eagle3, residuals
from support.random_heads import HeadShape, make_head
from support.random_models import ROPE_SCALINGS, Shape, make_model
from support.reference import rms_error

ROOT = Path(__file__).resolve().parent.parent / "tests" / "goldens" / "heads"
SEED = 20261
PROMPT, GUESSES, ACCEPTED, MORE = 24, 4, 2, 5
TARGET = Shape(
    "llama", hidden=56, heads=7, kv_heads=1, head_dim=40, ffn=76, layers=4, vocab=269,
    context=512, is_peaked=True,
)  # fmt: skip
HEADS = {
    "specforge": HeadShape(taps=(1, 2, 3), heads=7, kv_heads=1, head_dim=40, ffn=70, tokens=97),
    "nvidia": HeadShape(
        taps=(2, 3), heads=2, kv_heads=2, head_dim=24, ffn=68, tokens=269, maker="nvidia",
        keeps_normed=True, recycles_normed=True, rope_theta=500000.0, names_outputs=True,
    ),
    "speculators": HeadShape(
        taps=(0, 1, 2, 4), heads=4, kv_heads=2, head_dim=18, ffn=60, tokens=133,
        maker="speculators", norms="each", has_qk_norm=True, rope_scaling=ROPE_SCALINGS["linear"],
    ),
    "shared": HeadShape(taps=(1, 3), heads=3, kv_heads=1, head_dim=32, norms="all"),
    "wide": HeadShape(
        taps=(1, 2, 4), heads=3, kv_heads=3, head_dim=16, hidden=72, has_embedding=True, tokens=61
    ),
}  # fmt: skip


def logits(
    head: Path,
    taps: Sequence[int],
    tokens: Sequence[int],
    guesses: Sequence[int],
    dtype: torch.dtype,
) -> np.ndarray:
    """Logits after the prompt's pairs, after guesses that read recycled rows, and after the pairs
    of the true text that replace them, [n, vocab]."""
    features = residuals(ROOT / "target", tokens, dtype)
    eagle, rows = Eagle3(head, ROOT / "target", dtype), []

    def pairs(first: int, last: int) -> torch.Tensor:
        for at in range(first, last):
            hidden = eagle.hidden_of([features[tap][at - 1] for tap in taps])
            found, recycled = eagle.row(hidden, tokens[at])
            rows.append(found)
        return recycled

    with torch.inference_mode():
        recycled = pairs(1, PROMPT)
        for guess in guesses:
            found, recycled = eagle.row(recycled, guess)
            rows.append(found)
        eagle.cut(PROMPT - 1)
        pairs(PROMPT, len(tokens))
    return torch.stack(rows).numpy()


def main() -> None:
    rng = np.random.default_rng(SEED)
    make_model(ROOT / "target", TARGET, SEED)
    for seed, (name, shape) in enumerate(HEADS.items()):
        head = make_head(ROOT / name, TARGET, shape, seed)
        tokens = rng.integers(0, TARGET.vocab, PROMPT + MORE)
        guesses = rng.integers(0, TARGET.vocab, GUESSES)
        guesses[:ACCEPTED] = tokens[PROMPT : PROMPT + ACCEPTED]
        arguments = head, shape.taps, tokens.tolist(), guesses.tolist()
        truth = logits(*arguments, torch.float32)
        known = np.isfinite(truth[0])
        rough = logits(*arguments, torch.bfloat16)
        error = rms_error(rough[:, known], truth[:, known])
        np.savez_compressed(
            head / "golden.npz", tokens=tokens, guesses=guesses, logits=truth, bf16_error=error
        )
        print(f"{name}: bf16 error {error:.5f}")


if __name__ == "__main__":
    main()
