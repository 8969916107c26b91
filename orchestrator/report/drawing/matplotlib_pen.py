"""Draw with matplotlib, for PDF and PNG files."""

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from depthrate.orchestrator.report.drawing.style import POINTS_PER_INCH, FigureStyle
from depthrate.orchestrator.report.drawing.svg import DASHES

METADATA: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "png": {"Software": None}}
"""Format -> metadata to omit, so that a file's bytes depend only on the figure."""
PNG_DPI = 200
MARKERS = {"dot": "o", "ring": "o", "up": "^", "down": "v"}
"""Symbol -> marker of matplotlib."""
ALIGNMENTS = {"start": "left", "middle": "center", "end": "right"}


class MatplotlibPen:
    """A pen like `SvgPen` that draws on one axes object of the figure's size, in points."""

    def __init__(self, style: FigureStyle) -> None:
        fonts = {"font.family": ["STIXGeneral", "DejaVu Serif"] if style.is_paper else ["DejaVu Sans"]}
        # TrueType fonts, as publishers require; no mathematics in users' text
        self._settings: dict[Any, Any] = fonts | {"pdf.fonttype": 42, "text.parse_math": False}
        self._style = style
        self._origin = np.zeros(2)
        with rc_context(self._settings):
            self._figure = Figure(facecolor="none" if style.is_transparent else style.colour("page"))
            self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()

    def move_to(self, x: float, y: float) -> None:
        """Set the origin."""
        self._origin = np.array([x, y])

    def files(self, width: float, height: float, formats: Iterable[str]) -> dict[str, bytes]:
        """Return the files of this size."""
        self._figure.set_size_inches(width / POINTS_PER_INCH, height / POINTS_PER_INCH)
        self._axes.set(xlim=(0, width), ylim=(height, 0), aspect="auto")
        files = {}
        for name in formats:
            with rc_context(self._settings):
                sink = io.BytesIO()
                self._figure.savefig(sink, format=name, metadata=METADATA[name], dpi=PNG_DPI)
                files[name] = sink.getvalue()
        return files

    def lines(
        self, parts: Iterable[np.ndarray], colour: str, width: float, dash: str = "", opacity: float = 1.0
    ) -> None:
        """Draw lines through arrays of points."""
        dashes = [length * self._style.scale / width for length in DASHES[dash]]
        for points in parts:
            options: dict[str, Any] = self._looks(colour, opacity) | {"linestyle": (0, dashes) if dashes else "-"}
            self._axes.plot(*(points + self._origin).T, linewidth=width, solid_capstyle="butt", **options)

    def area(self, points: np.ndarray, colour: str, opacity: float) -> None:
        """Fill a polygon."""
        self._axes.fill(*(points + self._origin).T, linewidth=0, **self._looks(colour, opacity))

    def spots(self, points: np.ndarray, colour: str, size: float, symbol: str, opacity: float = 1.0) -> None:
        """Draw dots, rings or triangles."""
        options = self._looks(colour, opacity) | {"marker": MARKERS[symbol], "markersize": size, "linestyle": "none"}
        if symbol == "dot":
            options |= {"markeredgewidth": 0}
        else:
            hole = "none" if self._style.is_transparent else self._style.colour("page")
            options |= {"markeredgewidth": 1.3 * self._style.scale, "markerfacecolor": hole}
        self._axes.plot(*(points + self._origin).T, **options)

    def image(self, pixels_YXC: np.ndarray, x: float, y: float, width: float, height: float) -> None:
        """Stretch pixels over a box."""
        left, top = self._origin[0] + x, self._origin[1] + y
        box = (left, left + width, top + height, top)
        self._axes.imshow(pixels_YXC, extent=box, interpolation="nearest", zorder=self._order())

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        colour: str = "ink",
        anchor: str = "start",
        *,
        is_bold: bool = False,
    ) -> None:
        """Write a text with its baseline at y."""
        options = self._looks(colour, 1.0) | {"ha": ALIGNMENTS[anchor], "weight": "bold" if is_bold else "normal"}
        with rc_context(self._settings):
            left, top = self._origin
            self._axes.text(left + x, top + y, self._style.label(text), fontsize=size, **options)

    def _looks(self, colour: str, opacity: float) -> dict[str, Any]:
        return {"color": self._style.colour(colour), "alpha": opacity, "zorder": self._order(), "clip_on": False}

    def _order(self) -> int:
        """Return the place of the next shape: later ones are above."""
        return len(self._axes.get_children())
