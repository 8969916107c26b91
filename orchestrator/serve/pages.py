"""HTML of the pages, which the scripts fill in. User-defined names are escaped here, and the scripts set them as text nodes."""

from importlib import resources

from depthrate.orchestrator.explorer.page import as_html, named_body, with_common

_FOLDER = resources.files(__package__)
HOME_SCRIPT = with_common((_FOLDER / "home.js").read_text(encoding="utf-8"))
_HOME = (_FOLDER / "home.html").read_text(encoding="utf-8")


def home_page(store: str) -> str:
    """Return the page of all sweeps."""
    return _page("depthrate", _HOME.replace("{store}", as_html(store)), "", "home.js")


def sweep_page(sweep: str) -> str:
    """Return the page of a sweep."""
    return _page(sweep, named_body(sweep).replace(" hidden>depthrate", ">depthrate", 1), "../../", "explorer.js")


def trial_page(sweep: str, trial_id: str) -> str:
    """Return the page of a trial."""
    body = named_body(trial_id).replace('href="../../" hidden>depthrate', f'href="../">{as_html(sweep)}', 1)
    return _page(trial_id, body, "../../../", "explorer.js", trial_id)


def missing_page(message: str, root: str) -> str:
    """Return the page of an unknown address, which is loaded again every five seconds: a sweep may be launched any time."""
    body = f'<main id="home"><h1>Not found</h1><p>{as_html(message)}</p><p><a href="{root or "./"}">all sweeps</a></p></main>'
    return _page("Not found", body, root, "", head='<meta http-equiv="refresh" content="5">')


def _page(title: str, body: str, root: str, script: str, trial: str = "", head: str = "") -> str:
    data = f' data-trial="{as_html(trial)}"' if trial else ""
    tag = f'<script type="module" src="{root}{script}"></script>' if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><title>{as_html(title)} · depthrate</title>{head}'
        f'<link rel="stylesheet" href="{root}explorer.css">{tag}</head><body{data}>{body}</body></html>\n'
    )
