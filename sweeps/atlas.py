"""The atlas: every figure and table of the four papers, with its sweep and its result."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

ATLAS_FILE = Path(__file__).parent / "papers" / "atlas.toml"
PREFIX = "atlas/"
"""Prefix that turns a figure's key into the name of a sweep."""

Verdict = Literal[
    "agrees", "agrees in trend", "in part", "disagrees", "undecided", "theorem, no figure", "not comparable", "not run"
]
VERDICTS: tuple[str, ...] = get_args(Verdict)
Outcome = Literal["holds", "fails", "open"]


Source = Literal["printed", "ours"]


@dataclass(frozen=True)
class SlopeEvidence:
    """Evidence for a metric's trend over depth."""

    exponent: float
    """Exponent of the power law, positive if the metric falls."""
    interval: tuple[float | None, float | None]
    """95 % interval of the exponent."""
    change: tuple[float, float, float] | None
    """Change of the metric's logarithm from the smallest to the largest depth, with its 95 % interval over seeds."""
    could_move: float | None
    """Possible change of the exponent in another quarter of training, if known."""


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

    def outcome(self, value: float | None) -> Outcome:
        """Return whether the result of the query confirms or refutes the statement. None: not measured."""
        if value is None:
            return "open"
        fits = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        return "holds" if fits else "fails"

    def outcome_of_slope(self, evidence: SlopeEvidence | None) -> Outcome:
        """Return whether a trend confirms or refutes the statement.

        A fall is tested without a model, from the first to the last depth. It is open if another quarter of training
        could undo it. The absence of a fall is tested by equivalence: an interval that merely contains 0 is open.
        """
        if evidence is None:
            return "open"
        if self.expect == "falls":
            if evidence.change is None or (evidence.could_move or 0.0) >= abs(evidence.exponent):
                return "open"
            _, low, high = evidence.change
            return "holds" if high < 0 else "fails" if low > 0 else "open"
        low, high = (math.inf if end is None else end for end in evidence.interval)
        if not (math.isfinite(low) and math.isfinite(high)):
            return "open"
        if self.expect == "flat":
            return "holds" if low > -FLAT and high < FLAT else "fails" if low > 0 or high < 0 else "open"
        return "holds" if high < FLAT else "fails" if low > 0 else "open"

    def requirement(self) -> str:
        """Return the requirement as a string, with the source of its limits."""
        ours = " (our limit)" if self.own_limit else ""
        if self.slope:
            equivalence = {"flat": f"interval within {FLAT} of 0", "does not fall": f"interval below {FLAT}"}
            return f"{equivalence[self.expect]} (our limit)" if self.expect in equivalence else self.expect
        if self.low is not None and self.high is not None:
            return (f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}") + ours
        return (f"at least {self.low:g}" if self.low is not None else f"at most {self.high:g}") + ours

    def distance(self, value: float | None) -> str:
        """Return how far a value lies inside (+) or outside (-) the nearest limit of ours, as a share of the limit."""
        limits = [limit for limit in (self.low, self.high) if limit]
        if value is None or not self.own_limit or not limits:
            return ""
        gaps = [] if not self.low else [(value - self.low) / abs(self.low)]
        gaps += [] if not self.high else [(self.high - value) / abs(self.high)]
        return f"{min(gaps):+.1%} from our limit"


FLAT = 0.1
"""Exponent below which a metric counts as almost constant over depth. The limit is ours."""


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

    def judge(self, outcomes: Sequence[Outcome], in_scope: Outcome = "holds") -> Verdict:
        """Derive the verdict from the outcomes of the printed statements, by the rule on the atlas's first page."""
        if not self.run:
            return "not run"
        if in_scope != "holds":
            return "not comparable"
        if self.theorem:
            return "theorem, no figure"
        if set(outcomes) == {"holds"}:
            return "agrees in trend" if self.size else "agrees"
        if "holds" in outcomes:
            return "in part"
        return "disagrees" if "fails" in outcomes else "undecided"


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
