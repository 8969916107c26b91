"""Render the report as one HTML file that opens from disk, without a network.

Users' text (sweeps, parameters, errors) is escaped for HTML. The page has no scripts.
"""

import itertools
import re
from collections.abc import Iterator
from importlib import resources

import numpy as np
import numpy.typing as npt
import pandas as pd

from depthrate.orchestrator.analysis.preferred_model import curves_with_common_exponent
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.report import figures
from depthrate.orchestrator.report.drawing.render import figure_html
from depthrate.orchestrator.report.figure import Figure
from depthrate.orchestrator.report.figures.search import search_plots
from depthrate.orchestrator.report.fit_tables import fit_table, sensitivity_table, support_table
from depthrate.orchestrator.report.fit_text import common_sentence, fit_sentences, unconverged_sentence
from depthrate.orchestrator.report.report_data import TRIAL_STATE_ORDER, ReportData, ReportSection
from depthrate.orchestrator.report.text import duration_text, escape, number_text
from depthrate.orchestrator.report.trial_tables import (
    cost_tables,
    failure_table,
    left_out_table,
    search_table,
    trial_table,
)
from depthrate.sweeps.yaml_file import yaml_text
from depthrate.tasks.citations import titles_cited
from depthrate.tasks.metric import Metric

_FOLDER = resources.files(__package__)
STYLE = (_FOLDER / "page.css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The page's content security policy: no script and no network."""


def render_report(data: ReportData) -> str:
    """Render the whole report as HTML. Missing parts are reported on the page and never raise an exception."""
    numbers = itertools.count(1)
    headings = itertools.groupby(figures.SECTIONS, key=lambda section: section.section)
    search = []
    if (view := data.search) is not None:
        tables = f"<p>{escape(view.summary())}.</p>{search_table(*view.table())}"
        search.append(_section("Search", tables + _figure_grid(search_plots(view), numbers)))
    sections = [_section(title, _figures(list(group), data, numbers)) for title, group in headings]
    sections = list(filter(None, sections))
    body = [
        *sections[:1],
        _section("Evidence", support_table(data.fits)),
        _section("Trial states", _states(data)),
        *search,
        _section(
            "All fits", fit_table(data.fits) + sensitivity_table(data.fits) if data.fits or data.is_underway else ""
        ),
        _section("Excluded and unconverged trials", left_out_table(data)) if data.fits else "",
        *sections[1:],
        _section("Cost", cost_tables(data.cost) if data.cost.devices else ""),
        _section("Trials", failure_table(data) + trial_table(data)),
        _section("Reproduction", _reproduce(data)),
    ]
    sections_html = "\n".join(body)
    return _page(data.name, "\n".join([_head(data), _contents(sections_html), _summary(data), sections_html]))


def all_plots(data: ReportData) -> list[Figure]:
    """Return all figures of the report, in order."""
    return [plot for section in figures.SECTIONS for plot in section.plots(data)]


def _head(data: ReportData) -> str:
    warning = ""
    if data.problems:
        items = "".join(f"<li>{escape(problem)}</li>" for problem in data.problems)
        warning = (
            f'<div class="warning" role="alert"><strong>Some data could not be read:</strong><ul>{items}</ul></div>'
        )
    return (
        f"<header><h1>{escape(data.name)}</h1><p class=meta>depthrate report, {escape(data.created_at)}</p></header>"
        f"{warning}"
    )


def _summary(data: ReportData) -> str:
    sentences = [f"<li>{sentence}</li>" for sentence in fit_sentences(data.fits)]
    sentences += [f"<li>{doubt}</li>"] if (doubt := unconverged_sentence(data.fits)) else []
    sentences += [f"<li>{common_sentence(curve)}</li>" for curve in curves_with_common_exponent(data.fits)]
    sentences += [sentence for metric in data.panel_metrics("step") if (sentence := _last_values(data, metric))]
    if not data.fits:
        missing = "No fits yet." if data.is_underway else "The sweep requests no fits."
        sentences.insert(0, f"<li>{missing}</li>")
    return f"<section class=summary><h2>Summary</h2><ul>{''.join(sentences)}</ul></section>"


def _last_values(data: ReportData, metric: Metric) -> str:
    """Describe the final values of a metric on a linear axis. Empty without values."""
    values = _finite_values(data.results, metric.name)
    if metric.axis == "log" or not values.size:
        return ""
    numbers = f"mean {values.mean():.3f}, minimum {values.min():.3f} of {counted(values.size, 'trial')}"
    return f"<li>{escape(metric.label)} at the last step: {numbers}.</li>"


def _states(data: ReportData) -> str:
    if data.trials.empty:
        return "<p>No trials are planned.</p>"
    counts = data.trials["state"].value_counts()
    pills = "".join(
        f'<span class="pill {state}"><b>{counts[state]}</b> {state}</span>'
        for state in reversed(TRIAL_STATE_ORDER)
        if state in counts
    )
    wall_s = _finite_values(data.trials, "wall_s")
    sentence = f"{counted(len(data.trials), 'trial')} planned."
    if wall_s.size:
        median, maximum = duration_text(float(np.median(wall_s))), duration_text(float(wall_s.max()))
        sentence += (
            f" Total: {number_text(wall_s.sum() / 3600)} trial-hours. Per trial: median {median}, maximum {maximum}."
        )
    if devices := data.cost.devices:
        hours = ", ".join(f"{number_text(hours.held)} on {escape(kind)}" for kind, hours in sorted(devices.items()))
        sentence += f" Allocated device hours: {hours}.{'' if 'cuda' in devices else ' No GPU-hours.'}"
    committed = sorted(str(time) for time in data.trials["committed_at"].dropna())
    if committed:
        sentence += f" First commit {escape(committed[0])}, last {escape(committed[-1])}."
    return f"<p class=pills>{pills}</p><p>{sentence}</p>"


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
    return f'<div class="figures">{figures_html}</div>'


def _reproduce(data: ReportData) -> str:
    facts = {"store": data.store, "git": data.git or "no git checkout", **data.versions}
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    commands = escape("\n".join(data.commands))
    sweep = f"<h4>Sweep</h4><pre>{escape(yaml_text(data.spec))}</pre>"
    return f"{sweep}<h3>Commands</h3><pre>{commands}</pre><h3>Versions</h3><dl>{items}</dl>"


def _finite_values(frame: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    if column not in frame:
        return np.array([])
    values = np.asarray(pd.to_numeric(frame[column], errors="coerce"), dtype=np.float64)
    return values[np.isfinite(values)]


def _section(title: str, content: str) -> str:
    if not content:
        return ""
    anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    return f'<section id="{anchor}"><h2>{title}</h2>\n{content}</section>'


def _contents(body: str) -> str:
    """Return links to the page's sections."""
    sections = re.findall(r'<section id="([a-z0-9-]+)"><h2>(.*?)</h2>', body)
    links = "".join(f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title in sections)
    return f'<nav class="contents" aria-label="Contents"><ul>{links}</ul></nav>' if sections else ""


def _page(name: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{POLICY}"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)} · depthrate</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )
