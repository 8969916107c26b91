"""Make the explorer's page: one HTML file that opens from disk, without a network."""

import base64
import hashlib
import html
import json
import time
from importlib import resources


def _read(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


_COMMON, _EXPLORER, _WIDGET = (_read(name) for name in ("common.js", "explorer.js", "widget.js"))
PALETTE = _read("palette.css")
"""Colours, type and basic rules, which the report shares."""
STYLE, BODY = PALETTE + _read("explorer.css"), _read("explorer.html")
"""`BODY` is the content of the page's body, which the script fills in. It has no text of a user."""
SCRIPT = f"{_COMMON}{_EXPLORER}window.explorer = await explore(document);\n"
WIDGET = f"{_COMMON}{_EXPLORER}const STYLE = {json.dumps(STYLE)}, BODY = {json.dumps(BODY)};\n{_WIDGET}"
"""Module of a notebook's widget."""


def with_common(script: str) -> str:
    """Return a script of a page with what it shares with the explorer."""
    return _COMMON + script


def page_policy() -> str:
    """Return the page's content security policy: its one script may run, but no network or other script."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:"


def named_body(name: str) -> str:
    """Return `BODY` under a name, which is there before the data."""
    return BODY.replace('<h1 id="name">', f'<h1 id="name">{as_html(name)}', 1)


def as_html(text: str) -> str:
    """Return a text as HTML."""
    return html.escape(text.encode("utf-8", "replace").decode())


def explorer_page(name: str, data: bytes) -> str:
    """Return the page of a sweep, with the time at which it is made.

    Args:
        data: The sweep's data, as `SweepData.packed` returns it.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{page_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{as_html(name)} · depthrate</title><style>{STYLE}</style></head>"
        f'<body data-made="{time.strftime("%Y-%m-%d %H:%M")}">{named_body(name)}'
        f'<script type="text/plain" id="data">{base64.b64encode(data).decode()}</script>'
        f'<script type="module">{SCRIPT}</script></body></html>\n'
    )
