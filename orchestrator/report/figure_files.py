"""Write the report's figures as SVG and PDF files, with their data as CSV."""

import csv
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.output_file import write_output
from depthrate.orchestrator.report.drawing.render import FORMATS, draw
from depthrate.orchestrator.report.drawing.style import SCREEN, FigureStyle
from depthrate.orchestrator.report.figure import Figure, HeatMap, Range, Series
from depthrate.orchestrator.sheet.fit_sheet import is_finite

_SUFFIXES = f".{', .'.join(FORMATS)} or .csv"


def export_figures(figures: Sequence[Figure], folder: Path, style: FigureStyle = SCREEN) -> int:
    """Write figure-<number>-<title>.svg, .pdf and .csv for each figure, and return the number of figures.

    Raises:
        UsageError: A file cannot be written.
    """
    for number, figure in enumerate(figures, 1):
        slug = re.sub(r"[^a-z0-9]+", "-", figure.title.lower()).strip("-")
        path = folder / f"figure-{number:02d}-{slug[:60]}"
        write_output(path.with_suffix(".csv"), figure_csv(figure))
        for suffix, content in draw(figure, style).items():
            write_output(path.with_suffix(f".{suffix}"), content)
    return len(figures)


@dataclass(frozen=True)
class Picture:
    """One figure for a notebook."""

    figure: Figure

    def _repr_svg_(self) -> str:
        return draw(self.figure, formats=["svg"])["svg"].decode()

    def __repr__(self) -> str:
        return f"<{self.figure.title}; .save(path) writes {_SUFFIXES}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the figure as SVG, PDF, PNG or CSV, according to the suffix of the path.

        Raises:
            UsageError: The suffix is unknown, or the file cannot be written.
        """
        suffix = Path(path).suffix.removeprefix(".").lower()
        if suffix not in (*FORMATS, "csv"):
            raise UsageError(f"cannot write a figure to {os.fspath(path)}: the suffix must be {_SUFFIXES}")
        content = figure_csv(self.figure).encode() if suffix == "csv" else draw(self.figure, formats=[suffix])[suffix]
        write_output(Path(path), content)


def figure_csv(figure: Figure) -> str:
    """Return a figure's data as CSV, one row per point: facet, name, x, y, the ends of a range, z of a heat map."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(["facet", "mark", "name", "x", "y", "low", "high", "z"])
    for facet in figure.facets:
        for mark in facet.marks:
            row = [facet.title, type(mark).__name__.lower()]
            if isinstance(mark, HeatMap):
                cells = np.ndenumerate(mark.values)
                x_names, y_names = facet.x.names, facet.y.names
                writer.writerows([*row, "", x_names[x], y_names[y], "", "", f"{z:.9g}"] for (y, x), z in cells)
            elif isinstance(mark, Series):
                points = zip(mark.x, mark.y, strict=True)
                writer.writerows(
                    [*row, mark.name, _text(x), _text(y)] for x, y in points if is_finite(x) and is_finite(y)
                )
            elif isinstance(mark, Range):
                ranges = zip(mark.x, mark.low, mark.high, strict=True)
                writer.writerows([*row, mark.name, _text(x), "", _text(low), _text(high)] for x, low, high in ranges)
            else:
                text = " ".join(filter(None, (mark.text, mark.detail)))
                writer.writerow([*row, text, _text(mark.x), _text(mark.y)])
    return sink.getvalue()


def _text(value: float) -> str:
    return f"{value:.9g}"
