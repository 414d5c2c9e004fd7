"""Names the formats of 4-bit draft weights: blocks of 32 E2M1 codes that share a scale.

Does not convert weights; the native core does.
"""

import enum

BLOCK = 32  # weights along K that share a scale


class DraftFormat(enum.Enum):
    """The type of a block's scale, and the rule that chooses its value (docs/kernels.md)."""

    FP4 = "fp4"  # E5M3, chosen for the least weighted squared error
    MXFP4 = "mxfp4"  # E8M0: the scale of MXFP4_FLOOR or a neighbour, for the least squared error
    MXFP4_FLOOR = "mxfp4-floor"  # E8M0: floor(log2(amax)) - 2 (OCP MX v1.0, section 6.3)
