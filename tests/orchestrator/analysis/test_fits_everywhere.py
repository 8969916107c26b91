"""A sweep's fits are identical on the command line, in a notebook and next to another sweep."""

import gc
import json
import weakref
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import depthrate
from depthrate.orchestrator.analysis.open_results import declared_by, results_of
from depthrate.orchestrator.api.fit import fit_sweep
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.cli.commands import compare
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, check_sweep
from depthrate.storage.files.store import Store
from depthrate.storage.query.results import Results
from depthrate.storage.query.sql_checks import QueryError
from tests.support.tests_rows import commit_rows

SWEEP: dict[str, Any] = {
    "name": "s",
    "task": "collapse",
    "grid": {"depth": [3, 5, 9]},
    "seeds": 3,
    "params": {"arch": "rn1", "samples_per_class": 2, "steps": 100},
    "fit": [{"metric": "nc1"}, {"metric": "nc1", "unconverged": "drop"}],
}


@pytest.fixture
def checked(folder: Store) -> CheckedSweep:
    """A sweep whose trials are committed: their objectives still fall by half a percent, which is half of their gap."""
    checked = check_sweep(depthrate.Sweep(**SWEEP)._spec)
    folder.write_format()
    folder.write("attempts/sweep=s/a.json", b"{}")
    heights = {25: 2.0, 75: 1.005, 100: 1.0}
    curves = [{"step": s, "objective": y, "objective_gap": y - 0.99} for s, y in heights.items()]
    contents, rows = {}, {}
    for trial in checked.trials:
        depth, seed = trial.params["depth"], trial.params["seed"]
        metrics = [{"step": 100, "layer": depth, "nc1": (1 + 0.01 * seed * depth) / depth}]
        contents[trial.trial_id] = {"metrics": metrics, "curves": curves}
        rows[trial.trial_id] = {"task": trial.task, "task_version": trial.task_version}
        rows[trial.trial_id] |= {"params": json.dumps(dict(trial.params))}
    commit_rows(folder, "a", contents, fields=rows.__getitem__)
    return checked


def kept(store: Store) -> list[Any]:
    query = "select n_unconverged, n_points, exponent, bound_ratio from fits where model = 'power' order by all"
    return results_of(store).sql(query).fetchall()


def test_notebook_stores_the_command_line_fits(checked: CheckedSweep, folder: Store) -> None:
    fit_sweep(checked, folder, None)
    told = kept(folder)
    assert [(unconverged, points) for unconverged, points, *_ in told] == [(9, 9)], "the other curve has no trial left"
    assert told[0][-1] is not None, "there is a theorem"
    depthrate.Sweep(**SWEEP).fit(folder.url)
    assert kept(folder) == told


def test_figure_excludes_what_the_fit_excludes(checked: CheckedSweep, folder: Store, tmp_path: Path) -> None:
    assert "nc1 against depth" in repr(depthrate.open(folder.url).plot("nc1"))
    depthrate.open(folder.url).plot("nc1").save(tmp_path / "nc1.PNG")
    assert (tmp_path / "nc1.PNG").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"nc1.gif: the suffix must be .svg, .pdf, .png or .csv"):
        depthrate.open(folder.url).plot("nc1").save(tmp_path / "nc1.gif")
    with pytest.raises(QueryError, match="no committed trial has a positive nc1"):
        depthrate.open(folder.url).plot("nc1", unconverged="drop")


def test_sweeps_compared_by_their_fits(checked: CheckedSweep, folder: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "find_sweep", lambda given, store: (checked, None))
    told = json.loads(CliRunner().invoke(app, ["compare", "s", "s", "--json", "--store", folder.url]).stdout)
    kept, dropped = [(fit["first"], fit["second"]) for fit in told["fits"]]
    assert kept[0] == kept[1] and kept[0]["n_points"] == 9 and dropped == (None, None), "each with its like"


def test_results_show_the_judgement_of_the_fits(checked: CheckedSweep, folder: Store) -> None:
    for results in (results_of(folder), results_of(folder).for_sweep("s")):
        rows = results.sql("select judgement, count(*) from results group by all").fetchall()
        assert rows == [("unconverged", 9)]
    (_, dropping) = fit_sweep(checked, folder, None).curves
    assert dropping.excluded == {"unconverged": 9}


def test_only_queries_of_judgements_judge(checked: CheckedSweep, folder: Store) -> None:
    asked: list[int] = []

    def judge(results: Results, sweeps: Iterable[Collection[str]]) -> dict[str, str]:
        asked.append(sum(map(len, sweeps)))
        return {}

    columns, added, _ = declared_by()
    results = Results(folder, columns, added, judge)
    assert "judgement" in results.sql("select * from results limit 0").columns
    results.sql("select trial_id, depth, nc1, status from results order by nc1").fetchall()
    assert not asked
    assert results.sql("select * from results").df()["judgement"].isna().all() and asked == [9]


def test_judged_results_are_freed_without_a_collection(checked: CheckedSweep, folder: Store) -> None:
    """A server reads a running sweep again and again, and commands collect rarely."""
    results = results_of(folder, checked.task)
    members = results.only(checked.trials.ids, checked.sweep.name).in_memory(checked.trials.ids)
    assert members.sql("select judgement from results").fetchall()
    references = [weakref.ref(results), weakref.ref(members)]
    gc.collect()
    gc.disable()
    try:
        del results, members
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()
