"""Fitted curves in a terminal: a row a curve, and how far its trials' training had converged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from depthrate.orchestrator.analysis.convergence import UNCONVERGED_RULE
from depthrate.orchestrator.console.tables import print_rows

if TYPE_CHECKING:
    from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
    from depthrate.tasks.fits.rate_fit import RateFit


def print_fits(
    console: Console, curves: Sequence[FittedCurve], *, wide: bool = False, more: str = "depthrate fit SWEEP --wide"
) -> None:
    """Print one row a curve: the power law with its interval, and how it compares with the other models."""
    rows: list[list[Any]] = []
    for curve in curves:
        power = curve.power
        name = [curve.metric, curve.label()]
        if power is None:
            rows.append([*name, "no fit", "", None, len(curve.rows), "", curve.note or "", "", curve.excluded_text])
            continue
        base = curve.x if curve.x.isidentifier() else f"({curve.x})"
        prefactor = f"{power.prefactor:#.3g}".removesuffix(".")
        law = f"{prefactor} {base}^{-power.exponent:.3f}"
        numbers = [power.r2, power.n_points, _bounded(curve)]
        rows.append([*name, law, _interval(power), *numbers, _preferred(curve), _reached(curve), curve.excluded_text])
    columns = ["metric", "group", "power law", "exponent [95 %]", "R^2", "trials", "theorem's bound"]
    columns += ["best by AICc", "target at", "left out"]
    optional = [columns.index(name) for name in ("group", "theorem's bound", "target at", "left out")]
    kept = [i for i in range(len(columns)) if i not in optional or any(row[i] for row in rows)]
    print_rows(
        console,
        [columns[i] for i in kept],
        [[(round(row[i], 3) if isinstance(row[i], float) else row[i]) for i in kept] for row in rows],
        wide=wide,
        more=more,
    )
    for line in _convergence(curves):
        console.print(line, highlight=False, markup=False)
    for curve in _first_of_requests(curves):
        if curve.common is not None:
            common = curve.common
            text = f"{curve.metric}: one exponent for all {common.num_groups} groups: {common.exponent:.3f}"
            text += f" [{common.ci_low:.3f}, {common.ci_high:.3f}], p = {_p_value(common.p_common)}"
            console.print(text, highlight=False, markup=False)


def _convergence(curves: Sequence[FittedCurve]) -> list[str]:
    """Say whether the trials' training had converged, which exponents rest on."""
    fitted = [curve for curve in curves if curve.fits]
    used = {row["trial_id"] for curve in fitted for row in curve.rows}
    judged = max((curve.judged for curve in fitted), default=0)
    if not judged:
        return []
    falling = frozenset().union(*(curve.unconverged for curve in fitted))
    lines = [_how_it_ended(fitted, len(used), len(falling))]
    above = {trial_id: share for curve in fitted for trial_id, share in curve.above.items()}
    if above:
        lines.append(
            f"above a shallower network's objective: {len(above)} of {len(used)} trials, by up to {max(above.values()):.1%} "
            "of what theirs is above its limit"
        )
    drifts = [(_curve_name(curve), curve.drift) for curve in fitted if curve.drift is not None]
    if drifts:
        parts = (f"{name} {drift.moved:+z.3f} (at most {drift.could_move:.3f})" for name, drift in drifts)
        lines.append(f"exponents moved in the last quarter of training: {', '.join(parts)}")
    return lines


def _how_it_ended(fitted: Sequence[FittedCurve], num_used: int, num_falling: int) -> str:
    if all(curve.is_stationary for curve in fitted):
        return f"stationary: all {num_used} trials, by their solver's tolerance"
    if any(curve.stationary for curve in fitted):
        return f"unconverged: {num_falling} of {num_used} trials (their solver ended above its tolerance)"
    ended = (
        f"unconverged: {num_falling} of {num_used} trials ({UNCONVERGED_RULE})" if num_falling else "objectives at rest"
    )
    return f"exponents are of training at this budget, not of an optimum; {ended}"


def _curve_name(curve: FittedCurve) -> str:
    label = curve.label()
    return f"{curve.metric} over {curve.x}" + (f" ({label})" if label else "")


def _bounded(curve: FittedCurve) -> str:
    """Whether the data fall as fast as a theorem's upper bound."""
    if curve.bound is None or not curve.is_stationary:  # it speaks of optima
        return ""
    return f"{curve.bound.verdict} (-{curve.bound.exponent:.2f})"


def _first_of_requests(curves: Sequence[FittedCurve]) -> list[FittedCurve]:
    return list({str(curve.asked): curve for curve in reversed(curves)}.values())[::-1]


def _p_value(p: float | None) -> str:
    return "" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def _interval(fit: RateFit) -> str:
    if fit.ci_low is None or fit.ci_high is None:
        few = "" if fit.n_seeds is None else f": {fit.n_seeds} seed{'s' if fit.n_seeds > 1 else ''}"
        return f"{fit.exponent:.3f} (no interval{few})"
    return f"{fit.exponent:.3f} [{fit.ci_low:.3f}, {fit.ci_high:.3f}]"


def _preferred(curve: FittedCurve) -> str:
    weighed = [fit for fit in curve.fits if fit.weight is not None]
    if not weighed:
        return ""
    best = max(weighed, key=lambda fit: fit.weight or 0.0)
    return f"{best.model} ({best.weight:.0%})"


def _reached(curve: FittedCurve) -> str:
    """Where the power law meets the target."""
    power = curve.power
    if power is None or curve.asked.target is None:
        return ""
    if power.x_at_target is None:
        return "never"
    high = "inf" if power.x_at_high is None else f"{power.x_at_high:.3g}"
    low = "" if power.x_at_low is None else f" [{power.x_at_low:.3g}, {high}]"
    return f"{curve.x} {power.x_at_target:.3g}{low}"
