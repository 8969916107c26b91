"""The atlas: every figure and table of the four papers, with its sweep and its result."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ATLAS_FILE = Path(__file__).parent / "papers" / "atlas.toml"
PREFIX = "atlas/"
"""Prefix that turns a figure's key into the name of a sweep."""

Verdict = Literal[
    "agrees", "agrees in trend", "in part", "disagrees", "undecided", "theorem, no figure", "not comparable", "not run"
]
Source = Literal["printed", "ours"]


@dataclass(frozen=True)
class Check:
    """A statement that the run's numbers confirm or refute."""

    claim: str
    """The statement and its place in the paper."""
    source: Source = "printed"
    """Whether the paper prints or proves the statement, or it is ours. Only printed statements decide the verdict."""
    slope: str = ""
    """Metric whose trend over depth decides the statement."""
    layer: int | None = None
    """Layer of the metric, as in a sweep's `fit`: -2 is the one before the last. Default: the last."""
    expect: Literal["falls", "does not fall", "flat", ""] = ""
    """Expected trend."""
    value: str = ""
    """SQL over the sweep's results that gives one number."""
    low: float | None = None
    """Smallest value that satisfies the statement."""
    high: float | None = None
    """Largest value that satisfies the statement."""
    own_limit: bool = False
    """Whether the limits are ours and not the paper's."""
    finished: str = ""
    """SQL that gives whether the runs are far enough to refute the statement. If not, it is open instead of failing."""


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
    """Numbers printed by the authors, with their place in the paper. Empty if unknown."""
    sweep: str = ""
    """Shipped sweep at the paper's size. Empty if there is none."""
    run: str = ""
    """Shipped sweep that was run. Empty if none was run."""
    size: str = ""
    """Difference between the run and the paper's size."""
    pictures: tuple[str, ...] = ()
    """Names of the atlas's pictures: names of the files from `report --figures`, without their numbers."""
    query: str = ""
    """SQL over the sweep's results, shown next to the fits."""
    theorem: bool = False
    """Whether the paper states this as a theorem without a figure."""
    scope: Check | None = None
    """Condition for comparing the run with the print."""
    checks: tuple[Check, ...] = ()
    """Statements that decide the verdict."""


def atlas_figures() -> list[AtlasFigure]:
    """Return the figures in the order of the papers."""
    import tomllib

    rows = tomllib.loads(ATLAS_FILE.read_text(encoding="utf-8"))["figure"]
    return [_figure(**row) for row in rows]


def _figure(pictures: Sequence[str] = (), checks: Sequence[Any] = (), scope: Any = None, **facts: Any) -> AtlasFigure:
    return AtlasFigure(
        **facts,
        pictures=tuple(pictures),
        checks=tuple(Check(**check) for check in checks),
        scope=None if scope is None else Check(**scope),
    )


def sweep_of_figure(key: str) -> str:
    """Return the shipped sweep of a figure: the one that was run, or the one at the paper's size, or an empty string."""
    return next((figure.run or figure.sweep for figure in atlas_figures() if figure.key == key), "")
