"""The atlas: every figure and table of the four papers, with its sweep and its result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

ATLAS_FILE = Path(__file__).parent / "papers" / "atlas.toml"
PREFIX = "atlas/"
"""Prefix of a figure's key that makes it the name of a sweep."""

Verdict = Literal["agrees", "agrees in trend", "in part", "disagrees", "undecided", "not run"]
VERDICTS: tuple[str, ...] = get_args(Verdict)


@dataclass(frozen=True)
class AtlasFigure:
    """A figure or table of a paper."""

    key: str
    paper: str
    """P1 to P4, as in tasks.citations."""
    figure: str
    claim: str
    """Claim of the figure, in one sentence."""
    verdict: Verdict
    why: str
    """Reason for the verdict, or the requirements of a figure that was not run."""
    printed: str = ""
    """Numbers printed by the authors, with their place. Empty if unknown."""
    sweep: str = ""
    """Shipped sweep at the paper's size. Empty if missing."""
    run: str = ""
    """Shipped sweep that was run. Empty if not run."""
    size: str = ""
    """Difference between the run and the paper's size."""
    pictures: tuple[str, ...] = ()
    """Names of the atlas's pictures: prefixes of files of `report --figures`, without their numbers."""
    query: str = ""
    """SQL over the sweep's results, shown next to the fits."""


def atlas_figures() -> list[AtlasFigure]:
    """Return the figures in the order of the papers."""
    import tomllib

    rows = tomllib.loads(ATLAS_FILE.read_text(encoding="utf-8"))["figure"]
    return [AtlasFigure(**{**row, "pictures": tuple(row.get("pictures", ()))}) for row in rows]


def sweep_of_figure(key: str) -> str:
    """Return the shipped sweep of a figure: the one that was run, else the paper's size, else an empty string."""
    return next((figure.run or figure.sweep for figure in atlas_figures() if figure.key == key), "")
