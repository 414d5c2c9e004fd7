"""MXFP4's block and scale rules (OCP Microscaling Formats v1.0); the native core holds the cast."""

import enum

BLOCK = 32  # weights along K that share a scale


class ScaleRule(enum.Enum):
    """The rule that chooses a block's scale."""

    FLOOR = "floor"  # OCP MX v1.0, section 6.3: floor(log2(amax)) - 2
    MSE = "mse"  # FLOOR's or one of its two neighbours: the least squared error
