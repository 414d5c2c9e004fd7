"""95 % intervals by bootstrapping: what is measured is computed anew for sets of items, each as
large as the whole, that are drawn with replacement."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RESAMPLES = 4000  # sets


def draw_sets(count: int) -> npt.NDArray[np.int64]:
    """Sets of `count` indices below `count`, [RESAMPLES, count]; the same in each call."""
    return np.random.default_rng(0).integers(count, size=(RESAMPLES, count))


def limits(values: Floats) -> tuple[float, float]:
    """The 95 % interval of a figure, whose values for all sets these are."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
