"""Two sweeps in one report: common figures, each trial once in the tables, common facts named."""

import re
from dataclasses import replace

import pytest
from scipy import stats

from depthrate.orchestrator.analysis.compare import pair_up
from depthrate.orchestrator.analysis.fitted_curve import FittedCurve
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.latex import fits_table
from depthrate.orchestrator.report.curve_groups import SWEEP_COLUMN, group_trials
from depthrate.orchestrator.report.figures.infinite_depth import limit_plots
from depthrate.orchestrator.report.figures.last_layer import matrix_plots
from depthrate.orchestrator.report.figures.metric_against_x import rate_plots
from depthrate.orchestrator.report.figures.training import curve_plots
from depthrate.orchestrator.report.fit_tables import comparison_tables
from depthrate.orchestrator.report.overlay import merge_reports
from depthrate.orchestrator.report.page import render_report
from depthrate.orchestrator.report.report_data import ReportData
from depthrate.tasks.fits.rates import fit_rates
from tests.support.report_data import make_data, plain_data


def steeper() -> ReportData:
    """A sweep that shares its first trials with the plain one, with steeper fits."""
    data = make_data(name="steeper", depths=(2, 3, 5, 8))
    return replace(data, trials=data.trials.assign(width=32), fits=[steeper_curve(curve) for curve in data.fits])


def steeper_curve(curve: FittedCurve) -> FittedCurve:
    rows = [row | {"y": row["y"] / row["x"]} for row in curve.rows]
    fits = fit_rates([row["x"] for row in rows], [row["y"] for row in rows], models=("power",))
    return replace(curve, rows=rows, fits=fits)


@pytest.mark.slow
def test_curves_carry_their_sweep_and_shared_trials_stand_in_both() -> None:
    first, second = plain_data(), steeper()
    both = merge_reports(first, second)
    assert both.name == "quickstart and steeper" and both.parts == (first, second)
    assert [curve.by[SWEEP_COLUMN] for curve in both.fits[:2]] == ["quickstart", "steeper"]
    names = [trace["name"] for trace in rate_plots(both.fits)[0].traces if trace.get("meta") == "fit"]
    assert [name.split(":")[0] for name in names] == ["quickstart", "steeper"]
    sizes = {key: part["trial_id"].nunique() for key, part in group_trials(both.trials, both.results, [SWEEP_COLUMN])}
    assert sizes == {("quickstart",): 15, ("steeper",): 12}
    keys = [trace["name"] for trace in curve_plots(both)[0].traces if trace["showlegend"]]
    assert {"2", "13", "sweep = quickstart", "sweep = steeper"} <= set(keys)


@pytest.mark.slow
def test_two_sweeps_of_four_groups_have_a_hue_a_group_and_a_line_a_sweep() -> None:
    by = {"weight_decay": [0.001, 0.002, 0.005, 0.01]}
    both = merge_reports(make_data(by=by), make_data(by=by, name="other"))
    figure, residuals = rate_plots(both.fits)[:2]
    fits = [trace for trace in figure.traces if trace.get("meta") == "fit"]
    looks = {trace["name"].split(":")[0]: (trace["line"]["color"], trace["line"]["dash"]) for trace in fits}
    assert len(looks) == 8 == len(set(looks.values()))
    assert list(looks)[:2] == ["quickstart, 0.001", "quickstart, 0.002"] and list(looks)[4] == "other, 0.001"
    assert figure.layout["legend"]["title"]["text"] == "sweep, weight_decay"
    colours = {name.partition(", ")[2]: set() for name in looks}
    for name, (colour, dash) in looks.items():
        colours[name.partition(", ")[2]].add(colour)
        assert dash == ("solid" if "quickstart" in name else "dash")
    assert [len(own) for own in colours.values()] == [1, 1, 1, 1] and len(set.union(*colours.values())) == 4
    means = [t for t in residuals.traces if t["mode"] == "lines+markers"]
    assert len({(t["line"]["color"], t["marker"]["symbol"]) for t in means}) == 8
    assert "Diamonds and dashes: second sweep" in render_report(both)
    plain = [t["line"] for t in rate_plots(make_data(by=by).fits)[0].traces if t.get("meta") == "fit"]
    assert {line["dash"] for line in plain} == {"solid"} and len({line["color"] for line in plain}) == 4


@pytest.mark.slow
def test_both_sweeps_show_the_same_groups_and_the_objective_shows_all() -> None:
    by = {"weight_decay": [0.001, 0.002, 0.005, 0.01]}
    both = merge_reports(make_data(by=by), make_data(by=by, name="narrow"))
    (objective,) = limit_plots(both)
    names = [trace["name"] for trace in objective.traces if trace["legendgroup"][0] == "o" and trace["showlegend"]]
    assert names == [f"{sweep}, {value}" for sweep in ("quickstart", "narrow") for value in by["weight_decay"]]
    assert len({str(trace["line"]) for trace in objective.traces if trace["name"] in names}) == 8
    dashes = [trace["name"] for trace in curve_plots(both)[0].traces if trace["legendgroup"] == "dashes"]
    ends = [f"weight_decay = {value}" for value in (0.001, 0.01)]
    assert dashes == [f"sweep = {sweep}, {end}" for sweep in ("quickstart", "narrow") for end in ends]
    depths = [plot.title.partition("sweep = ")[2] for plot in matrix_plots(both)]
    assert depths == [f"{sweep}, depth = {depth}" for sweep in ("quickstart", "narrow") for depth in (2, 13)]
    many = merge_reports(
        make_data(by={"lr": list(range(1, 9))}), make_data(by={"lr": list(range(1, 9))}, name="narrow")
    )
    fits = [trace["name"].split(":")[0] for trace in rate_plots(many.fits)[0].traces if trace.get("meta") == "fit"]
    assert fits == [f"{sweep}, {lr}" for sweep in ("quickstart", "narrow") for lr in (1, 2, 4, 5, 7, 8)]


def test_what_differs_and_the_exponents_stand_side_by_side() -> None:
    both = merge_reports(plain_data(), steeper())
    table = comparison_tables(both)
    assert "Common trials: 12." in table
    assert "<td>width</td><td>64</td><td>32</td>" in table
    assert len(both.pairs) == len(plain_data().fits) and both.pairs[0].common is not None
    assert both.pairs[0].common.p_common < 0.001 and "&lt; 0.001" in table
    assert fits_table(both).count("& steeper &") == len(plain_data().fits)


def test_exponents_of_two_sweeps_are_compared_over_whole_seeds() -> None:
    def curve(mean: float, slopes: list[float]) -> FittedCurve:
        values = [(x, seed, x ** -(mean + slope)) for seed, slope in enumerate(slopes) for x in (2, 3, 5, 8, 13)]
        rows = [{"x": x, "y": y, "seed": seed, "draw": seed, "trial_id": f"{x} {seed}"} for x, seed, y in values]
        fits = fit_rates([x for x, _, _ in values], [y for _, _, y in values], models=("power",))
        return FittedCurve("nc1", "depth", {}, rows, fits, {})

    own = [-0.3, -0.15, 0.0, 0.15, 0.3]
    pairs = pair_up([curve(0.9, own)], [curve(1.0, own[::-1])]), pair_up([curve(0.9, own)], [curve(1.0, own)])
    (apart,), (alike,) = pairs
    differences = [-0.1 + 2 * slope for slope in own]
    assert apart.common is not None and alike.common is not None
    assert apart.common.p_common == pytest.approx(stats.ttest_1samp(differences, 0).pvalue), (
        "each seed has its own exponent"
    )
    assert alike.common.p_common < 1e-6, "and the same share of it in both"


@pytest.mark.slow
def test_the_page_has_each_trial_once_and_both_commands() -> None:
    page = render_report(
        merge_reports(plain_data(), replace(steeper(), commands=["depthrate run steeper.yaml", "report"]))
    )
    page = re.sub("<script.*?</script>", "", page, flags=re.DOTALL)
    rows = re.findall('<tr id="trial-([^"]*)"', page)
    assert len(rows) == len(set(rows)) == 15
    assert "12 trials listed under quickstart." in page
    runs = "depthrate run quickstart.yaml\ndepthrate run steeper.yaml\n"
    assert f"{runs}depthrate report quickstart -o report.html --overlay steeper" in page
    assert page.count("trials planned.") == 2


def test_what_cannot_be_overlaid_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot overlay 'quickstart' on itself"):
        merge_reports(plain_data(), plain_data())
    named = replace(steeper(), trials=steeper().trials.assign(sweep=1))
    with pytest.raises(UsageError, match="sweep 'steeper' has a parameter 'sweep'"):
        merge_reports(plain_data(), named)
