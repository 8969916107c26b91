"""Convert the page's labels for matplotlib: plotly's markup becomes mathematics, users' signs stay literal."""

from __future__ import annotations

import html
import re

from depthrate.orchestrator.report.drawing.style import FigureStyle

_RAISED = re.compile(r"<sup>([^<]*)</sup>")
_NUMBER = re.compile(r"[−+\d.]+")


def label(text: str, style: FigureStyle) -> str:
    """Convert a label. Exponents become superscripts. In a paper, `weight_decay` becomes weight decay."""
    parts = []
    for index, part in enumerate(_RAISED.split(text.replace("<br>", "\n"))):
        if index % 2:
            parts.append(_raised(html.unescape(part)))
        else:
            plain = html.unescape(part).replace("$", r"\$")
            parts.append(re.sub(r"(?<=[^\W_])_(?=[^\W_])", " ", plain) if style.is_paper else plain)
    return "".join(parts).strip()


def _raised(exponent: str) -> str:
    """Format a numeric exponent as mathematics, and another one as text."""
    if not _NUMBER.fullmatch(exponent):
        return f"^{exponent}".replace("$", r"\$")
    return f"$^{{{exponent.replace('−', '-')}}}$"


def plain(text: str) -> str:
    """Convert a label for data files: without markup, exponents after a caret."""
    return html.unescape(_RAISED.sub(r"^\1", text).replace("<br>", " ")).strip()
