"""Render the report as one HTML file without scripts, which opens from disk and prints.

The first screen has the rates. All other sections are folded. Users' text (sweeps, parameters, errors) is escaped.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from depthrate.orchestrator.console.errors import next_call
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.explorer.page import PALETTE
from depthrate.orchestrator.monitor.cost import cost_lines
from depthrate.orchestrator.report import figures
from depthrate.orchestrator.report.curve_groups import unique, value_texts, varying_names
from depthrate.orchestrator.report.drawing.render import figure_html
from depthrate.orchestrator.report.figure import Figure
from depthrate.orchestrator.report.figures.metric_against_x import rate_plots
from depthrate.orchestrator.report.figures.search import search_plots
from depthrate.orchestrator.report.figures.surfaces import surface_figure
from depthrate.orchestrator.report.report_data import TRIAL_STATE_ORDER, ReportData, ReportSection
from depthrate.orchestrator.report.sheet_html import drawn_table, paragraphs, sheet_table
from depthrate.orchestrator.report.text import MAX_NAME, duration_text, escape, is_number, markup, number_text
from depthrate.orchestrator.report.trial_tables import (
    failure_table,
    left_out_table,
    search_table,
    trial_table,
)
from depthrate.orchestrator.sheet.curve_sheets import models_sheet, rates_sheet, same_fits
from depthrate.orchestrator.sheet.fit_sheet import FitSheet
from depthrate.orchestrator.sheet.names import shorten, value_text
from depthrate.orchestrator.sheet.value_sheets import surface_sheet
from depthrate.sweeps.yaml_file import yaml_text
from depthrate.tasks.citations import titles_cited
from depthrate.tasks.metric import Metric

STYLE = PALETTE + (resources.files(__package__) / "page.css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy of the page, which has no script and loads nothing."""
MAX_SENTENCES = 3
"""Maximum number of fits that the first screen describes in words."""
OPEN_SECTIONS = ("Requested figures", "Law over layers")
"""Headings of sections that are not folded."""
OPEN_FIGURES = 2
"""Number of figures of fits in several variables that are not folded."""
RATES = ("exponent", "r2", "trials", "preferred", "verdict")
EVIDENCE = ("metric", "over", "others", "moved", "above", "range", "bound", "bound_ratio", "target")
"""Columns of the rates and of the evidence for them, next to those that name the groups."""
MAX_TITLES = 3
"""Maximum number of figures named in the heading of a folded section."""


def render_report(data: ReportData) -> str:
    """Render the whole report as HTML. Missing parts are reported on the page and never raise an exception."""
    numbers = itertools.count(1)
    rates, *others = figures.SECTIONS
    sheet = rates_sheet(data.fits)
    table = sheet_table(sheet.pick((*data.group_names, *EVIDENCE)))
    evidence = (
        paragraphs(sheet.sentences[MAX_SENTENCES:]) + table + paragraphs([*sheet.column_notes, *sheet.details], "note")
    )
    sections = [_rates(data, rates, numbers), _surfaces(data, numbers), _search(data, numbers)]
    folded = [
        _folded("Evidence", "for and against each fit", evidence),
        _folded("All fits", "all models of each group", _all_fits(data)) if data.fits or data.is_underway else "",
        _folded("Excluded and unconverged trials", "with reasons", left_out_table(data)) if data.fits else "",
    ]
    for title, group in itertools.groupby(others, key=lambda section: section.section):
        parts = list(group)
        content = _figures(parts, data, numbers)
        if content and title in OPEN_SECTIONS:
            sections.append(f"<section><h2>{title}</h2>{content}</section>")
        else:
            folded.append(_folded(title, _titles_text([plot for part in parts for plot in part.plots(data)]), content))
    folded += [
        _folded("Trials", f"states, hours, failures and values of {counted(len(data.trials), 'trial')}", _trials(data)),
        _folded("Metrics", "definitions", _definitions(data)),
        _folded("Reproduction", "sweep file, commands, versions", _reproduction(data)),
    ]
    explorer = escape(shorten(next_call("report", data.name, data.store, "--interactive"), MAX_NAME))
    note = f"<p class=note>To filter and zoom: <code>{explorer}</code>, or <code>depthrate serve</code>.</p>"
    return _page(data.name, "\n".join([_head(data), _summary(data, sheet), *sections, note, *folded]))


def all_plots(data: ReportData) -> list[Figure]:
    """Return all figures of the report, in order."""
    rates, *others = figures.SECTIONS
    surfaces = [plot for surface in data.surfaces if (plot := surface_figure(surface)) is not None]
    return [*rates.plots(data), *surfaces, *(plot for section in others for plot in section.plots(data))]


def _head(data: ReportData) -> str:
    """Return the name, the trials and their parameters, and a warning about unreadable data."""
    names = sorted(varying_names(data.trials, data.parameters), key=lambda name: name == "seed")
    ranges = ", ".join(_range_text(name, data.trials[name]) for name in names)
    states = _states(data, TRIAL_STATE_ORDER[:-1])
    sentences = [f"Report of {counted(len(data.trials), 'trial')}{f': {ranges}' if ranges else ''}."]
    sentences += [f"{', '.join(states)}."] if states else []
    head = f"<h1>{escape(shorten(data.name, MAX_NAME))}</h1>"
    head += f"<p class=quiet>{escape(' '.join([*sentences, data.created_at]))}</p>"
    if data.problems:
        items = "".join(f"<li>{escape(shorten(problem, MAX_NAME))}</li>" for problem in data.problems)
        head += f'<div class="warning" role="alert"><strong>Some data could not be read:</strong><ul>{items}</ul></div>'
    return f"<header>{head}</header>"


def _states(data: ReportData, states: Iterable[str]) -> list[str]:
    """Count the trials in some states, as in `3 failed`, without 0."""
    counts = Counter(data.trials["state"] if len(data.trials) else ())
    return [f"{counts[state]} {state}" for state in states if counts[state]]


def _range_text(name: str, column: "pd.Series[Any]") -> str:
    """Describe a parameter's values, as in `depth 2 to 21`."""
    name, values = "seeds" if name == "seed" else shorten(name), column.tolist()
    if all(map(is_number, values)):
        return f"{name} {value_text(min(values))} to {value_text(max(values))}"
    texts = unique(value_texts(column))
    return f"{name} {' or '.join(map(shorten, texts))}" if len(texts) < 4 else f"{len(texts)} values of {name}"


def _summary(data: ReportData, sheet: FitSheet) -> str:
    """Return the first sentences about fit requests, and the remarks about all."""
    sentences = [*sheet.sentences[:MAX_SENTENCES]]
    if (further := len(sheet.sentences) - MAX_SENTENCES) > 0:
        sentences.append(f"{further} further fits are in the table, and in words below Evidence.")
    if not (data.fits or data.surfaces or data.layer_laws):
        sentences = ["No fits yet." if data.is_underway else "The sweep requests no fits."]
    last = [text for metric in data.panel_metrics("step") if (text := _last_values(data, metric))]
    content = paragraphs([*sentences, *sheet.remarks]) + "".join(f"<p>{text}</p>" for text in last)
    return f"<section class=summary>{content}</section>"


def _last_values(data: ReportData, metric: Metric) -> str:
    """Describe the final values of a metric on a linear axis. Empty without values."""
    values = _finite_values(data.results, metric.name)
    if metric.axis == "log" or not values.size:
        return ""
    numbers = f"mean {values.mean():.3f}, minimum {values.min():.3f} of {counted(values.size, 'trial')}"
    return f"{escape(metric.label)} at the last step: {numbers}."


def _rates(data: ReportData, section: ReportSection, numbers: Iterator[int]) -> str:
    """Return a table and figures per metric with groups, and one table for all metrics without groups."""
    requests = same_fits(data.fits)
    alone = [curve for curves in requests for curve in curves if not curve.by]
    tables = [*([alone] if alone else []), *(curves for curves in requests if curves[0].by)]
    parts = []
    for curves in tables:
        plots = rate_plots(curves)
        panels, exponents = (plots[:1], plots[1:]) if curves[0].by else (plots, [])
        colours = {key.name: key.colour for plot in panels for key in plot.keys}
        beside = _figure_grid(exponents, numbers)
        names = curves[0].by or ("metric", "over")
        table = drawn_table(rates_sheet(curves).pick((*names, *RATES)), colours)
        parts.append(f"<div class=pair>{table}{beside}</div>{_figure_grid(panels, numbers)}")
    lead = f"<p class=note>{section.lead(data)}</p>" if parts else ""
    return f"<section>{''.join(parts)}{lead}</section>" if parts else ""


def _surfaces(data: ReportData, numbers: Iterator[int]) -> str:
    """Return the fits in several variables, with the first figures open."""
    parts = []
    for place, surface in enumerate(data.surfaces):
        sheet, figure = surface_sheet(surface), surface_figure(surface)
        content = sheet_table(sheet) + paragraphs(sheet.remarks, "note")
        html = "" if figure is None else figure_html(figure, next(numbers))
        if html and place >= OPEN_FIGURES:
            html = f"<details><summary>Figure</summary>{html}</details>"
        parts.append(f"<h3>{markup(sheet.title)}</h3>{content}{html}")
    return f"<section><h2>Several variables</h2>{''.join(parts)}</section>" if parts else ""


def _all_fits(data: ReportData) -> str:
    """Return all models of all curves."""
    sheet = models_sheet(data.fits)
    return paragraphs(sheet.notes, "note") + sheet_table(sheet) if sheet.rows else "<p>No fits yet.</p>"


def _search(data: ReportData, numbers: Iterator[int]) -> str:
    if (view := data.search) is None:
        return ""
    content = (
        f"<p>{escape(view.summary())}.</p>{search_table(*view.table())}{_figure_grid(search_plots(view), numbers)}"
    )
    return f"<section><h2>Search</h2>{content}</section>"


def _figures(sections: list[ReportSection], data: ReportData, numbers: Iterator[int]) -> str:
    plots = [plot for section in sections for plot in section.plots(data)]
    tables = "".join(section.tables(data) for section in sections)
    if not plots:
        return tables or "".join(
            f"<p>{section.empty}</p>" for section in sections if section.empty and data.is_underway
        )
    lead = " ".join(filter(None, (section.lead(data) for section in sections)))
    titles = titles_cited(lead)
    lead += f" ({escape(titles)})" if titles else ""
    return f"{tables}{_figure_grid(plots, numbers)}<p class=note>{lead}</p>"


def _figure_grid(plots: list[Figure], numbers: Iterator[int]) -> str:
    figures_html = "\n".join(figure_html(plot, next(numbers)) for plot in plots)
    return f'<div class="figures">{figures_html}</div>' if plots else ""


def _titles_text(plots: Sequence[Figure]) -> str:
    """Name the first figures of a section."""
    titles = [shorten(plot.title, 60) for plot in plots]
    more = len(titles) - MAX_TITLES
    return ", ".join(titles[:MAX_TITLES]) + (f" and {counted(more, 'other figure')}" if more > 0 else "")


def _trials(data: ReportData) -> str:
    """Return the trials' states, times, costs, failures and values."""
    if data.trials.empty:
        return "<p>No trials are planned.</p>"
    wall_s = _finite_values(data.trials, "wall_s")
    sentences = [f"{', '.join(_states(data, reversed(TRIAL_STATE_ORDER)))}."]
    if wall_s.size:
        median, maximum = duration_text(float(np.median(wall_s))), duration_text(float(wall_s.max()))
        hours = number_text(wall_s.sum() / 3600)
        sentences.append(f"Total: {hours} trial-hours. Per trial: median {median}, maximum {maximum}.")
    if committed := sorted(str(time) for time in data.trials["committed_at"].dropna()):
        sentences.append(f"First commit {committed[0]}, last {committed[-1]}.")
    states = f"<p>{escape(shorten(' '.join(sentences), MAX_NAME))}</p>"
    cost = "\n".join(cost_lines(shorten(data.name), data.cost))
    return f"{states}{f'<pre>{escape(cost)}</pre>' if cost else ''}{failure_table(data)}{trial_table(data)}"


def _definitions(data: ReportData) -> str:
    """Return the label, name and definition of each metric in the report."""
    measured = {*data.metrics, *data.curves, *data.lists}
    measured |= {name for content in data.figures if not content.rows.empty for name in content.request.measured}
    metrics = [metric for metric in data.measurements.values() if metric.name in measured and metric.doc]
    items = "".join(
        f"<dt>{escape(metric.label)}</dt><dd>{escape(f'{metric.name}: {metric.doc}')}</dd>" for metric in metrics
    )
    return f"<dl>{items}</dl>" if items else ""


def _reproduction(data: ReportData) -> str:
    facts = {"store": data.store, "git": data.git or "no git checkout", **data.versions}
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(shorten(value, MAX_NAME))}</dd>" for name, value in facts.items()
    )
    commands = escape("\n".join(data.commands))
    sweep = f"<h3>Sweep</h3><pre>{escape(yaml_text(data.spec))}</pre>"
    return f"{sweep}<h3>Commands</h3><pre>{commands}</pre><h3>Versions</h3><dl>{items}</dl>"


def _finite_values(frame: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    if column not in frame:
        return np.array([])
    values = np.asarray(pd.to_numeric(frame[column], errors="coerce"), dtype=np.float64)
    return values[np.isfinite(values)]


def _folded(title: str, inside: str, content: str) -> str:
    """Return a folded section, headed by its title and a few words about its content. Empty without content."""
    anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    summary = f"<summary><h2>{title}</h2> <span class=quiet>{escape(inside)}</span></summary>"
    return f'<details id="{anchor}">{summary}\n{content}</details>' if content else ""


def _page(name: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{POLICY}"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(shorten(name, MAX_NAME))} · depthrate</title>'
        f"<style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )
