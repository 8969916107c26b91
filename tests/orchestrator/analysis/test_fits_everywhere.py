"""A sweep's fits are identical on the command line, in a notebook and next to another sweep."""

import base64
import gc
import gzip
import io
import json
import math
import re
import weakref
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

import depthrate
from depthrate.orchestrator.analysis.open_results import declared_by, results_of
from depthrate.orchestrator.api.compare import compare_fits
from depthrate.orchestrator.api.fit import fit_sweep
from depthrate.orchestrator.api.report import explore, read_sweep
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.cli.commands import compare
from depthrate.orchestrator.console.sheet_table import print_fits
from depthrate.orchestrator.explorer.data import fit_rows
from depthrate.orchestrator.explorer.page import explorer_page
from depthrate.orchestrator.export.latex import fits_table
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, check_sweep
from depthrate.orchestrator.report.figure import EndLabel
from depthrate.orchestrator.report.figures.metric_against_x import rate_plots
from depthrate.orchestrator.report.page import render_report
from depthrate.orchestrator.serve.overview import _FITS, _first_rate
from depthrate.orchestrator.sheet.curve_sheets import rates_sheet
from depthrate.orchestrator.sheet.fit_sheet import IntervalValue
from depthrate.orchestrator.sheet.markup import plain, typeset
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


GROUPS = {
    # weight_decay -> metric by depth, the last depth at which a trial has run, state, and the words for it
    0.001: (lambda x: 0.3 * x**-0.5, 21, "power law", "power"),
    0.002: (lambda x: 0.3 * x**-0.7, 21, "power law", "power"),
    0.003: (lambda x: 0.5 * math.exp(-0.12 * x), 21, "another form", "exponential"),
    0.004: (lambda x: 1.0 / x + 0.12, 21, "another form", "power_floor"),
    0.005: (lambda x: 0.2 + 0.1 * math.sin(3 * x), 21, "none", "no form"),
    0.006: (lambda x: 0.3 * x**-0.5, 5, "not yet", "not yet: 3 of 6 depths"),
    0.007: (lambda x: 0.3 * x**-0.5, 13, "not yet", "not yet: 5 of 6 depths"),
    0.008: (lambda x: 0.3 * x**-0.5 if x > 5 else -1.0, 21, "too few", "too few values"),
}
HEADLINE = "2 of 8 groups follow a power law, 2 another form, 1 no form, 1 too few values, 2 not yet"


@pytest.fixture
def live(folder: Store) -> CheckedSweep:
    """A running sweep with groups of all states: power laws, bends, a floor, no law, missing depths, values below 0."""
    grid = {"depth": [2, 3, 5, 8, 13, 21], "weight_decay": [*GROUPS]}
    fit = [{"metric": "nc1", "by": ["weight_decay"]}]
    checked = check_sweep(depthrate.Sweep(**SWEEP | {"grid": grid, "fit": fit})._spec)
    folder.write_format()
    folder.write("attempts/sweep=s/a.json", b"{}")
    contents, rows = {}, {}
    for trial in checked.trials:
        depth, seed, (curve, last, *_) = (
            trial.params["depth"],
            trial.params["seed"],
            GROUPS[trial.params["weight_decay"]],
        )
        if depth <= last:
            nc1 = curve(depth) * (1 + 0.02 * math.sin(7 * depth + 3 * seed))
            contents[trial.trial_id] = {"metrics": [{"step": 100, "layer": depth, "nc1": nc1}], "curves": []}
            rows[trial.trial_id] = {"task": trial.task, "task_version": trial.task_version}
            rows[trial.trial_id] |= {"params": json.dumps(dict(trial.params))}
    commit_rows(folder, "a", contents, fields=rows.__getitem__)
    return checked


def test_all_that_shows_fits_agrees(live: CheckedSweep, folder: Store) -> None:
    """Terminal, report, sent page, home, LaTeX and JSON agree in counts, names and exponents."""
    result = fit_sweep(live, folder, None)
    print_fits(console := Console(file=io.StringIO(), width=400), result)
    terminal = console.file.getvalue()  # type: ignore[attr-defined]
    results = results_of(folder, live.task)
    data, sent = read_sweep(live, folder, results, ["depthrate"]), explore(live, folder, results)
    sheet, table, page, explored = rates_sheet(data.fits), fits_table(data), render_report(data), fit_rows(sent.fits)
    (figure, *_) = rate_plots(data.fits)
    stored = results_of(folder).sql(_FITS)
    home = _first_rate([dict(zip(stored.columns, row, strict=True)) for row in stored.fetchall()])
    pairs = compare_fits(((live, None), (live, None)), folder).pairs

    assert f"nc1 over depth: {HEADLINE}" in terminal and HEADLINE in table
    assert {row["headline"] for row in explored} == {home["headline"]} == {HEADLINE}
    assert sheet.headlines == [f"nc1 over depth: {HEADLINE}"]
    assert "<strong>2 of 8</strong> groups" in page and "Other models are preferred at weight_decay 0.003" in page
    assert [row["state"] for row in explored] == [state for *_, state, _ in GROUPS.values()]
    assert [row["by"]["weight_decay"] for row in explored if row["form"][0]] == [0.003, 0.004]
    assert [row["by"] for row in explored if row["is_steepest"]] == [home["by"]] == [{"weight_decay": 0.002}]
    ends = [mark for facet in figure.facets for mark in facet.marks if isinstance(mark, EndLabel)]
    assert sorted(mark.symbol for mark in ends) == ["dot"] * 2 + ["ring"] * 6
    json_states = {row["by"]: row["state"] for row in result.rows}
    lines = zip(GROUPS.items(), sheet.rows, explored, pairs, strict=True)
    for (decay, (*_, state, words)), record, row, pair in lines:
        (line,) = [line for line in terminal.splitlines() if line.startswith(f" nc1      {decay} ")]
        (cells,) = [line for line in table.splitlines() if line.startswith(f"{decay} &")]
        (rendered,) = re.findall(f"<tr [^>]*><td class='key '>{decay}</td>.*?</tr>", page)
        preferred, exponent = plain(str(record["preferred"])), record["exponent"]
        assert words in f"{exponent} {preferred}" and preferred in line
        assert row["preferred"].startswith(preferred.replace("R^2", "R²"))
        assert all(
            name in rendered and name.replace("_", r"\_") in cells
            for name in preferred.split(" or ")
            if "^" not in name
        )
        assert json_states.get(json.dumps({"weight_decay": decay}), state) == state
        assert row["is_law"] == (pair.stated_common is not None) == (state == "power law")
        if isinstance(exponent, IntervalValue):
            assert f"{exponent.value:.3f} [{exponent.low:.3f}, " in line
            assert f"${exponent.value:.3f}$ & $[{exponent.low:.3f}, " in cells
            assert f"<strong>{exponent.value:.3f}</strong> [{exponent.low:.3f}, " in rendered
            assert row["exponent"] == exponent.value
        else:
            assert plain(str(exponent)) in line and "--- & ---" in cells and typeset(str(exponent)) in rendered
        assert ("no power law" in line) == (state in ("none", "too few", "another form") and "law" not in record)
    steepest = sheet.rows[1]["exponent"]
    assert isinstance(steepest, IntervalValue)
    assert home["exponent"] == steepest.value == max(row["exponent"] for row in explored if row["is_law"])
    assert '"another form": 2' in result.rows[0]["group_states"]
    html = explorer_page("s", sent.packed())
    packed = gzip.decompress(base64.b64decode(re.findall('id="data">(.*?)<', html)[0]))
    assert packed.count(HEADLINE.encode()) == len(GROUPS) and HEADLINE.encode() in packed
