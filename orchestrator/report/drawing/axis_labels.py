"""Texts of the page as matplotlib draws them: plotly's markup becomes mathematics, users' signs stay signs."""

from __future__ import annotations

import html
import re

from depthrate.orchestrator.report.drawing.style import FigureStyle

_RAISED = re.compile(r"<sup>([^<]*)</sup>")
_NUMBER = re.compile(r"[−+\d.]+")


def label(text: str, style: FigureStyle) -> str:
    """Return a text with its exponents raised; in a paper names are words: `weight_decay` is weight decay."""
    parts = []
    for index, part in enumerate(_RAISED.split(text.replace("<br>", "\n"))):
        if index % 2:
            parts.append(_raised(html.unescape(part)))
        else:
            plain = html.unescape(part).replace("$", r"\$")
            parts.append(re.sub(r"(?<=[^\W_])_(?=[^\W_])", " ", plain) if style.is_paper else plain)
    return "".join(parts).strip()


def _raised(exponent: str) -> str:
    """Return an exponent as mathematics, where it is a number as all of ours are."""
    if not _NUMBER.fullmatch(exponent):
        return f"^{exponent}".replace("$", r"\$")
    return f"$^{{{exponent.replace('−', '-')}}}$"


def plain(text: str) -> str:
    """Return a text as a file of data has it: without markup, exponents behind a caret."""
    return html.unescape(_RAISED.sub(r"^\1", text).replace("<br>", " ")).strip()
