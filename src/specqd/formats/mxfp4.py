"""MXFP4's block and scale rules (OCP Microscaling Formats v1.0); the native core holds the cast."""

import enum

BLOCK = 32  # weights along K that share a scale


class ScaleRule(enum.Enum):
    """How a block's scale is chosen."""

    FLOOR = "floor"  # OCP MX v1.0, section 6.3: floor(log2(amax)) - 2
    MSE = "mse"  # of FLOOR's and its two neighbours, the one with the least squared error
