"""Writes tests/goldens/heads and mtp: a small target and random heads, models with random MTP
layers, and logits of torch in float32."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from eagle3 import Eagle3, residuals
from mtp import Mtp, last_residuals
from support.families.latent import DEEPSEEK, GLM4_MOE
from support.families.recurrent import DELTA_NET
from support.random_heads import HeadShape, make_head
from support.random_models import ROPE_SCALINGS, Shape, make_model
from support.random_mtp import make_mtp_model
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


EXPERTS = {"full_attention_interval": 2, "num_experts": 5, "num_experts_per_tok": 2}
MTP_TARGETS: dict[str, tuple[Shape, dict[str, bool]]] = {
    "mimo": (
        Shape(
            "qwen2", hidden=56, heads=7, kv_heads=1, head_dim=40, ffn=76, layers=3, vocab=269,
            rope_theta=640000.0, is_peaked=True,
        ),
        {},
    ),
    "mimo-other-fields": (
        Shape("qwen2", hidden=48, heads=3, kv_heads=3, head_dim=24, ffn=60, vocab=267,
              is_tied=True),
        {
            "mtp_reads_normed": False, "mtp_recycles_normed": False, "mtp_hidden_first": False,
            "mtp_blanks_first": False,
        },
    ),
    "qwen3_5": (
        Shape(
            "qwen3_5_text", hidden=72, heads=4, kv_heads=2, head_dim=24, ffn=84, layers=4,
            vocab=271, rope_theta=1e6, spells_rope_parameters=True,
            extra=DELTA_NET | {"full_attention_interval": 2},
        ),
        {},
    ),
    "qwen3_5_moe": (
        Shape(
            "qwen3_5_moe_text", hidden=56, heads=3, kv_heads=1, head_dim=24, ffn=40, layers=2,
            vocab=263, rope_theta=1e6, spells_rope_parameters=True,
            extra=DELTA_NET | EXPERTS | {"shared_expert_intermediate_size": 52},
        ),
        {},
    ),
    "qwen3_next": (
        Shape(
            "qwen3_next", hidden=56, heads=4, kv_heads=2, head_dim=24, ffn=24, layers=2, vocab=261,
            extra=DELTA_NET | EXPERTS | {
                "shared_expert_intermediate_size": 24, "intermediate_size": 60,
                "mlp_only_layers": [1],
            },
        ),
        {},
    ),
    "glm4_moe": (
        Shape(
            "glm4_moe", hidden=56, heads=7, kv_heads=1, head_dim=40, ffn=24, layers=2, vocab=259,
            has_biases=True, extra=GLM4_MOE,
        ),
        {},
    ),
    "deepseek_v3": (
        Shape(
            "deepseek_v3", hidden=56, heads=3, kv_heads=3, head_dim=8, ffn=24, layers=2, vocab=269,
            extra=DEEPSEEK,
        ),
        {"mtp_recycles_normed": False},
    ),
}  # fmt: skip


def logits(
    head: Eagle3 | Mtp,
    features: Sequence[Any],
    tokens: Sequence[int],
    guesses: Sequence[int],
) -> np.ndarray:
    """Logits after the prompt's pairs, after guesses that read recycled rows, and after the pairs
    of the true text that replace them, [n, vocab]. `features` are those of each position."""
    rows = []

    def pairs(first: int, last: int) -> torch.Tensor:
        for at in range(first, last):
            found, recycled = head.row(head.hidden_of(features[at - 1]), tokens[at])
            rows.append(found)
        return recycled

    with torch.inference_mode():
        recycled = pairs(1, PROMPT)
        for guess in guesses:
            found, recycled = head.row(recycled, guess)
            rows.append(found)
        head.cut(PROMPT - 1)
        pairs(PROMPT, len(tokens))
    return torch.stack(rows).numpy()


def of_head(
    head: Path, taps: Sequence[int], tokens: Sequence[int], guesses: Sequence[int],
    dtype: torch.dtype,
) -> np.ndarray:  # fmt: skip
    layers = residuals(ROOT / "target", tokens, dtype)
    features = [[layers[tap][at] for tap in taps] for at in range(len(tokens))]
    return logits(Eagle3(head, ROOT / "target", dtype), features, tokens, guesses)


def of_mtp(
    model: Path, tokens: Sequence[int], guesses: Sequence[int], dtype: torch.dtype
) -> np.ndarray:
    return logits(Mtp(model, dtype), last_residuals(model, tokens, dtype), tokens, guesses)


def write(
    directory: Path, vocab: int, rng: np.random.Generator, run: Callable[..., np.ndarray]
) -> None:
    tokens = rng.integers(0, vocab, PROMPT + MORE)
    guesses = rng.integers(0, vocab, GUESSES)
    guesses[:ACCEPTED] = tokens[PROMPT : PROMPT + ACCEPTED]
    truth = run(tokens.tolist(), guesses.tolist(), torch.float32)
    known = np.isfinite(truth[0])
    rough = run(tokens.tolist(), guesses.tolist(), torch.bfloat16)
    error = rms_error(rough[:, known], truth[:, known])
    np.savez_compressed(
        directory / "golden.npz", tokens=tokens, guesses=guesses, logits=truth, bf16_error=error
    )
    print(f"{directory.name}: bf16 error {error:.5f}")


def main() -> None:
    rng = np.random.default_rng(SEED)
    make_model(ROOT / "target", TARGET, SEED)
    for seed, (name, shape) in enumerate(HEADS.items()):
        head = make_head(ROOT / name, TARGET, shape, seed)
        write(head, TARGET.vocab, rng, partial(of_head, head, shape.taps))
    for name, (target, entries) in MTP_TARGETS.items():
        model = make_mtp_model(ROOT.parent / "mtp" / name, target, SEED, **entries)
        write(model, target.vocab, rng, partial(of_mtp, model))


if __name__ == "__main__":
    main()
