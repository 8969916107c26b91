"""Normalisation: mean and standard deviation of numbers as they come."""

import numpy as np
import pytest

from depthrate.tasks.data.preparation import moments


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [("uint8", 255), ("uint16", 2**16 - 1), ("int32", 10**7), ("int32", 2**31 - 1), ("int64", 10**15)],
)
def test_integer_moments_are_exact(dtype: str, largest: int) -> None:
    low = 0 if dtype.startswith("u") else -largest
    x_NI = np.random.default_rng(0).integers(low, largest, size=(20_000, 2)).astype(dtype)
    for normalize, axis in (("per_feature", 0), ("global", None)):
        mean, std = moments(x_NI, normalize)
        assert mean == pytest.approx(x_NI.astype(float).mean(axis), rel=1e-9, abs=1e-6 * largest)
        assert std == pytest.approx(x_NI.astype(float).std(axis), rel=1e-9)


def test_a_constant_feature_is_not_divided_by_zero() -> None:
    mean, std = moments(np.full((5, 2), 7, np.uint8), "per_feature")
    assert mean.tolist() == [7, 7] and std.tolist() == [1, 1]
