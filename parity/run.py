"""Compares our logits with transformers' on random models of awkward shapes.

The reference is transformers in float32 on the same BF16 weights. Our RMS error, the median of five
seeds, must be at most that of transformers' own BF16 run. The float64 reference of the tests must
agree to float32's rounding at its worst seed.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import theirs
from cases import CASES, PROMPT_LENGTH, SEEDS
from support import reference
from support.decided_tokens import decided_tokens
from support.random_families import RECURRENT
from support.random_latent import SIGMOID
from support.random_models import Shape, make_model, read_model
from support.reference import rms_error

REFERENCE_TOLERANCE = 1e-5  # RMS error over RMS: a few hundred roundings of 6e-8 each
# transformers solves 64 rows of a recurrence at once in float32, which rounds more than the rule.
RECURRENT_TOLERANCE = 5e-5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference-only", action="store_true", help="leave out specqd")
    with_ours = not parser.parse_args().reference_only
    print(f"{'RMS error over RMS of the logits':48} reference  their BF16       ours")
    ok = True
    for name, shape in CASES.items():
        errors = [compare(shape, seed, with_ours) for seed in SEEDS]
        exact, bf16, ours = zip(*errors, strict=True)
        tolerance = RECURRENT_TOLERANCE if shape.model_type in RECURRENT else REFERENCE_TOLERANCE
        is_right = max(exact) <= tolerance and (not with_ours or median(ours) <= median(bf16))
        verdict = "" if is_right else "  WRONG"
        row = f"{max(exact):9.1e} {median(bf16):11.5f} {median(ours):10.5f}"
        print(f"{name:48} {row}{verdict}", flush=True)
        ok = ok and is_right
    return 0 if ok else 1


def compare(shape: Shape, seed: int, with_ours: bool) -> tuple[float, float, float]:
    """Relative RMS errors of the reference, of transformers in BF16, and of ours."""
    with tempfile.TemporaryDirectory() as folder:
        directory = make_model(Path(folder), shape, seed)
        tokens = tokens_for(directory, shape, seed + 1000)
        truth = theirs.logits(directory, tokens, "float32")
        config, tensors = read_model(directory)
        return (
            rms_error(reference.logits(config, tensors, tokens), truth),
            rms_error(theirs.logits(directory, tokens, "bfloat16"), truth),
            rms_error(our_logits(directory, tokens), truth) if with_ours else np.nan,
        )


def tokens_for(directory: Path, shape: Shape, seed: int) -> list[int]:
    """Random tokens. A sigmoid's share is large also where its expert is barely chosen, so that
    chance would decide: there, tokens whose experts are chosen by clear margins."""
    if shape.model_type in SIGMOID:
        return decided_tokens(directory, shape, seed, PROMPT_LENGTH)
    tokens: list[int] = np.random.default_rng(seed).integers(0, shape.vocab, PROMPT_LENGTH).tolist()
    return tokens


def our_logits(directory: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    from specqd.model.model import Model

    return Model.open(directory).logits(list(tokens))


if __name__ == "__main__":
    sys.exit(main())
