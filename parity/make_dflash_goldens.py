"""Writes tests/goldens/dflash: random DFlash and DFlash2 drafters, with float32 logits of torch."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from dflash import Dflash, blocks, features_of
from eagle3 import residuals
from make_head_goldens import TARGET
from support.random_dflash import BlockShape, make_drafter
from support.random_models import ROPE_SCALINGS
from support.reference import rms_error

GOLDENS = Path(__file__).resolve().parent.parent / "tests" / "goldens"
SEED = 20262
LENGTHS = (2, 33, 507)  # the last block crosses a chunk of attention
SLIDING = ("sliding_attention", "full_attention")
DRAFTERS = {
    "z-lab": BlockShape(taps=(1, 2, 4), heads=7, kv_heads=1, head_dim=40, ffn=70, block=16),
    "speculators": BlockShape(
        taps=(0, 2), heads=4, kv_heads=2, head_dim=18, ffn=60, block=8, tokens=97,
        has_embedding=True, maker="speculators",
    ),
    "biases-yarn": BlockShape(
        taps=(3, 1), heads=3, kv_heads=3, head_dim=24, ffn=52, block=10, has_biases=True,
        has_qk_norm=False, rope_theta=150000.0, rope_scaling=ROPE_SCALINGS["yarn"],
    ),
    "sliding": BlockShape(
        taps=(2, 4), heads=2, kv_heads=2, head_dim=24, ffn=60, block=12, layer_types=SLIDING,
        window=21,
    ),
    "sliding-both-ways": BlockShape(
        taps=(4,), heads=4, kv_heads=1, head_dim=16, ffn=48, block=5, layer_types=SLIDING[::-1],
        window=9, is_causal=False, rope_theta=1e6,
    ),
    "wide": BlockShape(
        taps=(1, 3), layers=1, heads=3, kv_heads=1, head_dim=32, ffn=64, block=2, hidden=72,
        has_embedding=True, tokens=61,
    ),
    "dflash2": BlockShape(
        taps=(1, 4), layers=3, heads=4, kv_heads=2, head_dim=24, ffn=52, block=8,
        layer_types=(SLIDING[0],) * 3, window=40, is_causal=False, rope_theta=1e6,
        convolution=(2, 8), selector=(20, 16), extra={"output_multiplier": 0.7},
    ),
}  # fmt: skip


def paths_of(
    directory: Path, layers: Sequence[torch.Tensor], tokens: Sequence[int]
) -> list[list[int]]:
    """The tokens that the selector of a drafter chooses after each of LENGTHS, [lengths, rows]."""
    drafter = Dflash(directory, GOLDENS / "heads" / "target", torch.float32)
    features = features_of(drafter, layers)
    rows = drafter.config["block_size"]
    with torch.inference_mode():
        return [drafter.path(features[: at - 1], tokens[at - 1], rows) for at in LENGTHS]


def main() -> None:
    rng, target = np.random.default_rng(SEED), GOLDENS / "heads" / "target"
    tokens = rng.integers(0, TARGET.vocab, max(LENGTHS)).tolist()
    layers = {dtype: residuals(target, tokens, dtype) for dtype in (torch.float32, torch.bfloat16)}
    for seed, (name, shape) in enumerate(DRAFTERS.items()):
        drafter = make_drafter(GOLDENS / "dflash" / name, TARGET, shape, seed)
        truth, rough = (
            blocks(
                Dflash(drafter, target, dtype), layers[dtype], tokens, LENGTHS, shape.block
            ).numpy()
            for dtype in (torch.float32, torch.bfloat16)
        )
        known = np.isfinite(truth[0, 0])
        errors = [rms_error(rough[i][:, known], truth[i][:, known]) for i in range(len(LENGTHS))]
        paths = (
            {"paths": paths_of(drafter, layers[torch.float32], tokens)} if shape.selector else {}
        )
        np.savez_compressed(
            drafter / "golden.npz",
            tokens=tokens,
            lengths=LENGTHS,
            logits=truth,
            bf16_error=errors,
            **paths,
        )
        print(f"{name}: bf16 errors {', '.join(f'{error:.5f}' for error in errors)}")


if __name__ == "__main__":
    main()
