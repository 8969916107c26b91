"""Wilson's interval against its published values."""

import pytest

from depthrate.tasks.fits.proportions import wilson_interval


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_published_values(successes, count, low, high):
    assert wilson_interval(successes, count) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@pytest.mark.parametrize(("successes", "count"), [(1, 0), (3, 2), (-1, 4)])
def test_no_share(successes, count):
    with pytest.raises(ValueError, match=f"{successes} successes of {count}, expected"):
        wilson_interval(successes, count)
