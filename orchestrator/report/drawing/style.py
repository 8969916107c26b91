"""Define colours, and the sizes and fonts of figures on the page and in files."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from depthrate.orchestrator.report.figure import NUM_KINDS, RAMP_STEPS

_RAMPS = (
    "#261470 #323282 #3d5186 #246e85 #0b8b85 #408e6e #759057 #988d32 #bb8a0e",
    "#8a5cf0 #7a77e6 #6a92d8 #5cb2ca #4fd3bc #7fd8a2 #b0dc88 #d3da69 #f6d84a",
)
_KINDS = (
    "#2f62b0 #c2551b #1f8a6d #a9508f #6f6f6f #8a7a12",
    "#79a9ee #f0915c #55c3a2 #dd8fc7 #a9a9a9 #cfc05a",
)
_OTHERS = ("#1b1c1f #5f6368 #b9b9b4 #ffffff #b3402a", "#eceae4 #a2a5aa #5a5f66 #15171a #f08a6c")
_NAMES = [
    *(f"ramp-{index}" for index in range(RAMP_STEPS)),
    *(f"kind-{index}" for index in range(NUM_KINDS)),
    *("ink", "muted", "axis", "page", "alarm"),
]
LIGHT, DARK_COLOURS = (
    dict(zip(_NAMES, " ".join(parts).split(), strict=True)) for parts in zip(_RAMPS, _KINDS, _OTHERS, strict=True)
)
"""Name of a colour -> hexadecimal colour on a light and on a dark background, as in the explorer."""
DIVERGING = ("#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b")
"""ColorBrewer's RdBu: blue below zero, red above."""
SEQUENTIAL = tuple(LIGHT[f"ramp-{index}"] for index in range(0, RAMP_STEPS, 2))
"""Colours of heat maps."""


class StyleName(StrEnum):
    """Medium of a figure."""

    screen = "screen"
    paper = "paper"


class PaperWidth(StrEnum):
    """Width of a figure in a paper."""

    column = "column"
    text = "text"
    page = "page"


WIDTHS = {PaperWidth.column: (3.25, 1), PaperWidth.text: (5.5, 2), PaperWidth.page: (6.75, 3)}
"""Widths in inches with the facets side by side: one of ICML's two columns, the text of NeurIPS and ICLR, and both columns."""
POINTS_PER_INCH = 72


@dataclass(frozen=True, kw_only=True)
class FigureStyle:
    """Common style of figures. Lengths are pixels of the page, which are points in files."""

    width: float = 360.0
    """Width of a facet on the page."""
    text: float = 11.0
    """Size of text."""
    scale: float = 1.0
    """Factor of lines and dots."""
    columns: int = 3
    """Maximum number of facets side by side in a file."""
    file_width: float | None = None
    """Width of a file. Default: as its facets need."""
    colours: dict[str, str] | None = None
    """Name of a colour -> hexadecimal colour. None: the page's variables."""
    is_paper: bool = False
    """Whether fonts have serifs, and names are words."""
    is_transparent: bool = False

    def colour(self, name: str) -> str:
        """Return the value of a colour, which is a name or already hexadecimal."""
        if name.startswith("#"):
            return name
        return f"var(--{name})" if self.colours is None else self.colours[name]

    def label(self, text: str) -> str:
        """Return a text as it is shown: in a paper, `weight_decay` is weight decay, and NC1 has a subscript."""
        if not self.is_paper:
            return text
        text = re.sub(r"(?<=[^\W_])_(?=[^\W_])", " ", text)
        return re.sub(r"\b([A-Z]{2,})(\d)(?=[A-Z]?\b)", lambda name: name[1] + chr(ord("₀") + int(name[2])), text)

    def facet_height(self, width: float) -> float:
        """Return the height of a facet of this width."""
        return min(max(0.73 * width, 16 * self.text), 24 * self.text)


PAGE = FigureStyle()
SCREEN = FigureStyle(colours=LIGHT)
DARK = FigureStyle(colours=DARK_COLOURS, is_transparent=True)
_PAPER = FigureStyle(text=7.5, scale=0.6, colours=LIGHT, is_paper=True)


def paper_style(width: PaperWidth) -> FigureStyle:
    """Return the style of figures that are printed at their actual size, in a serif font."""
    inches, columns = WIDTHS[width]
    return replace(_PAPER, file_width=inches * POINTS_PER_INCH, columns=columns)
