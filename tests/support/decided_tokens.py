"""Tokens whose experts are chosen by clear margins, and the error that rounding explains."""

import math
from pathlib import Path

import numpy as np

from support import reference
from support.random_models import Shape, read_model


def rounding_error(shape: Shape) -> float:
    """The RMS error of logits over their RMS that rounding to BF16 explains.

    A rounding to 8 significant bits errs by up to 2^-8 of a value, and by 2^-8 / sqrt(3) of it in
    RMS. A layer rounds the inputs of its four products, its keys and values, its queries and its
    attention weights; the head rounds its inputs: 8 * layers + 1 independent errors, whose
    variances add. Each counts in full, as if a layer's output were the whole residual stream.
    Twice that is allowed because small models average little. Of 150 models measured, the worst
    reached 1.4 times the estimate, medians 0.4 to 0.9.
    """
    return 2 * 2**-8 / math.sqrt(3) * math.sqrt(8 * shape.layers + 1)


def decided_tokens(
    directory: Path, shape: Shape, seed: int, count: int, share: float = 1.0
) -> list[int]:
    """Random tokens whose experts are chosen by clear margins: rounding could flip a close choice,
    and another expert's output differs by more than rounding.

    A score errs like a logit, by at most half the bound in RMS; a difference of two scores by
    sqrt(2) times that. The margin is three times the latter, or this share of it: a router among
    many experts hardly ever decides so clearly.
    """
    margin = share * 3 * math.sqrt(2) * rounding_error(shape) / 2
    config, tensors = read_model(directory)
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, shape.vocab, count)
    for _ in range(10 * count):  # a margin hardly depends on later tokens, so this ends
        is_close = reference.router_margins(config, tensors, tokens.tolist()) <= margin
        if not is_close.any():
            return tokens.tolist()
        tokens[is_close] = rng.integers(0, shape.vocab, is_close.sum())
    raise AssertionError(f"no router of {shape.model_type} is decided")
