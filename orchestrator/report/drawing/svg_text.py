"""Merge the letters of mathematics in an SVG, so that text can be searched and edited."""

from __future__ import annotations

import html
import itertools
import re

_TEXT = re.compile(r"<text>\s*((?:<tspan [^>]*>[^<]*</tspan>\s*)+)</text>")
_SPAN = re.compile(r'<tspan x="([^"]*)" y="([^"]*)" style="([^"]*)">([^<]*)</tspan>')


_FAMILY = re.compile(r"font-family: ('[^',;\"]*')")


def merge_letters(svg: str) -> str:
    """Merge adjacent letters of one style into one text, from left to right. matplotlib writes single letters."""
    return _TEXT.sub(lambda match: f"<text>{_merged_spans(match[1], svg)}</text>", svg)


def _merged_spans(spans: str, svg: str) -> str:
    letters = [
        (float(x), float(y), style, letter)
        for places, y, style, text in _SPAN.findall(spans)
        for x, letter in zip(places.split(), html.unescape(text), strict=True)
    ]
    letters.sort(key=lambda letter: letter[0])
    runs, at = [], None
    for (y, style), run in itertools.groupby(letters, key=lambda letter: letter[1:3]):
        run_letters = list(run)
        text = html.escape("".join(letter for *_, letter in run_letters).replace("\u00a0", " "), quote=False)
        # only the first run has a position, so that runs do not overlap in a viewer without the font
        place = f'x="{run_letters[0][0]:g}" y="{y:g}"' if at is None else f'dy="{y - at:g}"'
        runs.append(f'<tspan {place} style="{_with_fallbacks(style, svg)}" xml:space="preserve">{text}</tspan>')
        at = y
    return "".join(runs)


def _with_fallbacks(style: str, svg: str) -> str:
    """Add the fallback fonts that other texts of the SVG list after the same font."""
    family = _FAMILY.search(style)
    fonts = family and re.search(f'font-family: ({re.escape(family[1])}, [^;"]*)', svg)
    return _FAMILY.sub(lambda _: f"font-family: {fonts[1]}", style) if fonts else style
