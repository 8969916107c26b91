"""The atlas: every figure and table of the four papers, with the sweep that stands for it and what came of running it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

ATLAS_FILE = Path(__file__).parent / "papers" / "atlas.toml"
PREFIX = "atlas/"
"""Before a figure's key: a name under which its sweep is found."""

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
    """What it shows, in one sentence of ours."""
    verdict: Verdict
    why: str
    """What the verdict rests on; of one that was not run, what it needs."""
    printed: str = ""
    """The numbers that its authors printed, and where they stand; empty: no number of theirs was at hand."""
    sweep: str = ""
    """The shipped sweep at the paper's own size; empty: none stands for it."""
    run: str = ""
    """The shipped sweep that was run; empty: none was."""
    size: str = ""
    """How what was run differs from the paper's own size."""
    pictures: tuple[str, ...] = ()
    """How the files that `report --figures` writes of it begin, behind their numbers; those of the atlas."""
    query: str = ""
    """SQL over the sweep's results, whose answer is shown beside the fits."""


def atlas_figures() -> list[AtlasFigure]:
    """Return the figures in the order of the papers."""
    import tomllib

    rows = tomllib.loads(ATLAS_FILE.read_text(encoding="utf-8"))["figure"]
    return [AtlasFigure(**{**row, "pictures": tuple(row.get("pictures", ()))}) for row in rows]


def sweep_of_figure(key: str) -> str:
    """Return the name of the shipped sweep that stands for a figure: what was run, else the paper's own; empty: none."""
    return next((each.run or each.sweep for each in atlas_figures() if each.key == key), "")
