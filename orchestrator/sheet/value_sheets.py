"""Sheets of fits in several variables, of a sweep or of any table, and of fits over layers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from depthrate.grouping import grouped
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.judged_groups import by_request
from depthrate.orchestrator.analysis.preference import GroupState
from depthrate.orchestrator.analysis.table_fit import CLEAR_SHIFT, FACTS, TableFit
from depthrate.orchestrator.sheet.fit_sheet import (
    Column,
    FitSheet,
    IntervalValue,
    Kind,
    Value,
    interval_text,
    number_text,
)
from depthrate.orchestrator.sheet.fit_words import STATE_WORDS
from depthrate.orchestrator.sheet.markup import literal
from depthrate.orchestrator.sheet.names import curve_label, x_base
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.layer_law import decay_over_depth
from depthrate.tasks.fits.models import FORMS
from depthrate.tasks.fits.several_variables import MAX_INFLATION, is_floor_identified

_SURFACE_COLUMNS = (
    Column("form", "form"),
    Column("x", "variable"),
    Column("exponent", "exponent a [95 %]", Kind.INTERVAL),
    Column("verdict", "adequate"),
    Column("p_half", "p(a = ½)", Kind.P_VALUE),
    Column("p_one", "p(a = 1)", Kind.P_VALUE),
)
_LAYER_COLUMNS = (
    Column("name", "fit"),
    Column("depth", "L", Kind.COUNT),
    Column("rho", "rho [95 %]", Kind.INTERVAL, ".4f"),
    Column("r", "r", Kind.NUMBER, ".4f"),
    Column("p", "p(straight)", Kind.P_VALUE),
    Column("total", "$-$L log rho", Kind.NUMBER, ".2f"),
    Column("trials", "trials", Kind.COUNT),
    Column("left_out", "left out", is_optional=True),
)


def surface_sheet(group: FittedGroup) -> FitSheet:
    """Return a group's fit in several variables: one row per form and variable."""
    title = surface_title(group)
    if group.table is None:
        return FitSheet(title, _SURFACE_COLUMNS, [], remarks=[f"No fit: {literal(group.note)}."])
    sheet = table_sheet(group.table, title)
    left_out = [f"Trials left out: {literal(group.excluded_text)}."] if group.excluded_text else []
    return replace(sheet, remarks=[*sheet.remarks, *left_out])


def surface_title(group: FittedGroup) -> str:
    """Name a group's fit in several variables, as in `NC1 over depth, width, seed = 0`."""
    label = f", {literal(group.label())}" if group.label() else ""
    return f"{literal(group.metric_label)} over ${literal(group.x)}${label}"


def table_sheet(found: TableFit, title: str = "") -> FitSheet:
    """Return a fit of a table: one row per form and variable, the formulas, and what the values do not decide."""
    table_rows = found.rows()
    rows: list[dict[str, Value]] = [
        {
            "form": literal(row["form"]),
            "x": f"${literal(row['x'])}$",
            "exponent": IntervalValue(row["exponent"], row["ci_low"], row["ci_high"]),
            "p_half": row["p_half"],
            "p_one": row["p_one"],
            "verdict": "preferred" if row["preferred"] else "yes" if row["adequate"] else "no",
        }
        for row in table_rows
    ]
    fits = found.surfaces.fits
    methods = " and ".join(dict.fromkeys(fit.method for fit in fits if fit.method))
    by = f"intervals by {methods}" if methods else "too few units for intervals"
    tests = f"p-values corrected for {table_rows[0]['num_tests']} tests (Holm)"
    counts = f"{fits[0].n_points} values of {fits[0].n_units} units, {by}, {tests}"
    laws = [_law_sentence(found, fit) for fit in fits]
    title = title or f"{literal(found.y)} over {', '.join(f'${literal(name)}$' for name in fits[0].variables)}"
    return FitSheet(title, _SURFACE_COLUMNS, rows, remarks=[*laws, counts, *map(literal, remarks(found))])


def table_fields(found: TableFit) -> dict[str, Any]:
    """Return all facts of a fit of a table, for JSON."""
    return {
        "y": found.y,
        "preferred": [fit.form for fit in found.preferred],
        "words": remarks(found),
        "inflation": found.surfaces.inflation,
        "fits": [
            {"names": fit.variables} | {name: getattr(fit, name) for name in FACTS} for fit in found.surfaces.fits
        ],
        "rows": found.rows(),
    }


def _law_sentence(found: TableFit, fit: Fit) -> str:
    """Return a form's formula with its facts."""
    mark = "preferred" if fit in found.preferred else "inadequate" if found.inadequacy[fit.form] else ""
    constant = None if len(fit.coefficients) > 1 else fit.coefficient_intervals[0]
    named = (("E", fit.floor_interval), ("c", constant), ("b", fit.log_power_interval))
    intervals = [f"{letter} in {interval_text(*ends, '.4g')}" for letter, ends in named if ends is not None]
    numbers = (("$R^{2}$", fit.r2, ".3f"), ("AICc", fit.aicc, ".1f"), ("left out", fit.left_out, ".3g"))
    facts = [mark, *intervals, *(f"{name} ${number_text(n, form)}$" for name, n, form in numbers if n is not None)]
    return f"{literal(fit.form)}: {literal(found.y)} = {law_text(fit)} ({', '.join(filter(None, facts))})"


def law_text(fit: Fit) -> str:
    """Return a fit as a formula with markup, as in `0.05 + 1.2 depth^-0.90 + 4.1 width^-0.70`."""
    names = [literal(x_base(name)) for name in fit.variables]
    powers = [f"{name}^{{{-a:z.2f}}}" for name, a in zip(names, fit.exponents, strict=True)]
    c = number_text(fit.coefficients[0])
    if fit.form == "power_correction":
        return f"${c} {powers[0]} (1 + {number_text(fit.parameter('correction') or 0.0)} / {names[0]})$"
    if fit.form == "exponential":
        return f"${c} exp({number_text(-fit.exponent)} {names[0]})$"
    if fit.form == "log_linear":
        return f"${c} (1 - {number_text(fit.exponent)} log({names[0]}))$"
    if fit.form == "proportional":
        powers = [f"{name}^{{-1}}" for name in names]
    elif FORMS[fit.form].needs_x_above_one:
        powers = [f"log({names[0]})^{{{number_text(fit.log_power or 0.0)}}}", *powers]
    if fit.form != "power_floor":
        return f"${c} {' '.join(powers)}$"
    terms = [f"{number_text(c)} {power}" for c, power in zip(fit.coefficients, powers, strict=True)]
    return f"${' + '.join([*([number_text(fit.floor)] if fit.floor else []), *terms])}$"


def remarks(found: TableFit) -> list[str]:
    """Return what the values do not decide and which rows are not used, one plain sentence each."""
    shifts = [
        f"with {name} - 1 instead of {name}, the exponent of {name} changes by {shift:+.2f}"
        for name, shift in found.shifts.items()
        if abs(shift) > CLEAR_SHIFT
    ]
    omitted = [f"{found.omitted} rows left out: a value is missing or not positive"] if found.omitted else []
    repeated = [
        f"{found.repeated} of {len(found.y_N)} rows repeat an earlier row: copies look like replicates without noise, "
        "which can make every form inadequate. Keep one of each"
    ]
    return [*undecided(found), *shifts, *omitted, *(repeated if found.repeated else [])]


def undecided(found: TableFit) -> Iterator[str]:
    """Yield what the values do not decide, one plain sentence each."""
    surfaces, preference = found.surfaces, found.preference
    preferred = preference.models
    described = preferred or surfaces.fits
    if surfaces.inflation > MAX_INFLATION:
        names = " and ".join(surfaces.confounded)
        yield f"{names} are confounded (variance inflation {surfaces.inflation:.1f}): their exponents trade off"
    else:
        for fit in described:
            for one, other, size in fit.trade_offs:
                correlate = f"the estimates of {one} and {other} correlate at {size:.2f}"
                yield f"{fit.form}: {correlate}: only a combination is determined"
    for fit in described:
        if fit.form == "power_floor" and not is_floor_identified(fit):
            share = f"{fit.on_bound:.0%} of resamples have E = 0" if fit.on_bound else ""
            why = share or ("its interval includes 0" if fit.floor_interval else "it is 0 at the best fit")
            yield f"E not identified: {why}"
        yield from loss_remarks(fit)
    if len(preferred) > 1:
        changes = np.abs(np.diff([fit.exponents for fit in preferred], axis=0)).max(0)
        k = int(np.argmax(changes))
        forms = " and ".join(fit.form for fit in preferred)
        change = f"the exponent of {preferred[0].variables[k]} changes by {changes[k]:.2f} between them"
        yield f"{preferred[0].n_units} units cannot decide between {forms}; {change}"
    if preference.is_another_possible and preferred and len(found.variables) == 1:
        yield "another curve is not ruled out"
    if preference.state is GroupState.NONE:
        reasons = "; ".join(f"{form} ({reason})" for form, reason in found.inadequacy.items())
        yield f"no form is adequate: {reasons}"
    elif not preferred:
        yield f"{STATE_WORDS[preference.state]}: {preference.reason}"


def loss_remarks(fit: Fit, x: str = "") -> Iterator[str]:
    """Yield the exponents that depend on the loss, one plain sentence each. `x`: the name of the only variable."""
    for values in (warning.values for warning in fit.warnings if warning.code == "loss"):
        change = f"would change the exponent of {x or values['variable']} by {-values['change']:+.2f}"
        yield f"{fit.form}: squares of the residuals of log y {change}, more than half the width of its interval"


def layer_sheets(laws: Sequence[FittedGroup]) -> list[FitSheet]:
    """Return a sheet per request over layers: one row per depth and group, and the change of rho with the depth."""
    return [_layer_sheet(part) for part in by_request(laws).values()]


def _layer_sheet(laws: Sequence[FittedGroup]) -> FitSheet:
    decays = []
    for group in grouped(laws, lambda law: str(law.by)).values():
        decay = decay_over_depth({law.last_layer: law.law for law in group if law.law and law.last_layer})
        if decay is not None:
            exponent = f"a = ${decay.exponent:z.3f}$ {interval_text(decay.ci_low, decay.ci_high, '.3f')}".rstrip()
            decays.append(
                f"{literal(_law_name(group[-1]))}: $-$log rho = ${number_text(decay.prefactor)} L^{{-a}}$, {exponent}"
            )
    title = f"{curve_label(laws[0])} over the layers"
    return FitSheet(title, _LAYER_COLUMNS, list(map(_layer_row, laws)), remarks=decays, grouped_by="name")


def _law_name(group: FittedGroup) -> str:
    """Name the metric, the group and the replicates."""
    return ", ".join(filter(None, [group.metric_label, group.label(), group.draws]))


def _layer_row(group: FittedGroup) -> dict[str, Value]:
    row: dict[str, Value] = {"name": literal(_law_name(group)), "depth": group.last_layer, "trials": len(group.rows)}
    if group.law is None or group.last_layer is None:
        return row | {"rho": f"no fit: {literal(group.note)}"}
    fit = group.law.fit
    numbers = {"r": group.law.r, "p": fit.p_lack_of_fit, "total": group.last_layer * fit.exponent}
    rho = IntervalValue(group.law.rho, *(group.law.rho_interval or (None, None)))
    return row | numbers | {"rho": rho, "left_out": literal(group.excluded_text)}
