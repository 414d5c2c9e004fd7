"""Writes the goldens of families: small random models, and logits of transformers in float32.

Arguments: the names of goldens; without any, all. A golden that exists keeps its model and its
tokens. That of a new name is the small shape of this name in tests/support/families.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import theirs
from run import tokens_for
from support.families import SMALL_SHAPES
from support.random_models import make_model
from support.reference import rms_error

GOLDENS = Path(__file__).resolve().parent.parent / "tests" / "goldens"
SEED = 20260
TOKENS = 96  # beyond the windows of small shapes


def main() -> None:
    for name in sys.argv[1:] or sorted(path.parent.name for path in GOLDENS.glob("*/golden.npz")):
        path = GOLDENS / name / "golden.npz"
        if path.exists():
            tokens = np.load(path)["tokens"].tolist()
        else:
            shape = SMALL_SHAPES[name]
            tokens = tokens_for(make_model(path.parent, shape, SEED), shape, SEED, TOKENS)
        logits = theirs.logits(path.parent, tokens, "float32")
        bf16_error = rms_error(theirs.logits(path.parent, tokens, "bfloat16"), logits)
        np.savez_compressed(path, tokens=tokens, logits=logits, bf16_error=bf16_error)
        print(f"{name}: bf16 error {bf16_error:.5f}")


if __name__ == "__main__":
    main()
