"""Pair the curves of two sweeps and test whether they share their exponents."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.judged_groups import by_request, followed_power
from depthrate.orchestrator.analysis.replicates import replicate_keys
from depthrate.sweeps.spec import FitRequest
from depthrate.tasks.fits.common_exponent import CommonFit, common_exponent
from depthrate.tasks.fits.points import FitError


@dataclass(frozen=True)
class FitPair:
    """One curve of both sweeps, with the test for equal exponents."""

    first: FittedGroup
    second: FittedGroup
    common: CommonFit | None
    """Common exponent with its test, or None if it cannot be tested."""

    @property
    def stated_common(self) -> CommonFit | None:
        """The common exponent if both curves follow a power law, and None otherwise."""
        return self.common if followed_power(self.first) and followed_power(self.second) else None


def pair_up(first: Sequence[FittedGroup], second: Sequence[FittedGroup]) -> Iterator[FitPair]:
    """Yield pairs of curves of the two sweeps with the same metric, x and group, or with the only group of each sweep.

    If only one sweep has groups, each group is paired with the other sweep's only curve. If the same curve is requested
    several times, the curves with the same options (cut-off, unconverged trials dropped) are paired.
    """
    for curve in first:
        candidates = [other for other in second if _subject(other) == _subject(curve)]
        candidates = [other for other in candidates if _options(other) == _options(curve)] or candidates
        siblings = [o for o in first if (_subject(o), _options(o)) == (_subject(curve), _options(curve))]
        same = [other for other in candidates if other.by == curve.by]
        is_only = len(candidates) == len(siblings) == 1
        partners = same[:1] or [other for other in candidates if is_only or not (curve.by and other.by)]
        for other in partners:
            yield FitPair(curve, other, common_fit([curve, other]))


def unpaired_text(names: Sequence[str], curves: Sequence[Sequence[FittedGroup]]) -> str:
    """Describe the fits of sweeps that share no fit, and how to make them comparable."""
    fits = [
        f"{name} fits {'; '.join(_describe_fits(own)) or 'nothing'}" for name, own in zip(names, curves, strict=True)
    ]
    return (
        f"the sweeps share no fit: {', and '.join(fits)}. Give both an entry under fit: with the same metric, x, layer, where "
        "and by (or no by in one of them), and compare again"
    )


def _describe_fits(curves: Sequence[FittedGroup]) -> list[str]:
    """Name the fits of some curves, with all groups of a fit in one entry."""
    return [", ".join(_fit_details(group)) for group in by_request(curves).values()]


def _fit_details(group: Sequence[FittedGroup]) -> Iterator[str]:
    request = group[0].asked
    yield f"{request.metric} over {request.x}"
    if request.layer is not None:
        yield f"layer {request.layer_text}"
    if request.where is not None:
        yield f"where {request.where}"
    for name in request.by:
        yield f"by {name} = {', '.join(dict.fromkeys(str(curve.by[name]) for curve in group))}"


def _subject(curve: FittedGroup) -> tuple[Any, ...]:
    return curve.metric, curve.x, curve.asked.layer, curve.asked.where


def _options(curve: FittedGroup) -> FitRequest:
    return curve.asked.replace(by=())


def common_fit(curves: Sequence[FittedGroup]) -> CommonFit | None:
    """Fit one exponent to all curves, over whole seeds if every curve has them. Return None if it cannot be tested."""
    if not all(curve.fits for curve in curves):
        return None
    points = [([row["x"] for row in curve.rows], [row["y"] for row in curve.rows]) for curve in curves]
    replicates = [keys for curve in curves if (keys := replicate_keys(curve.rows)) is not None]
    seeds = replicates if len(replicates) == len(curves) else None
    try:
        return common_exponent(points, seeds=seeds)
    except FitError:
        return None
