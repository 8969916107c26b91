"""Mathematics in an SVG as words: matplotlib writes it letter by letter, which nobody can search or edit."""

from __future__ import annotations

import html
import itertools
import re

_TEXT = re.compile(r"<text>\s*((?:<tspan [^>]*>[^<]*</tspan>\s*)+)</text>")
_SPAN = re.compile(r'<tspan x="([^"]*)" y="([^"]*)" style="([^"]*)">([^<]*)</tspan>')


_FAMILY = re.compile(r"font-family: ('[^',;\"]*')")


def with_words(svg: str) -> str:
    """Return an SVG whose letters that stand beside each other in one style are one text, from left to right."""
    return _TEXT.sub(lambda found: f"<text>{_words(found[1], svg)}</text>", svg)


def _words(spans: str, svg: str) -> str:
    letters = [
        (float(x), float(y), style, letter)
        for places, y, style, text in _SPAN.findall(spans)
        for x, letter in zip(places.split(), html.unescape(text), strict=True)
    ]
    letters.sort(key=lambda letter: letter[0])
    runs, at = [], None
    for (y, style), run in itertools.groupby(letters, key=lambda letter: letter[1:3]):
        together = list(run)
        text = html.escape("".join(letter for *_, letter in together).replace("\u00a0", " "), quote=False)
        # only the first run has a place: whoever lacks the font sees the others follow it, not lie upon it
        place = f'x="{together[0][0]:g}" y="{y:g}"' if at is None else f'dy="{y - at:g}"'
        runs.append(f'<tspan {place} style="{_with_fallbacks(style, svg)}" xml:space="preserve">{text}</tspan>')
        at = y
    return "".join(runs)


def _with_fallbacks(style: str, svg: str) -> str:
    """Return a letter's style with all the fonts that other texts of the SVG name after its own."""
    family = _FAMILY.search(style)
    known = family and re.search(f'font-family: ({re.escape(family[1])}, [^;"]*)', svg)
    return _FAMILY.sub(lambda _: f"font-family: {known[1]}", style) if known else style
