"""Proportions of trials, with intervals."""

import math

Z_95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


def wilson_interval(successes: float, count: float) -> tuple[float, float]:
    """Compute the 95 % score interval of a proportion.

    The interval lies in [0, 1] and has positive width at 0 and 1. Counts derived from rounded shares may be fractional.

    Raises:
        ValueError: There are no trials, or more successes than trials.

    Source: Wilson 1927, Probable inference, the law of succession, and statistical inference.
    """
    if not 0 <= successes <= count or count < 1:
        raise ValueError(
            f"{successes} successes of {count}, expected a count of at least 1 and successes from 0 to the count."
        )
    z, share, weight = Z_95, successes / count, Z_95**2 / count
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / count + weight / (4 * count))
    # At the ends the formula gives exactly 0 and 1, except for rounding.
    low = 0.0 if successes == 0 else middle - half
    return low, 1.0 if successes == count else middle + half
