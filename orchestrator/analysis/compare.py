"""The curves that two sweeps have in common, and whether they share their exponents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import adequate_power
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

    @property
    def stated_common(self) -> CommonFit | None:
        """The same where both have an adequate power law."""
        return self.common if adequate_power(self.first) and adequate_power(self.second) else None


def pair_up(first: Sequence[FittedCurve], second: Sequence[FittedCurve]) -> Iterator[FitPair]:
    """Yield the curves that both sweeps have: the same metric over the same x in the same group, or the only group of each.

    Where only one of the sweeps has groups, each group is paired with the other sweep's only curve. Where a sweep asks for one
    several times, those with the same options (cut-off, unconverged ones dropped) are paired.
    """
    for curve in first:
        asked = [other for other in second if _asked(other) == _asked(curve)]
        asked = [other for other in asked if _options(other) == _options(curve)] or asked
        of_first = [other for other in first if (_asked(other), _options(other)) == (_asked(curve), _options(curve))]
        same = [other for other in asked if other.by == curve.by]
        is_only = len(asked) == len(of_first) == 1
        partners = same[:1] or [other for other in asked if is_only or not (curve.by and other.by)]
        for other in partners:
            yield FitPair(curve, other, common_fit([curve, other]))


def unpaired_text(names: Sequence[str], curves: Sequence[Sequence[FittedCurve]]) -> str:
    """Return what sweeps without a pair fit, and how to have them compared."""
    fits = [f"{name} fits {'; '.join(_requests(own)) or 'nothing'}" for name, own in zip(names, curves, strict=True)]
    return (
        f"no fit in both: {', and '.join(fits)}. Give both sweeps an entry under fit: with the same metric, x, layer, where "
        "and by (or no by in one of them), and compare again"
    )


def _requests(curves: Sequence[FittedCurve]) -> list[str]:
    """Name what curves are of, their groups together."""
    groups: dict[str, list[FittedCurve]] = {}
    for curve in curves:
        groups.setdefault(str(curve.asked), []).append(curve)
    return [", ".join(_differences(group)) for group in groups.values()]


def _differences(group: Sequence[FittedCurve]) -> Iterator[str]:
    asked = group[0].asked
    yield f"{asked.metric} over {asked.x}"
    if asked.layer is not None:
        yield f"layer {asked.layer}"
    if asked.where is not None:
        yield f"where {asked.where}"
    for name in asked.by:
        yield f"by {name} = {', '.join(dict.fromkeys(str(curve.by[name]) for curve in group))}"


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
