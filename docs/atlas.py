"""Draw the atlas: `python docs/atlas.py` writes the pages of docs/atlas/ from its store and from sweeps/papers/atlas.toml.

The images come from `depthrate report --figures`, the exponents from `depthrate fit`, the numbers from `depthrate query`.
Nothing is trained, and torch is not needed. `python docs/atlas.py KEY ...` redraws only the images of these figures and
rewrites all pages; `python docs/atlas.py --pages` rewrites the pages alone.
"""

import functools
import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Literal

from click.testing import CliRunner

from depthrate.orchestrator.analysis.convergence import UNCONVERGED_RULE
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.replicates import replicate_keys
from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.api.fit import fit_sweep
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.sheet.curve_sheets import rates_sheet
from depthrate.orchestrator.sheet.markup import plain
from depthrate.storage.files.store import existing_store
from depthrate.sweeps.atlas import AtlasFigure, Check, Verdict, atlas_figures
from depthrate.sweeps.load import find_sweep_file, load_sweep
from depthrate.tasks.citations import PAPERS
from depthrate.tasks.fits.bootstrap_and_profile import t_quantile
from depthrate.tasks.fits.points import as_curve, gather
from depthrate.tasks.fits.whole_seeds import MIN_SEEDS, table_of_seeds

FOLDER = Path(__file__).parent / "atlas"
STORE = FOLDER / "store"
IMAGES = FOLDER / "images"
Outcome = Literal["holds", "fails", "open"]
FLAT = 0.1
"""Exponent below which a metric counts as almost constant over depth. The limit is ours."""
_BEHIND_NUMBER = re.compile(r"figure-\d+-(.*)\.svg")


def call(*arguments: str) -> str:
    """Return the output of a command."""
    result = CliRunner().invoke(app, [*arguments, "--store", str(STORE)], catch_exceptions=False)
    assert result.exit_code == 0, f"depthrate {' '.join(arguments)}: {result.output}"
    return result.stdout


def draw_pictures(figure: AtlasFigure) -> None:
    """Write a figure's images for light and for dark pages.

    Raises:
        ValueError: If the report has no such image.
    """
    for old in IMAGES.glob(f"{figure.key}--*.svg"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        for ending, dark in (("", []), ("-dark", ["--dark"])):
            drawn = Path(folder) / f"figures{ending}"
            call("report", _name(figure), "--figures", str(drawn), "-o", str(Path(folder) / "page.html"), *dark)
            names = {
                _slug(path): path for path in sorted(drawn.glob("*.svg"), reverse=True)
            }  # the first of a name counts
            for picture in figure.pictures:
                found = sorted(slug for slug in names if slug.startswith(picture))
                if not found:
                    raise ValueError(f"{figure.key}: no picture begins with {picture!r}; there are {', '.join(names)}")
                shutil.copy(names[found[0]], IMAGES / f"{figure.key}--{found[0]}{ending}.svg")


def section(figure: AtlasFigure) -> str:
    """Return the section of a page about one figure."""
    lines = [
        f"## {figure.figure}",
        "",
        f"`{figure.key}`: {figure.claim}",
        "",
        f"**{_capital(_judged(figure))}.** {figure.why}",
    ]
    if not figure.run:
        at = f" At the paper's size: `{figure.sweep}`." if figure.sweep else ""
        lines[-1] += at
        return "\n".join([*lines, ""])
    size = figure.size or ("" if figure.theorem else "as printed")
    if figure.printed:
        lines += ["", f"**Printed:** {figure.printed}"]
    lines += ["", f"`depthrate run {figure.run}`: {'. '.join(filter(None, (size, _cost(figure))))}.", ""]
    for path in sorted(IMAGES.glob(f"{figure.key}--*.svg")):
        if not path.stem.endswith("-dark"):
            words = path.stem.partition("--")[2].replace("-", " ")
            lines += [
                "<picture>",
                f'  <source media="(prefers-color-scheme: dark)" srcset="images/{path.stem}-dark.svg">',
                f'  <img alt="{figure.figure}: {words}" src="images/{path.name}" width="520">',
                "</picture>",
                "",
            ]
    lines += [*_checks(figure), *_fits(figure), *_answer(figure)]
    return "\n".join(lines)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the content of each page."""
    figures = atlas_figures()
    contents = [
        "# Atlas of four papers",
        "",
        "Figures, tables and theorems of the four reproduced papers: the claim, the sweep that was run, and whether the",
        "result agrees with the print. `depthrate atlas` prints this table, and `depthrate run atlas/FIGURE` repeats a row.",
        "",
        "## How a verdict is reached",
        "",
        "Each row has statements with their places. Those that its paper (or its authors' notebook) prints or proves decide",
        "the verdict. Others are marked as ours and do not count. The numbers of the committed store decide each statement:",
        "",
        "- A metric *falls* if the change of its logarithm from the first to the last depth is negative: Student's t over",
        "  seeds, 95 %, without a model of the curve. It is open if there are fewer than three seeds, or if the exponent could",
        "  move by its own size in another quarter of training. Otherwise the statement fails if the interval is above 0, and",
        "  is open if the interval contains 0.",
        f"- A metric *does not fall* if the 95 % interval of its exponent over depth lies below {FLAT}. It is almost constant",
        f"  if the interval lies within {FLAT} of 0. The limit is ours. An interval that merely contains 0 leaves both open.",
        "- Other statements have bounds. The table marks a bound of ours and shows the distance to it. A statement",
        "  about the end of training is open, and does not fail, if the runs are not at their end.",
        "",
        "An open statement never counts against a paper.",
        "",
        f"The atlas makes {_num_trends(figures)} tests of a fall at 5 %, two-sided, without correction: without any trend,",
        f"{0.025 * _num_trends(figures):.1f} would be found by chance.",
        "",
        "| verdict | rule |",
        "|---|---|",
        "| agrees | all decided printed statements hold, at the print's size. The row names what the print leaves open |",
        "| agrees in trend | all decided printed statements hold, at a size, by a method or in settings of ours, which the row "
        "names |",
        "| in part | some statements hold, others fail |",
        "| disagrees | none holds, and at least one fails |",
        "| undecided | all are open |",
        "| theorem, no figure | the paper proves it and shows no figure: its statements are tested and counted |",
        "| not comparable | the run is outside the scope of the print, by the number that the row names |",
        "",
        f"*Unconverged* is a trial's `judgement`: {UNCONVERGED_RULE}.",
        "Such trials are counted in each row with a fit, and their exponents describe training at its budget. *Stationary*",
        "is a narrower word for the descent of P2: its `solution` is not one whose drift is above 0.01.",
        "",
        "## All rows",
        "",
        "Query the results with `depthrate query --store docs/atlas/store --sweep NAME 'select ...'`.",
        "`python docs/atlas.py` redraws every figure without training. Machine: 2 cores of an AMD EPYC, no GPU.",
        "",
        _all_figures(figures),
        "```{toctree}",
        ":maxdepth: 1",
        "",
        *(_page(paper).removesuffix(".md") for paper in PAPERS),
        "```",
        "",
    ]
    yield "index.md", "\n".join(contents)
    for paper, title in PAPERS.items():
        sections = [section(figure) for figure in figures if figure.paper == paper]
        head = [f"# {paper}: {title}", "", "Generated by `python docs/atlas.py`. [All figures](index.md)", ""]
        yield _page(paper), "\n".join([*head, *sections])


def _all_figures(figures: Sequence[AtlasFigure]) -> str:
    return _table(
        ["figure", "in the paper", "verdict", "sweep"],
        [
            [f"[`{f.key}`]({_page(f.paper)}#{_anchor(f.figure)})", f"{f.paper}, {f.figure}", _judged(f), _ran(f)]
            for f in figures
        ],
    )


def _num_trends(figures: Sequence[AtlasFigure]) -> int:
    """Count the falls that could be tested: with three seeds at both ends."""
    falls = [(figure, check) for figure in figures for check in figure.checks if check.expect == "falls"]
    return sum(evidence is not None and evidence.change is not None for evidence in (_slope(*fall) for fall in falls))


def _judged(figure: AtlasFigure) -> str:
    """Return the verdict. For a theorem it counts the statements that hold among the decided ones."""
    if not figure.theorem:
        return figure.verdict
    outcomes = _outcomes(figure)
    decided = len(outcomes) - outcomes.count("open")
    still_open = f", {outcomes.count('open')} open" if decided < len(outcomes) else ""
    return f"{figure.verdict}: {outcomes.count('holds')} of {decided} decided statements hold{still_open}"


def _ran(figure: AtlasFigure) -> str:
    return f"`{figure.run.removeprefix('papers/')}`" if figure.run else ""


def _page(paper: str) -> str:
    return f"{paper.lower()}.md"


def _name(figure: AtlasFigure) -> str:
    return load_sweep(figure.run).name


def _slug(path: Path) -> str:
    found = _BEHIND_NUMBER.fullmatch(path.name)
    assert found is not None, path
    return found[1]


@functools.cache
def _states() -> dict[str, Any]:
    """Map each sweep of the store to its state."""
    return {state["sweep"]: state for state in json.loads(call("status", "--json"))}


def _cost(figure: AtlasFigure) -> str:
    state = _states()[_name(figure)]
    return f"{state['ok'] + state['diverged']} trials, {_short(state['trial_hours'])} hours of one process on a busy machine"


@functools.cache
def _curves(run: str) -> Sequence[FittedGroup]:
    """Return the fitted curves of a shipped sweep in the atlas's store, without groups."""
    checked, view = find_sweep(str(find_sweep_file(run)), existing_store(str(STORE)))
    fitted = fit_sweep(checked, existing_store(str(STORE)), view) if checked.sweep.fit else None
    return [curve for curve in fitted.curves if not curve.by and curve.power] if fitted else []


def _fits(figure: AtlasFigure) -> list[str]:
    if not (curves := _curves(figure.run)):
        return []
    sheet = rates_sheet(curves).pick(("metric", "over", "exponent", "preferred", "moved", "trials", "unconverged"))
    cells = [[plain(text).replace("|", r"\|") for text in row] for row in sheet.cells(sheet.used)]
    return [_table([plain(column.heading) for column in sheet.used], cells), plain(" ".join(sheet.remarks)), ""]


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


def change_over_x(
    x_N: Sequence[float], y_N: Sequence[float], seeds: Sequence[Hashable]
) -> tuple[float, float, float] | None:
    """Estimate the change of log y from the smallest to the largest x, without a model of the curve between them.

    Returns:
        The mean over seeds and its 95 % interval (Student's t), or None with fewer than three seeds at both ends.
    """
    x, y = as_curve("x", x_N), as_curve("y", y_N)
    ends = (x == x.min()) | (x == x.max())
    left = list(compress(seeds, ends))
    _, log_y_SG = table_of_seeds(gather(x[ends], y[ends][None], left), left)
    num_seeds = len(log_y_SG)
    if num_seeds < MIN_SEEDS:
        return None
    change_S = log_y_SG[:, -1] - log_y_SG[:, 0]
    half = t_quantile(num_seeds - 1) * float(change_S.std(ddof=1)) / math.sqrt(num_seeds)
    change = float(change_S.mean())
    return change, change - half, change + half


def outcome_of_value(check: Check, value: float | None) -> Outcome:
    """Return whether the result of the query confirms or refutes the statement. None: not measured."""
    if value is None:
        return "open"
    fits = (check.low is None or value >= check.low) and (check.high is None or value <= check.high)
    return "holds" if fits else "fails"


def outcome_of_slope(check: Check, evidence: SlopeEvidence | None) -> Outcome:
    """Return whether a trend confirms or refutes the statement.

    A fall is tested without a model, from the first to the last depth. It is open if another quarter of training
    could undo it. The absence of a fall is tested by equivalence: an interval that merely contains 0 is open.
    """
    if evidence is None:
        return "open"
    if check.expect == "falls":
        if evidence.change is None or (evidence.could_move or 0.0) >= abs(evidence.exponent):
            return "open"
        _, low, high = evidence.change
        return "holds" if high < 0 else "fails" if low > 0 else "open"
    low, high = (math.inf if end is None else end for end in evidence.interval)
    if not (math.isfinite(low) and math.isfinite(high)):
        return "open"
    if check.expect == "flat":
        return "holds" if low > -FLAT and high < FLAT else "fails" if low > 0 or high < 0 else "open"
    return "holds" if high < FLAT else "fails" if low > 0 else "open"


def requirement(check: Check) -> str:
    """Return the requirement as a string, with the source of its limits."""
    ours = " (our limit)" if check.own_limit else ""
    if check.slope:
        equivalence = {"flat": f"interval within {FLAT} of 0", "does not fall": f"interval below {FLAT}"}
        return f"{equivalence[check.expect]} (our limit)" if check.expect in equivalence else check.expect
    if check.low is not None and check.high is not None:
        return (f"{check.low:g}" if check.low == check.high else f"{check.low:g} to {check.high:g}") + ours
    return (f"at least {check.low:g}" if check.low is not None else f"at most {check.high:g}") + ours


def distance(check: Check, value: float | None) -> str:
    """Return how far a value lies inside (+) or outside (-) the nearest limit of ours, as a share of the limit."""
    limits = [limit for limit in (check.low, check.high) if limit]
    if value is None or not check.own_limit or not limits:
        return ""
    gaps = [] if not check.low else [(value - check.low) / abs(check.low)]
    gaps += [] if not check.high else [(check.high - value) / abs(check.high)]
    return f"{min(gaps):+.1%} from our limit"


def judge(figure: AtlasFigure, outcomes: Sequence[Outcome], in_scope: Outcome = "holds") -> Verdict:
    """Derive the verdict from the outcomes of the printed statements, by the rule on the atlas's first page."""
    if not figure.run:
        return "not run"
    if in_scope != "holds":
        return "not comparable"
    if figure.theorem:
        return "theorem, no figure"
    if "holds" in outcomes:
        return "in part" if "fails" in outcomes else "agrees in trend" if figure.size else "agrees"
    return "disagrees" if "fails" in outcomes else "undecided"


def _slope(figure: AtlasFigure, check: Check) -> SlopeEvidence | None:
    """Return the evidence for a metric's trend over depth, or None without a fit."""
    wanted = (check.slope, "depth", check.layer)
    curves = [curve for curve in _curves(figure.run) if (curve.metric, curve.x, curve.asked.layer) == wanted]
    if not curves or (power := curves[0].power) is None:
        return None
    curve = curves[0]
    seeds = replicate_keys(curve.rows)
    x, y = [row["x"] for row in curve.rows], [row["y"] for row in curve.rows]
    change = None if seeds is None else change_over_x(x, y, seeds)
    could_move = None if curve.drift is None or curve.is_stationary else curve.drift.could_move
    return SlopeEvidence(power.exponent, (power.ci_low, power.ci_high), change, could_move)


def measured(figure: AtlasFigure, check: Check) -> tuple[str, Outcome]:
    """Return a check's number in the store as text, and the outcome."""
    if check.slope:
        evidence = _slope(figure, check)
        return _slope_text(evidence), outcome_of_slope(check, evidence)
    if not check.value:
        return "not run", outcome_of_value(check, None)
    value = _single(figure, check.value)
    outcome = outcome_of_value(check, value)
    if outcome == "fails" and check.finished and not _single(figure, check.finished):
        outcome = "open"
    return ", ".join(filter(None, (_short(value), distance(check, value)))), outcome


def _single(figure: AtlasFigure, query: str) -> Any:
    ((value,),) = (row.values() for row in _rows(_name(figure), query))
    return value


def _slope_text(evidence: SlopeEvidence | None) -> str:
    """Describe a trend, as in `change of the log -1.38 (-1.52 to -1.24); exponent 0.48 (0.45 to 0.51), could move 0.05`."""
    if evidence is None:
        return "no fit"
    low, high = evidence.interval
    span = "no interval" if low is None else f"{_digits(low)} to {_digits(high)}"
    moved = "" if evidence.could_move is None else f", could move {_digits(evidence.could_move)}"
    text = f"exponent {_digits(evidence.exponent)} ({span}){moved}"
    if evidence.change is None:
        return text
    change, *ends = map(_digits, evidence.change)
    return f"change of the log {change} ({' to '.join(ends)}); {text}"


def _outcomes(figure: AtlasFigure) -> list[Outcome]:
    """Return the outcomes of the printed statements."""
    return [measured(figure, check)[1] for check in figure.checks if check.source == "printed"]


def verdict(figure: AtlasFigure) -> Verdict:
    """Return the verdict by the rule, from the numbers in the store."""
    outcomes = _outcomes(figure) if figure.run else []
    in_scope = "holds" if figure.scope is None or not figure.run else measured(figure, figure.scope)[1]
    return judge(figure, outcomes, in_scope)


def _checks(figure: AtlasFigure) -> list[str]:
    scope = [] if figure.scope is None else [figure.scope]
    rows = [
        [check.claim, check.source, requirement(check) if check.slope or check.value else "", *measured(figure, check)]
        for check in [*scope, *figure.checks]
    ]
    return [_table(["statement", "source", "holds if", "measured", "outcome"], rows)] if rows else []


def _answer(figure: AtlasFigure) -> list[str]:
    if not figure.query:
        return []
    rows = _rows(_name(figure), figure.query)
    return [_table(list(rows[0]), [[_short(value) for value in row.values()] for row in rows])]


@functools.cache
def _rows(sweep: str, query: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(call("query", query, "--sweep", sweep, "--format", "json"))
    return rows


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _short(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.3g}" if math.isfinite(value) else str(value)
    return str(value)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows)]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    requested = sys.argv[1:]
    IMAGES.mkdir(exist_ok=True)
    for drawn in atlas_figures():
        if drawn.run and (not requested or drawn.key in requested):
            draw_pictures(drawn)
    for page, content in pages():
        (FOLDER / page).write_text(content, encoding="utf-8")
