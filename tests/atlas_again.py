"""A tenth of the atlas run again, each week another: `.ci/weekly`; of the figures named, `DEPTHRATE_FIGURES=p3-figure5`.

Not collected with the tests: a figure takes minutes to an hour.
"""

import datetime
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from depthrate.sweeps.atlas import AtlasFigure, atlas_figures
from depthrate.sweeps.load import load_sweep

STORE = Path(__file__).parents[1] / "docs" / "atlas" / "store"
TENTH = 10
SAME = 0.05
"""How far the median of the trials' objectives may move: other machines round otherwise, and trials part after many steps."""


def of_this_week() -> list[AtlasFigure]:
    """Return the figures that the environment names, or else every tenth of those that were run."""
    run = [figure for figure in atlas_figures() if figure.run]
    if named := os.environ.get("DEPTHRATE_FIGURES"):
        return [figure for figure in run if figure.key in named.split(",")]
    return run[datetime.date.today().isocalendar().week % TENTH :: TENTH]


def asked(verb: str, *arguments: str, store: Path) -> Any:
    command = [sys.executable, "-m", "depthrate", verb, *arguments, "--store", str(store)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("figure", of_this_week(), ids=lambda figure: figure.key)
def test_figures_equal_the_atlas(figure, tmp_path):
    sweep = load_sweep(figure.run)
    name = sweep.name
    command = [sys.executable, "-m", "depthrate", "run", figure.run, "--store", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = ("query", "select * from results", "--sweep", name, "--format", "json")
    kept, again = ({row["trial_id"]: row for row in asked(*rows, store=store)} for store in (STORE, tmp_path))
    assert {key: row["status"] for key, row in again.items()} == {key: row["status"] for key, row in kept.items()}
    reached = "objective" if "objective" in next(iter(kept.values())) else "loss"
    before, after = (statistics.median(row[reached] for row in rows.values()) for rows in (kept, again))
    assert after == pytest.approx(before, rel=SAME)
    if not sweep.fit:
        return
    for old, new in zip(*(asked("fit", name, "--json", store=store) for store in (STORE, tmp_path)), strict=True):
        apart = f"{old['metric']} over {old['x']}: {old['exponent']}, and again {new['exponent']}"
        assert max(old["ci_low"], new["ci_low"]) <= min(old["ci_high"], new["ci_high"]), apart
