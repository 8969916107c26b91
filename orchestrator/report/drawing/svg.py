"""Draw as SVG: text stays text, and on the page colours are CSS variables."""

import base64
import struct
import zlib
from collections.abc import Iterable

import numpy as np

from depthrate.orchestrator.report.drawing.style import FigureStyle
from depthrate.orchestrator.report.text import escape

DASHES = {"": (), "dash": (6, 4), "dot": (1.5, 3), "dashdot": (7, 3, 1.5, 3), "join": (2, 2.5)}
"""Name of a dash style -> lengths of dashes and gaps."""
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
SERIF = "STIXGeneral, 'STIX Two Text', 'Times New Roman', Times, 'Liberation Serif', serif"


class SvgPen:
    """A pen that writes elements. Colours are names of the style's colours, or hexadecimal."""

    def __init__(self, style: FigureStyle) -> None:
        self._style = style
        self._elements: list[str] = []

    def move_to(self, x: float, y: float) -> None:
        """Set the origin."""
        self._elements.append(f'{"</g>" if self._elements else ""}<g transform="translate({_number(x)} {_number(y)})">')

    def element(self, width: float, height: float, title: str) -> str:
        """Return an inline element of the page, with a title for screen readers."""
        size = f'viewBox="0 0 {_number(width)} {_number(height)}"'
        label = f'role="img" aria-label="{escape(title)}"' if title else 'aria-hidden="true"'
        return f'<svg class="facet" {size} {label}>{"".join(self._elements)}</svg>'

    def file(self, width: float, height: float) -> bytes:
        """Return the content of a file."""
        style, size = self._style, f"{_number(width)} {_number(height)}"
        background = (
            "" if style.is_transparent else f'<rect width="100%" height="100%" fill="{self._style.colour("page")}"/>'
        )
        text = (
            f'<?xml version="1.0" encoding="utf-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="{_number(width)}pt" '
            f'height="{_number(height)}pt" viewBox="0 0 {size}" font-family="{SERIF if style.is_paper else SANS}">'
            + "\n".join([background, *self._elements, "</g></svg>\n"])
        )
        return text.encode()

    def lines(
        self, parts: Iterable[np.ndarray], colour: str, width: float, dash: str = "", opacity: float = 1.0
    ) -> None:
        """Draw lines through arrays of points (x, y)."""
        dashes = " ".join(_number(self._style.scale * length) for length in DASHES[dash])
        path = "".join(map(_polyline, parts))
        looks = f"fill:none;stroke:{self._style.colour(colour)};stroke-width:{_number(width)}"
        self._add_path(path, looks + (f";stroke-dasharray:{dashes}" if dashes else ""), opacity)

    def area(self, points: np.ndarray, colour: str, opacity: float) -> None:
        """Fill a polygon."""
        self._add_path(f"{_polyline(points)}z" if len(points) else "", f"fill:{self._style.colour(colour)}", opacity)

    def spots(self, points: np.ndarray, colour: str, size: float, symbol: str, opacity: float = 1.0) -> None:
        """Draw dots, rings or triangles."""
        paint, scale = self._style.colour(colour), self._style.scale
        if symbol in ("up", "down"):
            half, height = size / 2, size if symbol == "up" else -size
            triangle = f"l{_number(size)} 0l{_number(-half)} {_number(-height)}z"
            path = "".join(f"M{_number(x - half)} {_number(y + height / 2)}{triangle}" for x, y in points)
            self._add_path(path, f"fill:none;stroke:{paint};stroke-width:{_number(scale)}", opacity)
            return
        sizes = [(paint, size)]
        if symbol == "ring":
            sizes = [(paint, size + scale), (self._style.colour("page"), size - 2 * scale)]
        # a dot is a line without length and with a round cap
        path = "".join(f"M{_number(x)} {_number(y)}h0" for x, y in points)
        for stroke, width in sizes:
            looks = f"fill:none;stroke-linecap:round;stroke:{stroke};stroke-width:{_number(width)}"
            self._add_path(path, looks, opacity)

    def image(self, pixels_YXC: np.ndarray, x: float, y: float, width: float, height: float) -> None:
        """Stretch RGB pixels over a box."""
        box = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
        data = base64.b64encode(_png(pixels_YXC)).decode()
        looks = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
        self._elements.append(f'<image {box} {looks} href="data:image/png;base64,{data}"/>')

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
        """Write a text with its baseline at y. The anchor is start, middle or end."""
        if text:
            looks = (
                f"fill:{self._style.colour(colour)};font-size:{_number(size)}px{';font-weight:600' if is_bold else ''}"
            )
            place = f'x="{_number(x)}" y="{_number(y)}"' + (f' text-anchor="{anchor}"' if anchor != "start" else "")
            self._elements.append(f'<text {place} style="{looks}">{escape(self._style.label(text))}</text>')

    def _add_path(self, path: str, looks: str, opacity: float) -> None:
        if path:
            looks += "" if opacity == 1 else f";opacity:{_number(opacity)}"
            self._elements.append(f'<path d="{path}" style="{looks}"/>')


def _polyline(points: np.ndarray) -> str:
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)


def _number(value: float) -> str:
    """Write a number with at most two decimals, which is finer than a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) < 10 else f"{value:.1f}".removesuffix(".0")


def _png(pixels_YXC: np.ndarray) -> bytes:
    """Encode RGB pixels."""
    height, width, _ = pixels_YXC.shape
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels_YXC))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
