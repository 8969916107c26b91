"""HTML of the pages, filled in by the script. User-defined names are escaped here, and the script sets them as text nodes."""

from importlib import resources

from depthrate.orchestrator.report.page import STYLE
from depthrate.orchestrator.report.text import escape
from depthrate.storage.query.sql_checks import VIEWS

_EXAMPLES = (
    "select sweep, status, count(*) as trials, avg(wall_s) as wall_s from trials group by all",
    "select * from results limit 20",
    "select trial_id, max(step) as step, arg_max(loss, step) as loss from live group by all",
)
_STATE_AND_CURVES = (
    '<section id="state"><div id=summary></div></section><section id="curves"><h2>Curves</h2><p class=controls id=of></p>'
    "<div class=plot id=lines></div><p class=note id=lines-note></p></section>"
)


def index_page(store: str) -> str:
    """Return the page of all sweeps."""
    return _page("index", "", "depthrate", f"<p class=meta>{escape(store)}</p>", "<div id=sweeps></div>")


def sweep_page(sweep: str) -> str:
    """Return the page of a sweep."""
    body = (
        f"{_STATE_AND_CURVES}"
        '<section id="trials"><h2>Trials</h2><p class=controls><input id=filter type=search autocomplete=off '
        'placeholder="filter: ok depth>=5 nc1<0.1" aria-label="Filter the trials"> <span class=note id=shown></span></p>'
        "<div id=table></div></section>"
        '<section id="figures"><h2>Figures</h2><p class=note id=figures-note>Figures are rendered when they come into view.</p>'
        "<div class=figures id=plots></div></section>"
    )
    links = '<p class=meta><a href="../../">all sweeps</a> <a href="report">Full report</a></p>'
    return _page("sweep", "../../", sweep, links, body, has_plots=True)


def trial_page(sweep: str, trial_id: str) -> str:
    """Return the page of a trial."""
    body = (
        f"{_STATE_AND_CURVES}"
        '<section id="log"><h2>Attempts and their logs</h2><pre id=text>…</pre></section>'
        '<section id="values"><h2>Final metrics</h2><div id=numbers></div><h2>Parameters</h2><div id=params></div></section>'
    )
    links = f'<p class=meta>a trial of <a href="../">{escape(sweep)}</a></p>'
    return _page("trial", "../../../", trial_id, links, body, has_plots=True)


def sql_page(store: str, timeout_s: float, max_rows: int) -> str:
    """Return the page with the input box for SQL."""
    views = "".join(f"<dt><code>{escape(name)}</code></dt><dd>{escape(row)}</dd>" for name, row in VIEWS.items())
    examples = "".join(f"<button type=button class=example>{escape(text)}</button>" for text in _EXAMPLES)
    body = (
        f"<form id=form><textarea id=query rows=5 spellcheck=false aria-label=SQL>{escape(_EXAMPLES[0])}</textarea>"
        "<p class=controls><button type=submit>Run</button> <label>of sweep <select id=of>"
        "<option value=''>all</option></select></label> "
        f"<span class=note>One SELECT over the views; at most {timeout_s:g} s and {max_rows} rows; Ctrl-Enter runs it.</span>"
        "</p></form><p class=note id=result-note></p><div id=table></div>"
        f"<details open><summary>Views</summary><dl>{views}</dl>"
        f"<p class=examples>{examples}</p></details>"
    )
    links = f'<p class=meta><a href="./">all sweeps</a> of {escape(store)}</p>'
    return _page("sql", "", "SQL", links, body)


def missing_page(message: str, root: str) -> str:
    """Return the page of an unknown address."""
    return _page(
        "none",
        root,
        "Not found",
        f'<p class=meta><a href="{root or "./"}">all sweeps</a></p>',
        f"<p>{escape(message)}</p>",
    )


def script() -> str:
    """Return the pages' script."""
    return (resources.files(__package__) / "page.js").read_text(encoding="utf-8")


def style() -> str:
    """Return the style sheet, which combines the report's and the pages' rules."""
    return STYLE + (resources.files(__package__) / "page.css").read_text(encoding="utf-8")


def _page(kind: str, root: str, title: str, links: str, body: str, *, has_plots: bool = False) -> str:
    library = f'<script src="{root}plotly.js" defer></script>' if has_plots else ""
    sql = "" if kind == "sql" else f'<a class=sql href="{root}sql">SQL</a>'
    shown = "depthrate" if title == "depthrate" else f"{escape(title)} · depthrate"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><link rel="icon" href="data:,"><title>{shown}</title>'
        f'<link rel="stylesheet" href="{root}page.css">{library}<script src="{root}page.js" defer></script></head>'
        f'<body data-page="{kind}" data-root="{root}"><main><header>{sql}<h1>{escape(title)}</h1>{links}</header>'
        f"<div class=warning id=errors role=alert hidden></div>{body}<noscript><p>This page needs JavaScript. In a "
        "terminal: <code>depthrate status</code>.</p></noscript></main></body></html>\n"
    )
