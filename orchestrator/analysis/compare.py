"""The curves that two sweeps have in common, and whether they share their exponents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.replicates import draws_of
from depthrate.sweeps.spec import FitRequest
from depthrate.tasks.fits.common_exponent import CommonFit, common_exponent
from depthrate.tasks.fits.points import FitError


@dataclass(frozen=True)
class FitPair:
    """One curve that both sweeps have, and whether its exponents are equal."""

    first: FittedCurve
    second: FittedCurve
    common: CommonFit | None
    """The exponent of both together, and the test that it is one; null where it cannot be tested."""


def pair_up(first: Sequence[FittedCurve], second: Sequence[FittedCurve]) -> Iterator[FitPair]:
    """Yield the curves that both sweeps have: the same metric over the same x in the same group, or the only group of each.

    Where a sweep asks for one several times, those with the same options (cut-off, unconverged ones dropped) are paired.
    """
    for curve in first:
        asked = [each for each in second if _asked(each) == _asked(curve)]
        asked = [each for each in asked if _options(each) == _options(curve)] or asked
        of_first = [each for each in first if (_asked(each), _options(each)) == (_asked(curve), _options(curve))]
        same = [each for each in asked if each.by == curve.by]
        other = same[0] if same else asked[0] if len(asked) == len(of_first) == 1 else None
        if other is not None:
            yield FitPair(curve, other, common_fit([curve, other]))


def _asked(curve: FittedCurve) -> tuple[Any, ...]:
    return curve.metric, curve.x, curve.asked.layer, curve.asked.where


def _options(curve: FittedCurve) -> FitRequest:
    return curve.asked.replace(by=())


def common_fit(curves: Sequence[FittedCurve]) -> CommonFit | None:
    """Return one exponent for all these curves, over whole seeds where each has them; null where it cannot be tested."""
    if not all(curve.fits for curve in curves):
        return None
    points = [([row["x"] for row in curve.rows], [row["y"] for row in curve.rows]) for curve in curves]
    known = [draws for draws in (draws_of(curve.rows) for curve in curves) if draws is not None]
    seeds = known if len(known) == len(curves) else None
    try:
        return common_exponent(points, seeds=seeds, weights=curves[0].asked.weights if curves else "equal")
    except FitError:
        return None
