"""Fits, curves and states in, one HTML file out: it opens from disk, without a network.

Everything a user named (sweep, parameters, errors) is text here: escaped for HTML, for JSON inside <script>, and once
more where plotly draws it, because plotly reads some HTML tags in labels.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from depthrate.orchestrator.analysis.preferred_model import curves_with_common_exponent
from depthrate.orchestrator.console.tables import counted
from depthrate.orchestrator.monitor.cost import SweepCost
from depthrate.orchestrator.report import figures
from depthrate.orchestrator.report.fit_tables import comparison_tables, fit_table, sensitivity_table, support_table
from depthrate.orchestrator.report.fit_text import common_sentence, fit_sentences
from depthrate.orchestrator.report.page_style import SCRIPT, STYLE
from depthrate.orchestrator.report.plot import Plot, figure_html
from depthrate.orchestrator.report.plotly_bundle import library, packed_library
from depthrate.orchestrator.report.report_data import TRIAL_STATE_ORDER, ReportData, SearchContent
from depthrate.orchestrator.report.section import ReportSection
from depthrate.orchestrator.report.tables import cost_tables, failure_table, search_table
from depthrate.orchestrator.report.text import duration_text, escape, number_text
from depthrate.orchestrator.report.trial_tables import left_out_table, trial_details, trial_table
from depthrate.sweeps.yaml_file import yaml_text
from depthrate.tasks.citations import titles_cited
from depthrate.tasks.metric import Metric


def render_report(data: ReportData) -> str:
    """Return the whole report as one HTML text; missing parts are said, never an error."""
    numbers = itertools.count(1)
    search = [] if data.search is None else [_section("Search", _search(data.search, numbers))]
    drawn = [(title, _figures(themes, data, numbers)) for title, themes in _sections()]
    sections = [_section(title, content) for title, content in drawn if content]
    body = [
        *sections[:1],
        _section("For and against", support_table(data.fits)),
        _section("Comparison", comparison_tables(data)),
        _section("State of the sweep", _of_each(data, _states)),
        *search,
        _section(
            "All fits", fit_table(data.fits) + sensitivity_table(data.fits) if data.fits or data.is_underway else ""
        ),
        _section("Left out and in doubt", left_out_table(data)) if data.fits else "",
        *sections[1:],
        _section("Cost", _of_each(data, lambda part: cost_tables(part.cost) if part.cost.devices else "")),
        _section("Trials", _trials(data) + trial_details(data.parts or (data,))),
        _section("How to reproduce", _of_each(data, _sweep) + _reproduce(data)),
    ]
    told = "\n".join(body)
    return _page(data.name, "\n".join([_head(data), _contents(told), _summary(data), told]))


def all_plots(data: ReportData) -> list[Plot]:
    """Return every figure of the report, in its order."""
    return [plot for theme in figures.THEMES for plot in theme.plots(data)]


def _of_each(data: ReportData, content: Callable[[ReportData], str]) -> str:
    """Return the content of a sweep, or of each that is overlaid, below its name."""
    told = [(part.name, content(part)) for part in data.parts or (data,)]
    if not data.parts:
        return told[0][1]
    return "".join(f"<h3>{escape(name)}</h3>{text}" for name, text in told if text)


def _trials(data: ReportData) -> str:
    """Return the tables of failures and trials; what two sweeps share stands in the first's."""
    if not data.parts:
        return failure_table(data) + trial_table(data)
    first, second = data.parts
    shared = frozenset(first.trials["trial_id"]) & frozenset(second.trials["trial_id"])
    told = f"<p>{len(shared)} of its trials are also in {escape(first.name)} and stand there.</p>" if shared else ""
    own = failure_table(second) + told + trial_table(second, without=shared)
    return f"<h3>{escape(first.name)}</h3>{failure_table(first)}{trial_table(first)}<h3>{escape(second.name)}</h3>{own}"


def _sections() -> list[tuple[str, list[ReportSection]]]:
    """Return the headings with the themes below them."""
    return [
        (title, list(themes)) for title, themes in itertools.groupby(figures.THEMES, key=lambda theme: theme.section)
    ]


def _head(data: ReportData) -> str:
    warning = ""
    if data.problems:
        items = "".join(f"<li>{escape(problem)}</li>" for problem in data.problems)
        warning = (
            f'<div class="warning" role="alert"><strong>Not everything could be read.</strong><ul>{items}</ul></div>'
        )
    return (
        f"<header><h1>{escape(data.name)}</h1><p class=meta>depthrate report, {escape(data.created_at)}</p></header>"
        f"{warning}"
    )


def _summary(data: ReportData) -> str:
    sentences = [f"<li>{sentence}</li>" for sentence in fit_sentences(data.fits)]
    for part in data.parts or (data,):
        of_sweep = f"{escape(part.name)}: " if data.parts else ""
        together = curves_with_common_exponent(part.fits)
        sentences += [f"<li>{of_sweep}{common_sentence(curve)}</li>" for curve in together]
    sentences += [sentence for each in data.drawn("step") if (sentence := _last_values(data, each))]
    if not data.fits:
        none = "No fits yet." if data.is_underway else "The sweep asks for no fit."
        sentences.insert(0, f"<li>{none}</li>")
    return f"<section class=summary><h2>Summary</h2><ul>{''.join(sentences)}</ul></section>"


def _last_values(data: ReportData, each: Metric) -> str:
    """Say where a measurement on a linear axis ended; empty where there is none."""
    values = _finite_values(data.results, each.name)
    if each.axis == "log" or not values.size:
        return ""
    numbers = f"mean {values.mean():.3f}, lowest {values.min():.3f} of {counted(values.size, 'trial')}"
    return f"<li>{escape(each.label)} at the last step: {numbers}.</li>"


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
        median, longest = duration_text(float(np.median(wall_s))), duration_text(float(wall_s.max()))
        hours = number_text(wall_s.sum() / 3600)
        sentence += f" {hours} trial-hours in all; one trial took {median} (median), {longest} at most."
    sentence += _held(data.cost)
    committed = sorted(str(time) for time in data.trials["committed_at"].dropna())
    if committed:
        sentence += f" First commit {escape(committed[0])}, last {escape(committed[-1])}."
    return f"<p class=pills>{pills}</p><p>{sentence}</p>"


def _held(cost: SweepCost) -> str:
    """Return in words which devices were held for how long; nothing where nothing was."""
    if not cost.devices:
        return ""
    held = (f"{number_text(hours.held)} on {escape(kind)}" for kind, hours in sorted(cost.devices.items()))
    return f" Hours that jobs held a device: {', '.join(held)}.{'' if 'cuda' in cost.devices else ' No GPU-hours.'}"


def _figures(themes: list[ReportSection], data: ReportData, numbers: Iterator[int]) -> str:
    plots = [plot for theme in themes for plot in theme.plots(data)]
    tables = "".join(theme.tables(data) for theme in themes)
    if not plots:
        return tables or "".join(f"<p>{theme.empty}</p>" for theme in themes if theme.empty and data.is_underway)
    lead = " ".join(filter(None, (theme.lead(data) for theme in themes)))
    titles = titles_cited(lead)
    lead += f" ({escape(titles)})" if titles else ""
    drawn = "\n".join(figure_html(plot, next(numbers)) for plot in plots)
    return f'{tables}<div class="figures">{drawn}</div><p class=note>{lead}</p>'


def _search(search: SearchContent, numbers: Iterator[int]) -> str:
    figures = "\n".join(figure_html(plot, next(numbers)) for plot in search.plots)
    return f'<p>{escape(search.sentence)}.</p>{search_table(search)}<div class="figures">{figures}</div>'


def _sweep(data: ReportData) -> str:
    spec = yaml_text(data.spec)
    return f"<h4>Sweep</h4><pre>{escape(spec)}</pre>"


def _reproduce(data: ReportData) -> str:
    facts = {"store": data.store, "git": data.git or "not in a git checkout", **data.versions}
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    commands = escape("\n".join(data.commands))
    return f"<h3>Commands</h3><pre>{commands}</pre><h3>Versions</h3><dl>{items}</dl>"


def _finite_values(frame: pd.DataFrame, column: str) -> npt.NDArray[np.float64]:
    if column not in frame:
        return np.array([])
    values = np.asarray(pd.to_numeric(frame[column], errors="coerce"), dtype=np.float64)
    return values[np.isfinite(values)]


def _section(title: str, content: str) -> str:
    if not content:
        return ""
    return f'<section id="{_anchor(title)}"><h2>{title}</h2>\n{content}</section>'


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _contents(body: str) -> str:
    """Return the list of the page's sections, each a link to it."""
    found = re.findall(r'<section id="([a-z0-9-]+)"><h2>(.*?)</h2>', body)
    links = "".join(f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title in found)
    return f'<nav class="contents" aria-label="Contents"><ul>{links}</ul></nav>' if found else ""


def page_policy() -> str:
    """Return what the page may do: run its two scripts, and nothing else: no network, and no script of a user's text."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (library(), SCRIPT)
    )
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"


def _page(name: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{page_policy()}"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)} · depthrate</title><style>{STYLE}</style></head><body><main>{body}</main>"
        f"<noscript><p>The figures need JavaScript.</p></noscript>"
        f'<script type="application/gzip" id="library">{packed_library()}</script><script>{SCRIPT}</script></body></html>\n'
    )
