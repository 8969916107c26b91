"""Render the table of rates: one row per group, with the interval of each exponent drawn and printed."""

import math
from collections.abc import Mapping, Sequence

from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.analysis.preferred_model import adequate_power, inadequacy, preferred_models
from depthrate.orchestrator.report.curve_groups import unique
from depthrate.orchestrator.report.fit_text import inadequacy_text
from depthrate.orchestrator.report.text import (
    curve_label,
    escape,
    group_phrase,
    interval_of,
    shorten,
    signed_text,
    three_decimals,
    value_text,
    x_text,
)
from depthrate.tasks.fits.models import MODELS
from depthrate.tasks.fits.rate_fit import RateFit

STRIP_WIDTH, STRIP_HEIGHT, STRIP_MARGIN = 150, 24, 10


def group_table(curves: Sequence[FittedCurve], colours: Mapping[str, str]) -> str:
    """Return the rates of one metric by group, or of several metrics without groups, one row per curve.

    Columns of the class `spare` are omitted on a phone. The tables of all fits contain them too.

    Args:
        colours: Colours in the figure, by the groups' names, such as `width 64`.
    """
    strip = _Strip([power for curve in curves if (power := adequate_power(curve))])
    by, xs = list(curves[0].by), unique(x_text(curve.x) for curve in curves)
    names = by or ["metric", "x"][: min(len(xs), 2)]
    heads = [f"<th>{escape(shorten(name))}</th>" for name in names]
    heads += [
        f"<th class=spare>{strip.axis()}</th><th class=nowrap>exponent a [95 %]</th><th class='number spare'>R²</th>"
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
        rows.append(f"{row}{''.join(cells)}{_rate_cells(curve, strip)}</tr>")
    what = f"{curve_label(curves[0])} against" if by else "Power laws over"
    over = unique(curve.draws for curve in curves if curve.draws)
    notes = [f"{what} {' and '.join(xs)}{', by group' if by else ''}."]
    notes += [f"Intervals over {' or '.join(over)}."] if over else []
    caption = f"<caption>{escape(' '.join(notes))}</caption>"
    body = f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll" tabindex="0"><table class=groups>{caption}{body}</table></div>'


def _rate_cells(curve: FittedCurve, strip: "_Strip") -> str:
    power, adequate = curve.power, adequate_power(curve)
    models = " or ".join(MODELS[name].words for name in preferred_models(curve).names)
    if adequate is not None:
        interval = interval_of(adequate)
        ends = f" [{', '.join(signed_text(end, '.2f') for end in interval)}]" if interval else ""
        exponent, verdict = f"<b>{signed_text(adequate.exponent, '.2f')}</b>{ends}", "yes"
    elif power is None:
        exponent, verdict = f"<i>no fit: {escape(curve.note or 'too few points')}</i>", ""
    else:
        has_low_r2 = inadequacy(curve, power).startswith("R^2")  # which the next column shows
        exponent, verdict = "<i>no power law</i>", "no" if has_low_r2 else f"no: {inadequacy_text(curve, power)}"
    r2 = three_decimals(power.r2) if power else "—"
    return (
        f"<td class=spare>{strip.row(adequate)}</td><td>{exponent}</td><td class='number spare'>{r2}</td>"
        f"<td class=spare>{escape(models) or '<i>none</i>'}</td><td>{verdict}</td>"
        f"<td class='number spare'>{len(curve.rows)}</td>"
    )


class _Strip:
    """Drawing of exponents and their intervals on one axis, which includes 0."""

    def __init__(self, powers: Sequence[RateFit]):
        exponents = [0.0, *(power.exponent for power in powers)]
        ends = [end for power in powers for end in interval_of(power) or ()]
        margin = max(max(exponents) - min(exponents), 0.5)  # a wider interval ends at the edge
        low = max(min([*exponents, *ends]), min(exponents) - margin)
        high = min(max([*exponents, *ends]), max(exponents) + margin)
        decade = 10.0 ** math.floor(math.log10((high - low or 1.0) / 4))
        self._step = next(step * decade for step in (1, 2, 5, 10) if step * decade >= (high - low or 1.0) / 4.0001)
        self._first, self._last = math.floor(low / self._step), max(math.ceil(high / self._step), 1)

    def axis(self) -> str:
        """Return the axis, for the head of the column."""
        ticks = [number * self._step for number in range(self._first, self._last + 1)]
        texts = "".join(f'<text x="{self._x(tick)}" y="12">{signed_text(tick, ".4g")}</text>' for tick in ticks)
        return self._svg(texts)

    def row(self, power: RateFit | None) -> str:
        """Return a dot at the exponent and a line over its interval, with the value ½ dotted."""
        middle, content = STRIP_HEIGHT / 2, ""
        if self._first * self._step < 0.5 < self._last * self._step:
            content = f'<path class=half d="M{self._x(0.5)},0V{STRIP_HEIGHT}"/>'
        if power is not None:
            interval = interval_of(power)
            line = f'<path d="M{self._x(interval[0])},{middle}H{self._x(interval[1])}"/>' if interval else ""
            content += f'{line}<circle cx="{self._x(power.exponent)}" cy="{middle}" r="3.6"/>'
        return self._svg(content)

    def _x(self, value: float) -> str:
        share = (value / self._step - self._first) / (self._last - self._first)
        place = STRIP_MARGIN + share * (STRIP_WIDTH - 2 * STRIP_MARGIN)
        return f"{min(max(place, 0.0), STRIP_WIDTH):.1f}"

    @staticmethod
    def _svg(content: str) -> str:
        return f'<svg class=strip viewBox="0 0 {STRIP_WIDTH} {STRIP_HEIGHT}" aria-hidden=true>{content}</svg>'
