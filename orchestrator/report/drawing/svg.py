"""Write shapes as SVG: text stays text, and on the page colours are CSS variables."""

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from depthrate.orchestrator.report.drawing.layout import Area, Image, Layout, Shape, Spots, Stroke, Text
from depthrate.orchestrator.report.drawing.style import FigureStyle
from depthrate.orchestrator.report.text import escape

DASHES = {"": (), "dash": (6, 4), "dot": (1.5, 3), "dashdot": (7, 3, 1.5, 3), "join": (2, 2.5)}
"""Name of a dash style -> lengths of dashes and gaps."""
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
SERIF = "STIXGeneral, 'STIX Two Text', 'Times New Roman', Times, 'Liberation Serif', serif"


def svg_element(layout: Layout, style: FigureStyle, title: str) -> str:
    """Return a facet as an inline element of the page, with `title` for screen readers."""
    size = f'viewBox="0 0 {_number(layout.width)} {_number(layout.height)}"'
    shapes = "".join(_shape(shape, style) for shape in layout.shapes)
    return f'<svg class="facet" {size} role="img" aria-label="{escape(title)}">{shapes}</svg>'


def svg_file(parts: Sequence[tuple[float, float, Layout]], width: float, height: float, style: FigureStyle) -> bytes:
    """Return a file with the layouts at their places (x, y)."""
    assert style.colours is not None
    background = "" if style.is_transparent else f'<rect width="100%" height="100%" fill="{style.colours["page"]}"/>'
    groups = [
        f'<g transform="translate({_number(x)} {_number(y)})">'
        + "".join(_shape(shape, style) for shape in layout.shapes)
        + "</g>"
        for x, y, layout in parts
    ]
    size = f'width="{_number(width)}pt" height="{_number(height)}pt" viewBox="0 0 {_number(width)} {_number(height)}"'
    family = SERIF if style.is_paper else SANS
    text = (
        f'<?xml version="1.0" encoding="utf-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" {size} '
        f'font-family="{family}">{background}\n' + "\n".join(groups) + "\n</svg>\n"
    )
    return text.encode()


def _shape(shape: Shape, style: FigureStyle) -> str:
    if isinstance(shape, Stroke):
        path = "".join(_polyline(points) for points in shape.parts)
        dashes = DASHES[shape.dash]
        dash = f";stroke-dasharray:{' '.join(_number(style.scale * d) for d in dashes)}" if dashes else ""
        line = f"fill:none;stroke:{_colour(shape.colour, style)};stroke-width:{_number(shape.width)}{dash}"
        return f'<path d="{path}" style="{line}{_opacity(shape.opacity)}"/>' if path else ""
    if isinstance(shape, Area):
        fill = f"fill:{_colour(shape.colour, style)}{_opacity(shape.opacity)}"
        return f'<path d="{_polyline(shape.points)}z" style="{fill}"/>' if len(shape.points) else ""
    if isinstance(shape, Spots):
        return _spots(shape, style)
    if isinstance(shape, Image):
        place = " ".join(f'{name}="{_number(getattr(shape, name))}"' for name in ("x", "y", "width", "height"))
        data = base64.b64encode(_png(shape.pixels)).decode()
        return (
            f'<image {place} preserveAspectRatio="none" style="image-rendering:pixelated" '
            f'href="data:image/png;base64,{data}"/>'
        )
    anchor = f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
    weight = ";font-weight:600" if shape.is_bold else ""
    looks = f"fill:{_colour(shape.colour, style)};font-size:{_number(shape.size)}px{weight}"
    return f'<text x="{_number(shape.x)}" y="{_number(shape.y)}"{anchor} style="{looks}">{escape(shape.text)}</text>'


def _spots(shape: Spots, style: FigureStyle) -> str:
    """Return all spots as one path. A dot is a line without length and with a round cap."""
    if not len(shape.points):
        return ""
    colour, opacity = _colour(shape.colour, style), _opacity(shape.opacity)
    if shape.symbol in ("up", "down"):
        half, sign = shape.size / 2, -1 if shape.symbol == "up" else 1
        tips = [(x - half, y - sign * half, shape.size, half, sign * shape.size) for x, y in shape.points]
        path = "".join(f"M{_number(x)} {_number(y)}h{_number(w)}l{_number(-h)} {_number(d)}z" for x, y, w, h, d in tips)
        return f'<path d="{path}" style="fill:none;stroke:{colour}"/>'
    path = "".join(f"M{_number(x)} {_number(y)}h0" for x, y in shape.points)
    sizes = [(colour, shape.size)]
    if shape.symbol == "ring":
        hole = "none" if style.is_transparent else _colour("page", style)
        sizes = [(colour, shape.size + style.scale), (hole, shape.size - 2 * style.scale)]
    return "".join(
        f'<path d="{path}" style="fill:none;stroke-linecap:round;stroke:{paint};stroke-width:{_number(size)}{opacity}"/>'
        for paint, size in sizes
    )


def _polyline(points: np.ndarray) -> str:
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)


def _colour(name: str, style: FigureStyle) -> str:
    if name.startswith("#"):
        return name
    return f"var(--{name})" if style.colours is None else style.colours[name]


def _opacity(opacity: float) -> str:
    return "" if opacity == 1 else f";opacity:{_number(opacity)}"


def _number(value: float) -> str:
    """Write a number with at most two decimals, which is finer than a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value < 10 else f"{value:.1f}".removesuffix(".0")


def _png(pixels_YXC: np.ndarray) -> bytes:
    """Encode RGB pixels."""
    height, width, _ = pixels_YXC.shape
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels_YXC))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
