"""Write the report's figures as SVG and PDF files, with their data as CSV."""

import csv
import html
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.output_file import write_output
from depthrate.orchestrator.report.drawing.render_files import FORMATS, draw, plain
from depthrate.orchestrator.report.drawing.style import SCREEN, FigureStyle
from depthrate.orchestrator.report.plot import Plot

_SUFFIXES = f".{', .'.join(FORMATS)} or .csv"


def export_figures(plots: Sequence[Plot], folder: Path, style: FigureStyle = SCREEN) -> int:
    """Write figure-<number>-<title>.svg, .pdf and .csv for each plot, and return the number of plots.

    Raises:
        UsageError: A file cannot be written.
    """
    for number, plot in enumerate(plots, 1):
        slug = re.sub(r"[^a-z0-9]+", "-", html.unescape(plot.title).lower()).strip("-")
        path = folder / f"figure-{number:02d}-{slug[:60]}"
        write_output(path.with_suffix(".csv"), plot_csv(plot))
        for suffix, content in draw(plot, style).items():
            write_output(path.with_suffix(f".{suffix}"), content)
    return len(plots)


@dataclass(frozen=True)
class Picture:
    """One figure for a notebook."""

    plot: Plot

    def _repr_svg_(self) -> str:
        return draw(self.plot, formats=["svg"])["svg"].decode()

    def __repr__(self) -> str:
        return f"<{html.unescape(self.plot.title)}; .save(path) writes {_SUFFIXES}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the figure as SVG, PDF, PNG or CSV, according to the suffix of the path.

        Raises:
            UsageError: The suffix is unknown, or the file cannot be written.
        """
        suffix = Path(path).suffix.removeprefix(".").lower()
        if suffix not in (*FORMATS, "csv"):
            raise UsageError(f"cannot write a figure to {os.fspath(path)}: the suffix must be {_SUFFIXES}")
        content = plot_csv(self.plot).encode() if suffix == "csv" else draw(self.plot, formats=[suffix])[suffix]
        write_output(Path(path), content)


def plot_csv(plot: Plot) -> str:
    """Return a plot's data as CSV, one row per point: trace number, trace name, x, y, and z of a heat map."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(["trace", "name", "x", "y", "z"])
    for number, trace in enumerate(plot.traces):
        name = plain(trace["name"])
        if trace["type"] == "heatmap":
            for y, row in zip(trace["y"], trace["z"], strict=True):
                writer.writerows([number, name, x, y, z] for x, z in zip(trace["x"], row, strict=True))
            continue
        points = [(x, y) for x, y in zip(trace["x"], trace["y"], strict=True) if x is not None and y is not None]
        writer.writerows([number, name, x, y, ""] for x, y in points)
    return sink.getvalue()
