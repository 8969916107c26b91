"""Print fitted curves, one row per curve, and the convergence of their trials."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from depthrate.orchestrator.analysis.convergence import UNTRAINED_ADVICE
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import (
    adequate_power,
    curves_with_common_exponent,
    local_exponents_text,
    preferred_models,
    undecided_text,
)
from depthrate.orchestrator.console.tables import print_rows
from depthrate.tasks.fits.rate_fit import RateFit


def print_fits(
    console: Console, curves: Sequence[FittedCurve], *, wide: bool = False, more: str = "depthrate fit SWEEP --wide"
) -> None:
    """Print one row per curve: the power law with its interval, and the preferred model."""
    if not curves:
        return
    rows: list[list[Any]] = []
    for curve in curves:
        power, adequate = curve.power, adequate_power(curve)
        name = [curve.metric, curve.label()]
        if power is None:
            rows.append([*name, "no fit", "", None, len(curve.rows), "", curve.note or "", "", curve.excluded_text])
            continue
        law, exponent = "no power law fits", f"between neighbours: {local_exponents_text(curve)}"
        if adequate is not None:
            base = curve.x if curve.x.isidentifier() else f"({curve.x})"
            prefactor = f"{power.prefactor:#.3g}".removesuffix(".")
            law, exponent = f"{prefactor} {base}^{-power.exponent:.3f}", _interval(power)
        preference = preferred_models(curve)
        model = " or ".join(preference.names) or preference.text
        numbers = [power.r2, power.n_points, _bounded(curve)]
        rows.append([*name, law, exponent, *numbers, model, _reached(curve), curve.excluded_text])
    columns = ["metric", "group", "power law", "exponent a [95 %]", "R^2", "trials", "theorem's bound"]
    columns += ["preferred model", "target at", "left out"]
    optional = [columns.index(name) for name in ("group", "theorem's bound", "target at", "left out")]
    kept = [i for i in range(len(columns)) if i not in optional or any(row[i] for row in rows)]
    print_rows(
        console,
        [columns[i] for i in kept],
        [[(round(row[i], 3) if isinstance(row[i], float) else row[i]) for i in kept] for row in rows],
        wide=wide,
        more=more,
    )
    undecided = undecided_text(curves)
    for line in [*([undecided] if undecided else []), *_untrained(curves), *_convergence(curves)]:
        console.print(line)
    for curve in curves_with_common_exponent(curves):
        if (common := curve.common) is not None:
            text = f"{curve.metric}: one exponent for all {common.num_groups} groups: {common.exponent:.3f}"
            p = "<0.001" if common.p_common < 0.001 else f"{common.p_common:.3f}"
            text += f" [{common.ci_low:.3f}, {common.ci_high:.3f}], p = {p}"
            console.print(text)


def _untrained(curves: Sequence[FittedCurve]) -> list[str]:
    """Return a line on the trials that did not train."""
    untrained = frozenset().union(*(curve.untrained for curve in curves))
    if not untrained:
        return []
    are = "trial is" if len(untrained) == 1 else "trials are"
    return [f"{len(untrained)} {are} untrained (at the loss of constant predictions) and excluded. {UNTRAINED_ADVICE}"]


def _convergence(curves: Sequence[FittedCurve]) -> list[str]:
    """Return lines that describe the convergence of the trials."""
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
            f"{len(above)} of {len(used)} trials have a higher objective than a shallower network, by up to "
            f"{max(above.values()):.1%} of their gap to the limit, or of the objective if no limit is known."
        )
    drifts = [
        (f"{curve.metric} over {curve.x}" + (f" ({label})" if (label := curve.label()) else ""), curve.drift)
        for curve in fitted
        if curve.drift is not None and adequate_power(curve)
    ]
    if drifts:
        parts = (
            f"{name} {drift.moved:+z.3f} (another quarter: up to {drift.could_move:.3f})" for name, drift in drifts
        )
        lines.append(f"Change of the exponent in the last quarter of training: {', '.join(parts)}.")
    return lines


def _how_it_ended(fitted: Sequence[FittedCurve], num_used: int, num_falling: int) -> str:
    if all(curve.is_stationary for curve in fitted):
        return f"Stationary: all {num_used} trials, by their solver's tolerance."
    count = f"{num_falling} of {num_used} trials are unconverged"
    if any(curve.stationary for curve in fitted):
        return f"{count}: their solver stopped above its tolerance. To solve longer, raise polish."
    advice = f"{count}. To train longer, raise steps." if num_falling else "all objectives have come to rest."
    return f"The exponents describe training at this budget, not an optimum: {advice}"


def _bounded(curve: FittedCurve) -> str:
    """Return the verdict on a theorem's upper bound, or an empty string."""
    if curve.bound is None or not curve.is_stationary:  # the bound holds for optima
        return ""
    return f"{curve.bound.verdict} ({curve.bound.exponent:.2f})"


def _interval(fit: RateFit) -> str:
    if fit.ci_low is None or fit.ci_high is None:
        few = "" if fit.n_seeds is None else f": {fit.n_seeds} seed{'s' if fit.n_seeds > 1 else ''}"
        return f"{fit.exponent:.3f} (no interval{few})"
    return f"{fit.exponent:.3f} [{fit.ci_low:.3f}, {fit.ci_high:.3f}]"


def _reached(curve: FittedCurve) -> str:
    """Return the x at which the power law reaches the target."""
    power = adequate_power(curve)
    if power is None or curve.asked.target is None:
        return ""
    if power.x_at_target is None:
        return "never"
    high = "inf" if power.x_at_high is None else f"{power.x_at_high:.3g}"
    low = "" if power.x_at_low is None else f" [{power.x_at_low:.3g}, {high}]"
    return f"{curve.x} {power.x_at_target:.3g}{low}"
