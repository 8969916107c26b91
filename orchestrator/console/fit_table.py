"""Print the fits of a sweep: one row per curve, with the convergence of its trials, and one per depth of a law over layers."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from depthrate.orchestrator.analysis.convergence import UNTRAINED_ADVICE
from depthrate.orchestrator.analysis.fit_requests import Fits
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.layer_law import HEADER, decay_texts
from depthrate.orchestrator.analysis.preferred_model import (
    GroupState,
    adequate_power,
    curves_with_common_exponent,
    headlines,
    local_exponents_text,
    preferred_models,
    undecided_text,
)
from depthrate.orchestrator.console.surface_table import print_surfaces
from depthrate.orchestrator.console.tables import counted, print_rows, print_table, with_interval
from depthrate.tasks.fits.fit import Fit


def print_all_fits(console: Console, fits: Fits, *, wide: bool = False, more: str) -> None:
    """Print the fits of a sweep over one variable, over several, and over layers."""
    print_fits(console, fits.curves, wide=wide, more=more)
    print_surfaces(console, fits.surfaces)
    if laws := fits.layer_laws:
        rows = [[law.values.metric, law.values.label(), *law.cells] for law in laws]
        print_table(console, ["metric", "group", *HEADER], rows)
    for name, text in decay_texts(laws):
        console.print(f"{name}: {text}", markup=False, highlight=False, soft_wrap=True)


def print_fits(
    console: Console, curves: Sequence[FittedCurve], *, wide: bool = False, more: str = "depthrate fit SWEEP --wide"
) -> None:
    """Print one row per curve: the power law with its interval, and the preferred model."""
    if not curves:
        return
    rows: list[list[Any]] = []
    for curve in curves:
        power, adequate, preference = curve.power, adequate_power(curve), preferred_models(curve)
        name = [curve.metric, curve.label()]
        if preference.state is GroupState.NOT_YET:
            rows.append(
                [*name, "not yet", preference.reason, None, len(curve.rows), "", "", "", "", curve.excluded_text]
            )
            continue
        if power is None:
            rows.append([*name, "no fit", "", None, len(curve.rows), "", curve.note or "", "", "", curve.excluded_text])
            continue
        law, exponent = "no power law fits", f"between neighbours: {local_exponents_text(curve)}"
        if adequate is not None:
            base = curve.x if curve.x.isidentifier() else f"({curve.x})"
            prefactor = f"{power.prefactor:#.3g}".removesuffix(".")
            law, exponent = f"{prefactor} {base}^{-power.exponent:.3f}", _interval(power)
        model = " or ".join(preference.names) or preference.text
        numbers = [power.r2, power.n_points, _bounded(curve)]
        rows.append([*name, law, exponent, *numbers, model, _reached(curve), _moved(curve), curve.excluded_text])
    columns = ["metric", "group", "power law", "exponent a [95 %]", "R^2", "trials", "theorem's bound"]
    columns += ["preferred model", "target at", "a moved", "left out"]
    optional = ("group", "theorem's bound", "target at", "a moved", "left out")
    rows = [[round(value, 3) if isinstance(value, float) else value for value in row] for row in rows]
    print_rows(console, columns, rows, optional=optional, wide=wide, more=more)
    undecided = undecided_text(curves)
    for line in [*headlines(curves), *([undecided] if undecided else []), *_untrained(curves), *_convergence(curves)]:
        console.print(line)
    for curve in curves_with_common_exponent(curves):
        if (common := curve.common) is not None:
            exponent = with_interval(common.exponent, common.ci_low, common.ci_high)
            p = "<0.001" if common.p_common < 0.001 else f"{common.p_common:.3f}"
            console.print(f"{curve.metric}: one exponent for all {common.num_groups} groups: {exponent}, p = {p}")


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
    if any(map(_moved, fitted)):
        lines.append(
            "a moved: change of the exponent in the last quarter of training, and how far another quarter could move it."
        )
    return lines


def _moved(curve: FittedCurve) -> str:
    """Return the change of the exponent over the last quarter of training, and its bound for another quarter."""
    drift = curve.drift
    return "" if drift is None or not adequate_power(curve) else f"{drift.moved:+z.3f} (<{drift.could_move:.3f})"


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


def _interval(fit: Fit) -> str:
    text = with_interval(fit.exponent, fit.ci_low, fit.ci_high)
    few = "" if fit.n_seeds is None else f": {counted(fit.n_seeds, 'seed')}"
    return text if fit.ci_low is not None and fit.ci_high is not None else f"{text} (no interval{few})"


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
