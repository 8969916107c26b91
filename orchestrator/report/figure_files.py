"""The report's figures as files: each as SVG and PDF, and its data as CSV."""

from __future__ import annotations

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
from depthrate.orchestrator.report.drawing.axis_labels import plain
from depthrate.orchestrator.report.drawing.draw import FORMATS, draw
from depthrate.orchestrator.report.drawing.style import SCREEN, FigureStyle
from depthrate.orchestrator.report.plot import Plot

_ENDINGS = f".{', .'.join(FORMATS)} or .csv"


def export_figures(plots: Sequence[Plot], folder: Path, style: FigureStyle = SCREEN) -> int:
    """Write figure-<number>-<title>.svg, .pdf and .csv for each plot; return how many.

    Raises:
        UsageError: a file cannot be written.
    """
    for number, plot in enumerate(plots, 1):
        words = re.sub(r"[^a-z0-9]+", "-", html.unescape(plot.title).lower()).strip("-")
        path = folder / f"figure-{number:02d}-{words[:60]}"
        write_output(path.with_suffix(".csv"), plot_csv(plot))
        for ending, content in draw(plot, style).items():
            write_output(path.with_suffix(f".{ending}"), content)
    return len(plots)


@dataclass(frozen=True)
class Picture:
    """One figure; a notebook shows it."""

    plot: Plot

    def _repr_svg_(self) -> str:
        return draw(self.plot, endings=["svg"])["svg"].decode()

    def __repr__(self) -> str:
        return f"<{html.unescape(self.plot.title)}; .save(path) writes {_ENDINGS}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as SVG, PDF, PNG or CSV, by the ending of the path.

        Raises:
            UsageError: the ending is another, or the file cannot be written.
        """
        ending = Path(path).suffix.removeprefix(".").lower()
        if ending not in (*FORMATS, "csv"):
            raise UsageError(f"{os.fspath(path)}: a figure is written as {_ENDINGS}")
        content = plot_csv(self.plot).encode() if ending == "csv" else draw(self.plot, endings=[ending])[ending]
        write_output(Path(path), content)


def plot_csv(plot: Plot) -> str:
    """Return what a plot draws as CSV: a row a point, with the number and the name of its trace; z of a heat map."""
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
