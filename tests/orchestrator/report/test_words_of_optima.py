"""No output calls trials stationary, converged or optimal unless their solver reports it."""

import io
import itertools
import re
from dataclasses import replace

import pytest
from rich.console import Console

from depthrate.orchestrator.analysis.convergence import Convergence
from depthrate.orchestrator.analysis.fit_requests import Fits
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.console.sheet_table import print_fits
from depthrate.sweeps.spec import FitRequest
from depthrate.tasks.fits.rates import BoundCheck, fit_many
from tests.orchestrator.report.test_report import evidence_of, remarks_of, sentences_of, words

ROWS = [
    {"x": float(x), "y": 0.3 * x**-0.5 * (1 + 0.01 * seed), "seed": seed, "trial_id": f"{x}-{seed}", "draw": seed}
    for x, seed in itertools.product((2, 3, 5, 8), range(3))
]
ALL = frozenset(str(row["trial_id"]) for row in ROWS)
CLAIM = re.compile(
    r"(?<!un)(?<!not )\b(stationary|converged|at the optimum|theorem's bound|upper bound)", re.IGNORECASE
)


@pytest.fixture(scope="module")
def curve():
    x, y, seeds = ([row[name] for row in ROWS] for name in ("x", "y", "seed"))
    (fits,) = fit_many(x, [y], seeds=seeds, num_resamples=50)
    given = {"request": FitRequest("nc1"), "judged": len(ROWS), "bound": BoundCheck(0.4, -0.05, -0.1, -0.01)}
    return FittedGroup("nc1", "depth", {}, ROWS, fits, {}, **given)


def printed(curve):
    print_fits(console := Console(file=io.StringIO(), width=300), Fits(curves=[curve]))
    return console.file.getvalue()


@pytest.mark.parametrize("stationary", [frozenset(), frozenset(list(ALL)[:-1])], ids=["none", "all but one"])
def test_nonstationary_trials_are_named(curve, stationary):
    unfinished = replace(curve, stationary=stationary, unconverged=ALL - stationary)
    table = printed(unfinished)
    assert not CLAIM.search(table), table
    assert f"{len(ALL - stationary)} of 12 trials are unconverged" in table
    assert ("describe training at this budget, not an optimum" in table) == (not stationary)
    said = " ".join(sentences_of(unfinished)) + words(evidence_of(unfinished)) + remarks_of(unfinished)
    without = re.sub(r"The theorem's bound holds .*? at this budget\.", "", said)
    assert without != said and not CLAIM.search(without), without


def test_constant_objective_is_no_optimum(curve):
    table = printed(curve)
    assert "at this budget, not an optimum: all objectives have come to rest" in table and not CLAIM.search(table)


def test_stationary_trials_meet_the_bound(curve):
    done = replace(curve, stationary=ALL)
    assert "Stationary: all 12 trials, by their solver's tolerance" in printed(done)
    assert "theorem's bound" in printed(done) and "a of the ratio to the bound" in evidence_of(done)


@pytest.mark.parametrize(
    ("moved", "stationary", "is_converged"),
    [(0.0, False, False), (0.5, True, True), (0.0, None, True), (0.5, None, False)],
)
def test_solver_outranks_the_objective(moved, stationary, is_converged):
    assert Convergence(moved, 10.0, stationary).is_converged is is_converged
