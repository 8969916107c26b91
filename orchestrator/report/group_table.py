"""Render the table of rates: one row per group, with the interval of each exponent drawn and printed."""

from collections.abc import Mapping, Sequence

import numpy as np

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import (
    GroupState,
    adequate_power,
    followed_power,
    inadequacy,
    preferred_models,
)
from depthrate.orchestrator.report.curve_groups import unique
from depthrate.orchestrator.report.drawing.scale import Scale, padded, ticks
from depthrate.orchestrator.report.drawing.style import PAGE
from depthrate.orchestrator.report.drawing.svg import SvgPen
from depthrate.orchestrator.report.figure import Axis
from depthrate.orchestrator.report.figures.metric_against_x import HALF
from depthrate.orchestrator.report.fit_text import inadequacy_text
from depthrate.orchestrator.report.text import (
    curve_label,
    ends_text,
    escape,
    group_phrase,
    interval_of,
    shorten,
    signed_text,
    three_decimals,
    value_text,
    x_text,
)
from depthrate.tasks.fits.fit import Fit
from depthrate.tasks.fits.models import MODELS

STRIP_WIDTH, STRIP_HEIGHT = 150, 24


def group_table(curves: Sequence[FittedCurve], colours: Mapping[str, str]) -> str:
    """Return the rates of one metric by group, or of several metrics without groups, one row per curve.

    Columns of the class `spare` are omitted on a phone. The tables of all fits contain them too.

    Args:
        colours: Colours in the figure, by the groups' names, such as `width 64`.
    """
    scale = _strip_scale([power for curve in curves if (power := adequate_power(curve))])
    by, xs = list(curves[0].by), unique(x_text(curve.x) for curve in curves)
    names = by or ["metric", "x"][: min(len(xs), 2)]
    heads = [f"<th>{escape(shorten(name))}</th>" for name in names]
    heads += [
        f"<th class=spare>{_strip_axis(scale)}</th><th class=nowrap>exponent a [95 %]</th><th class='number spare'>R²</th>"
    ]
    heads += ["<th class=spare>preferred model</th><th>adequate</th><th class='number spare'>trials</th>"]
    rows, previous = [], None
    for curve in curves:
        values = [shorten(value_text(value)) for value in curve.by.values()]
        values = values or [curve_label(curve), x_text(curve.x)][: len(names)]
        is_first, previous = values[0] != previous or len(names) == 1, values[0]
        phrases = [group_phrase({name: value}) for name, value in curve.by.items()]
        keys = [phrase in colours for phrase in phrases] or [False] * len(names)
        if (phrase := group_phrase(curve.by)) in colours:
            keys[-1] = True
        colour = next((colours[text] for text in (*phrases, phrase) if text in colours), "ink")
        kinds = [f"{'key ' * key}{'again' * (place == 0 and not is_first)}" for place, key in enumerate(keys)]
        cells = [f"<td class='{kind}'>{escape(value)}</td>" for kind, value in zip(kinds, values, strict=True)]
        row = f"<tr style='--c:var(--{colour})'{' class=first' * is_first}>"
        rows.append(f"{row}{''.join(cells)}{_rate_cells(curve, scale, colour)}</tr>")
    what = f"{curve_label(curves[0])} against" if by else "Power laws over"
    over = unique(curve.draws for curve in curves if curve.draws)
    notes = [f"{what} {' and '.join(xs)}{', by group' if by else ''}."]
    notes += [f"Intervals over {' or '.join(over)}."] if over else []
    caption = f"<caption>{escape(' '.join(notes))}</caption>"
    body = f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll" tabindex="0"><table class=groups>{caption}{body}</table></div>'


def _rate_cells(curve: FittedCurve, scale: Scale, colour: str) -> str:
    power, adequate, preference = curve.power, adequate_power(curve), preferred_models(curve)
    models = " or ".join(MODELS[name].words for name in preference.names)
    if preference.state is GroupState.NOT_YET:
        exponent, verdict = f"<i>not yet: {escape(preference.reason)}</i>", ""
    elif adequate is not None:
        exponent = f"<b>{signed_text(adequate.exponent, '.2f')}</b> {ends_text(interval_of(adequate))}"
        verdict = "yes" if followed_power(curve) else "other model preferred" if preference.models else preference.text
    elif power is None:
        exponent, verdict = f"<i>no fit: {escape(curve.note or 'too few points')}</i>", ""
    else:
        has_low_r2 = inadequacy(curve, power).startswith("R^2")  # which the next column shows
        exponent, verdict = "<i>no power law</i>", "no" if has_low_r2 else f"no: {inadequacy_text(curve, power)}"
    r2 = three_decimals(power.r2) if power else "—"
    strip = _strip(scale, adequate, colour, "dot" if followed_power(curve) else "ring")
    return (
        f"<td class=spare>{strip}</td><td>{exponent}</td><td class='number spare'>{r2}</td>"
        f"<td class=spare>{escape(models) or '<i>none</i>'}</td><td>{verdict}</td>"
        f"<td class='number spare'>{len(curve.rows)}</td>"
    )


def _strip_scale(powers: Sequence[Fit]) -> Scale:
    """Return an axis with 0, all exponents and their intervals. Intervals much wider than the rest end at its edge."""
    exponents = [0.0, *(power.exponent for power in powers)]
    ends = [end for power in powers for end in interval_of(power) or ()]
    margin = max(max(exponents) - min(exponents), 0.5)
    lowest, highest = min(exponents) - margin, max(exponents) + margin
    low, high = padded(np.clip([*exponents, *ends], lowest, highest), is_log=False)
    return Scale(low, high, 0, STRIP_WIDTH)


def _strip_axis(scale: Scale) -> str:
    """Return the ticks, as the head of the column."""
    pen = SvgPen(PAGE)
    for value, text in ticks(Axis(title=""), scale.low, scale.high):
        pen.text(float(scale([value])[0]), 12, text, 11, "muted", "middle")
    return pen.element(STRIP_WIDTH, STRIP_HEIGHT, "exponents, drawn")


def _strip(scale: Scale, power: Fit | None, colour: str, symbol: str) -> str:
    """Return a symbol at the exponent and a line over its interval, with the value ½ dotted."""
    pen, middle = SvgPen(PAGE), STRIP_HEIGHT / 2
    if scale.low < HALF < scale.high:
        x = float(scale([HALF])[0])
        pen.lines([np.array([(x, 0), (x, STRIP_HEIGHT)])], "muted", 0.8, "dot")
    if power is not None:
        interval = scale(interval_of(power) or ())
        pen.lines([np.array([(x, middle) for x in interval])] if len(interval) else [], colour, 1.8)
        pen.spots(np.array([(scale([power.exponent])[0], middle)]), colour, 7, symbol)
    return pen.element(STRIP_WIDTH, STRIP_HEIGHT, "")
