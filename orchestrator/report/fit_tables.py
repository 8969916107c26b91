"""Render the tables of fits: evidence and all models."""

from collections.abc import Callable, Sequence

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.report.fit_text import (
    above_text,
    bound_text,
    drift_text,
    range_text,
    rivals_text,
    target_text,
)
from depthrate.orchestrator.report.html_table import (
    Cell,
    Group,
    grouped_table,
    long_cell,
    number_cell,
    table,
    text_cell,
    without_empty,
)
from depthrate.orchestrator.report.text import (
    curve_label,
    escape,
    formula_markup,
    group_text,
    is_finite,
    number_text,
    p_text,
    signed_text,
    three_decimals,
    x_text,
)
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.model import FitParameter
from depthrate.tasks.fits.models import MODELS


def support_table(curves: Sequence[FittedCurve]) -> str:
    """Return one row per curve with the evidence for and against its power law. Empty without fits."""
    fitted = [curve for curve in curves if curve.power is not None]
    if not fitted:
        return ""
    columns: dict[str, Callable[[FittedCurve], Cell]] = {
        "fit": lambda curve: Cell(_name(curve)),
        "other models": lambda curve: long_cell(rivals_text(curve)),
        "change over the last quarter of training": lambda curve: long_cell(drift_text(curve)),
        "objective above a shallower network's": lambda curve: long_cell(above_text(curve)),
        "range of x": lambda curve: long_cell(range_text(curve)),
        "theorem's upper bound": lambda curve: Cell(f"<div class=long>{bound_text(curve)}</div>"),
        "target": lambda curve: long_cell(target_text(curve)),
    }
    rows = [[cell(curve) for cell in columns.values()] for curve in fitted]
    notes = []
    if any(curve.bound is not None and not curve.is_stationary for curve in fitted):
        notes.append(
            "The theorem's bound holds for optima and is not compared: these rates are of training at this budget."
        )
    if any(curve.above for curve in fitted):
        notes.append(
            "An optimum's objective is never above a shallower network's. The excess is a share of its height above the limit."
        )
    note = f"<p class=note>{' '.join(notes)}</p>" if notes else ""
    return table(*without_empty(list(columns), rows)) + note


def _name(curve: FittedCurve) -> str:
    by = group_text(curve.by)
    return escape(f"{curve_label(curve)} over {x_text(curve.x)}{f', {by}' if by else ''}")


def fit_table(curves: Sequence[FittedCurve]) -> str:
    """Return all models of all curves, grouped by curve, with the curve's facts above its rows."""
    groups = [Group(_title(curve), [_fit_row(fit) for fit in curve.fits]) for curve in curves if curve.fits]
    if not groups:
        return "<p>No fits yet.</p>"
    header = ["model", "a", "std. error", "95 % interval", "SD over seeds", "profile interval"]
    header += [
        "p(a = ½)",
        "p(a = 1)",
        "c",
        *(parameter.symbol for parameter in _parameters()),
        "R²",
        "AICc",
        "weight",
        "n",
    ]
    models = "; ".join(f"{model.words}: {formula_markup(model.formula)}" for model in MODELS.values())
    note = (
        f"Models of a metric y over x, fitted to log y of every trial: {models}. 95 % interval of a: over whole seeds "
        "(Student's t, all values of a seed together), ∞ for an open end. SD over seeds: standard deviation of a between "
        "seeds, including noise. If each trial is its own replicate: bootstrap over the trials at each x (BCa), or "
        "Student's t if no x has two trials, and the profile interval, the a that an F test does not reject at 5 %. p: of a "
        "pure power law with that exponent, which no theorem states. Weight: Akaike weight among the models of one curve, "
        "with a level per seed. The store's table fits has all digits."
    )
    return f"<p class=note>{note}</p>{grouped_table(header, groups)}"


def _title(curve: FittedCurve) -> str:
    """Name the curve, the replicates of its intervals, and its excluded trials."""
    excluded = curve.excluded_text
    facts = [f"intervals over {escape(curve.draws)}"] if curve.draws else []
    facts += [f"excluded: {escape(excluded)}"] if excluded else []
    return _name(curve) + (f" <span class=note>{'; '.join(facts)}</span>" if facts else "")


def _parameters() -> list[FitParameter]:
    """Return the parameters of all models other than c and a."""
    return list(dict.fromkeys(parameter for model in MODELS.values() for parameter in model.parameters))


def _fit_row(fit: Fit) -> list[Cell]:
    weight = "—" if fit.weight is None else f"{fit.weight:.1%}" if fit.weight >= 0.001 else "< 0.1%"
    numbers = [
        three_decimals(fit.exponent),
        number_text(fit.stderr, 2, zeros=True),
        _ends_text(fit.ci_low, fit.ci_high) if fit.ci_method else "—",
        number_text(fit.seed_spread, 2, zeros=True),
        _ends_text(fit.profile_low, fit.profile_high),
        p_text(fit.p_half),
        p_text(fit.p_one),
        number_text(fit.prefactor, zeros=True),
        *(number_text(fit.parameter(parameter.name), zeros=True) for parameter in _parameters()),
        three_decimals(fit.r2),
        "—" if not is_finite(fit.aicc) else signed_text(fit.aicc, ".1f"),
        weight,
        str(fit.n_points),
    ]
    return [text_cell(MODELS[fit.model].words), *map(number_cell, numbers)]


def _ends_text(low: float | None, high: float | None) -> str:
    """Format an interval. Open ends are infinite."""
    if low is None and high is None:
        return "—"
    return f"[{'−∞' if low is None else three_decimals(low)}, {'∞' if high is None else three_decimals(high)}]"
