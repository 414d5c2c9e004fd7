"""Compares our logits with transformers' on random models of awkward shapes.

The reference is transformers in float32 on the same BF16 weights. Our RMS error, the median of five
seeds, must be at most that of transformers' own BF16 run. The float64 reference of the tests must
agree to float32's rounding at its worst seed.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, product
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import theirs
from specqd.config.recurrent import DeltaConfig
from support import reference
from support.decided_tokens import decided_tokens
from support.families import PARITY_SHAPES
from support.random_models import Shape, make_config, make_model, read_model
from support.reference import config_of, rms_error

PROMPT_LENGTH = 100  # beyond every window and every original context of rope scalings
SEEDS = range(5)
REFERENCE_TOLERANCE = 1e-5  # RMS error over RMS: a few hundred roundings of 6e-8 each
# transformers solves 64 rows of a recurrence at once in float32, which rounds more than the rule.
RECURRENT_TOLERANCE = 5e-5
SOFTMAX_MARGIN = 0.1  # of a clear one


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help="model types; without any, all")
    chosen = parser.parse_args().families
    names = [
        name for name, shape in PARITY_SHAPES.items() if shape.model_type in chosen or not chosen
    ]
    print(f"{'RMS error over RMS of the logits':48} reference  their BF16       ours")
    ok = True
    # Small models use one core, so each core gets a process.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        compared = processes.map(compare, *zip(*product(names, SEEDS), strict=True))
        for name in names:
            exact, bf16, ours = zip(*islice(compared, len(SEEDS)), strict=True)
            shape = PARITY_SHAPES[name]
            is_delta = isinstance(config_of(make_config(shape)).recurrent, DeltaConfig)
            tolerance = RECURRENT_TOLERANCE if is_delta else REFERENCE_TOLERANCE
            is_right = max(exact) <= tolerance and median(ours) <= median(bf16)
            verdict = "" if is_right else "  WRONG"
            row = f"{max(exact):9.1e} {median(bf16):11.5f} {median(ours):10.5f}"
            print(f"{name:48} {row}{verdict}", flush=True)
            ok = ok and is_right
    return 0 if ok else 1


def compare(name: str, seed: int) -> tuple[float, float, float]:
    """Relative RMS errors of the reference, of transformers in BF16, and of ours."""
    shape = PARITY_SHAPES[name]
    with tempfile.TemporaryDirectory() as folder:
        directory = make_model(Path(folder), shape, seed)
        tokens = tokens_for(directory, shape, seed + 1000, PROMPT_LENGTH)
        truth = theirs.logits(directory, tokens, "float32")
        config, tensors = read_model(directory)
        return (
            rms_error(reference.logits(config, tensors, tokens), truth),
            rms_error(theirs.logits(directory, tokens, "bfloat16"), truth),
            rms_error(our_logits(directory, tokens), truth),
        )


def tokens_for(directory: Path, shape: Shape, seed: int, count: int) -> list[int]:
    """Random tokens; of models with experts those whose experts are chosen by margins, because
    chance would decide barely chosen ones. The routing weight of a sigmoid is large also where its
    expert is barely chosen, so there the margins are clear."""
    experts = config_of(make_config(shape)).experts
    if experts is not None:
        share = 1.0 if experts.sigmoids is not None else SOFTMAX_MARGIN
        return decided_tokens(directory, shape, seed, count, share)
    tokens: list[int] = np.random.default_rng(seed).integers(0, shape.vocab, count).tolist()
    return tokens


def our_logits(directory: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    from specqd.model.model import Machine, Model

    return Model.open(directory, machine=Machine.choose(1)).logits(list(tokens))


if __name__ == "__main__":
    sys.exit(main())
