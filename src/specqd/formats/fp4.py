"""The formats of draft weights: E2M1 codes in blocks of 32; the native core holds the cast."""

import enum

BLOCK = 32  # weights along K that share a scale


class DraftFormat(enum.Enum):
    """A block's scale, and the rule that chooses it (docs/kernels.md)."""

    FP4 = "fp4"  # E5M3; the least weighted squared error
    MXFP4 = "mxfp4"  # E8M0; MXFP4_FLOOR's or a neighbour: the least squared error
    MXFP4_FLOOR = "mxfp4-floor"  # E8M0; OCP MX v1.0, section 6.3: floor(log2(amax)) - 2
