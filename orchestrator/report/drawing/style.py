"""Define the styles of figures in files, for screens and for papers with one or two columns."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_SHARED: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": True,
    "axes.formatter.useoffset": False,
    "legend.frameon": False,
    "svg.fonttype": "none",  # keeps text as text
    "svg.hashsalt": "depthrate",  # makes the same figure give the same bytes
    "pdf.fonttype": 42,  # embed whole TrueType fonts, as publishers require
}
_SCREEN: dict[Any, Any] = {"font.size": 9.0, "legend.fontsize": 8.0, "axes.grid": True, "grid.color": "#e8e8e8"}
_DARK: dict[Any, Any] = {"savefig.transparent": True, "grid.color": "#333333"}
_DARK |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#d6d6d6")
_PAPER: dict[Any, Any] = {
    # STIX comes with matplotlib and looks like Times. The other fonts are fallbacks for SVG viewers without STIX.
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "STIX Two Text", "Times New Roman", "Times", "Liberation Serif"],
    "mathtext.fontset": "stix",
    "font.size": 8.0,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 7.0,
    "legend.handlelength": 1.6,
    "legend.borderaxespad": 0.2,
    "legend.labelspacing": 0.3,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "figure.constrained_layout.h_pad": 0.02,
    "figure.constrained_layout.w_pad": 0.02,
}


class StyleName(StrEnum):
    """Medium of a figure."""

    screen = "screen"
    paper = "paper"


class PaperWidth(StrEnum):
    """Width of a figure in a paper."""

    column = "column"
    text = "text"


WIDTHS_IN = {PaperWidth.column: 3.25, PaperWidth.text: 5.5}
"""Widths in inches: one of ICML's two columns, and the text of NeurIPS and ICLR."""


@dataclass(frozen=True, kw_only=True)
class FigureStyle:
    """Common style of figures."""

    size_in: tuple[float, float]
    settings: dict[Any, Any] = field(hash=False)
    """rcParams of matplotlib."""
    points_per_pixel: float
    """Scale factor of lines and markers, whose sizes the page gives in pixels."""
    is_dark: bool = False
    is_paper: bool = False
    """Whether names are words and the legend is inside the axes if it fits."""


SCREEN = FigureStyle(size_in=(4.6, 3.4), settings=_SHARED | _SCREEN, points_per_pixel=0.75)
DARK = FigureStyle(size_in=(4.6, 3.4), settings=_SHARED | _SCREEN | _DARK, points_per_pixel=0.75, is_dark=True)
"""Style for dark backgrounds. The lightness of the traces' colours is inverted too."""


def paper_style(width: PaperWidth) -> FigureStyle:
    """Return the style of figures that are printed at their actual size: 8 pt, serif, no grid."""
    width_in = WIDTHS_IN[width]
    height_in = width_in * (0.74 if width is PaperWidth.column else 0.58)
    return FigureStyle(size_in=(width_in, height_in), settings=_SHARED | _PAPER, points_per_pixel=0.55, is_paper=True)
