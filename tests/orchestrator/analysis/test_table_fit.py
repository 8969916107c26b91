"""Fits in several variables of any table and of a sweep: rows, words, commands, refusals."""

import json
import math
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import depthrate
from depthrate.orchestrator.analysis.fitted_group import FittedGroup
from depthrate.orchestrator.analysis.judged_groups import adequate_models
from depthrate.orchestrator.report.figure import Range, Series
from depthrate.orchestrator.sheet.markup import plain
from depthrate.orchestrator.sheet.value_sheets import law_text, table_fields
from depthrate.sweeps.spec import SweepSpec, check_fits, fit_request
from depthrate.tasks.fits import LOSSES, _warn_of_former_name
from depthrate.tasks.fits.models import FORMS, MODELS
from depthrate.tasks.fits.points import FitError
from depthrate.tasks.fits.rates import fit_rates
from depthrate.tasks.loading import load_task
from tests.support.here import TINY, printed, refused


def table(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = [(d, w, s) for d in (2, 3, 5, 8, 13) for w in (16, 32, 64, 128) for s in range(4)]
    frame = pd.DataFrame(rows, columns=["depth", "width", "seed"])
    clean = 2.0 * (frame["depth"] - 1.0) ** -0.5 * frame["width"] ** -0.3
    return frame.assign(loss=clean * np.exp(rng.normal(0, 0.05, len(frame))))


def test_a_table_is_fitted_with_words() -> None:
    found = depthrate.fit(table(), y="loss", x=["depth - 1", "width"], over="seed")
    (fit,) = found.preferred
    assert fit.form == "power" and fit.n_units == 4
    assert fit.exponents == pytest.approx((0.5, 0.3), abs=0.03)
    assert plain(law_text(fit)).endswith(f"(depth - 1)^{-fit.exponents[0]:.2f} width^{-fit.exponents[1]:.2f}")
    assert r"\begin{tabular}" in found.latex() and f"${fit.exponents[1]:.3f}$" in found.latex()
    assert "<table" in found._repr_html_()
    assert [facet.title for facet in found.plot().figure.facets] == [
        "loss, power",
        "residuals, power",
        "residuals, power_floor",
        "local exponent in depth − 1",
        "local exponent in width",
    ]
    counted = depthrate.fit(table(), y="loss", x=["depth", "width"], over="seed")
    assert any(
        text.startswith("with depth - 1 instead of depth, the exponent of depth changes by -")
        for text in counted.words()
    )


def test_former_names_of_forms_are_read_with_a_note() -> None:
    _warn_of_former_name.cache_clear()
    with pytest.warns(FutureWarning, match="the form 'product' is now called 'power'"):
        found = depthrate.fit(table(), y="loss", x=["depth", "width"], over="seed", forms=["product", "proportional"])
    assert [fit.form for fit in found.surfaces.fits] == ["power", "proportional"]
    request = fit_request({"metric": "nc1", "x": ["depth", "width"], "model": ["sum", "power"]})
    with pytest.warns(FutureWarning, match="the form 'sum' is now called 'power_floor'"):
        assert request.forms == ("power_floor", "power")


def test_a_command_notes_a_former_name_once(tmp_path: Path) -> None:
    path, store = tmp_path / "tiny.yaml", str(tmp_path / "store")
    path.write_text(yaml.safe_dump(TINY | {"grid": {"depth": [2, 3, 4]}}))
    printed("run", path, "--store", store, "--workers", 1)
    command = [sys.executable, "-m", "depthrate", "fit", "tiny", "--metric", "nc1"]
    done = subprocess.run(
        [*command, "--model", "product", "--store", store], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("the form 'product' is now called 'power'") == 1 and "power: nc1 =" in done.stdout


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("form", FORMS)
def test_one_variable_has_all_forms_and_all_losses(form: str, loss: str, recwarn: pytest.WarningsRecorder) -> None:
    huber = 0.05 if loss == "huber" else None
    request = fit_request({"metric": "nc1", "x": "depth", "model": form, "loss": loss, "huber": huber})
    check_fits(SweepSpec("one", "collapse", fit=(request,)), load_task("collapse"))
    frame, value = table().assign(loss=lambda rows: rows["loss"] * rows["width"] ** 0.3), FORMS[form]
    found = depthrate.fit(frame, "loss", "depth", "seed", forms=form, loss=loss, huber=huber)
    (fit,) = found.surfaces.fits
    assert fit.form == form and (fit.intervals[0] is not None) == value.has_exponents and not recwarn.list
    assert fit.predict([[3.0]]) == pytest.approx(np.exp(np.log(frame.query("depth == 3")["loss"]).mean()), rel=0.5)
    assert f"`{form}`" in (depthrate.fit.__doc__ or "")
    (row,) = found.rows()
    (fields,) = table_fields(found)["fits"]
    assert all((facts["loss"], facts["huber"]) == (loss, huber) for facts in (row, fields))
    (curve,) = fit_rates(
        frame["depth"], frame["loss"], models=[form], seeds=frame["seed"].tolist(), loss=loss, huber=huber
    )
    assert (fit.exponent, fit.objective) == pytest.approx((curve.exponent, curve.objective))
    assert (curve.row()["loss_function"], curve.row()["huber"]) == (loss, huber)


@pytest.mark.parametrize("truth", ["power", "log", "floor", "bent"])
def test_a_table_and_a_sweep_prefer_the_same_forms(truth: str) -> None:
    """The same values have one answer, whether `depthrate.fit` or a sweep's request fits them."""
    rng, depths = np.random.default_rng(1), [2, 3, 5, 8, 13, 21, 34]
    rows = [{"depth": d, "seed": s} for d in depths for s in range(5)]
    of_depth = {
        "power": lambda d: d**-0.5,
        "log": lambda d: d**-0.5 * np.log(d) ** 2,
        "floor": lambda d: 0.3 + d**-1.0,
        "bent": lambda d: min(d, 8) ** -0.2 * max(d, 8) ** -1.0,
    }[truth]
    frame = pd.DataFrame(rows).assign(loss=[of_depth(row["depth"]) * np.exp(rng.normal(0, 0.05)) for row in rows])
    found = depthrate.fit(frame, "loss", "depth", "seed", forms=list(MODELS))
    values = frame.rename(columns={"depth": "x", "loss": "y"}).assign(trial_id=[str(n) for n in range(len(frame))])
    fits = fit_rates(frame["depth"], frame["loss"], seeds=frame["seed"].tolist())
    curve = FittedGroup("loss", "depth", {}, values.to_dict("records"), fits, {})
    of_sweep = curve.preference
    assert (found.preference.names, found.preference.state) == (of_sweep.names, of_sweep.state)
    assert (found.preference.reason, found.preference.judges) == (of_sweep.reason, of_sweep.judges)
    assert found.preference.is_another_possible == of_sweep.is_another_possible
    assert [row["adequate"] for row in found.rows()] == [fit in adequate_models(curve) for fit in fits]


@pytest.mark.parametrize("form", FORMS)
def test_a_formula_is_the_fit(form: str) -> None:
    """The printed formula, computed as it stands, is the prediction up to its digits."""
    fit = depthrate.fit(table(), "loss", "depth", "seed", forms=form).surfaces.fits[0]
    printed = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", plain(law_text(fit))).replace("^", "**")
    names = {"log": math.log, "exp": math.exp}
    for depth in (2.0, 5.0, 13.0):
        assert eval(printed, {"depth": depth, **names}) == pytest.approx(fit.predict([[depth]])[0], rel=0.03), printed


def test_a_form_needs_more_values_than_parameters() -> None:
    frame = table().query("depth in (2, 5, 13)")
    assert [fit.form for fit in depthrate.fit(frame, "loss", "depth", "seed").surfaces.fits] == ["power"]
    with pytest.raises(FitError, match="3 values of depth, power_floor needs at least 4"):
        depthrate.fit(frame, "loss", "depth", "seed", forms="power_floor")


def test_forms_are_a_name_or_several_each_once() -> None:
    alone = depthrate.fit(table(), "loss", ["depth", "width"], "seed", forms="power")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        twice = depthrate.fit(table(), "loss", ["depth", "width"], "seed", forms=["power", "product"])
    assert alone.rows() == twice.rows()
    with pytest.raises(FitError, match="forms is empty, expected some of power, "):
        depthrate.fit(table(), "loss", "depth", forms=[])


def test_squares_of_y_cause_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    depthrate.fit(table(), "loss", "depth", "seed", forms=["power", "power_floor"], loss="y")
    assert not recwarn.list


def test_rows_that_cannot_be_used_are_counted() -> None:
    frame = table()
    frame.loc[0, "loss"], frame.loc[1, "width"], frame.loc[2, "loss"] = np.nan, 0, -1.0
    found = depthrate.fit(frame, y="loss", x=["depth", "width"])
    assert found.omitted == 3 and "3 rows left out: a value is missing or not positive" in found.words()
    assert {row["omitted"] for row in found.rows()} == {3}


def test_rows_that_occur_twice_are_said() -> None:
    frame = table()
    assert not any("repeat" in text for text in depthrate.fit(frame, y="loss", x=["depth", "width"]).words())
    for over in (None, "seed"):
        found = depthrate.fit(pd.concat([frame, frame]), y="loss", x=["depth", "width"], over=over)
        assert any(text.startswith("80 of 160 rows repeat an earlier row") for text in found.words())


def test_the_command_reads_tables(tmp_path: Path) -> None:
    path = tmp_path / "losses.csv"
    table().to_csv(path, index=False)
    text = printed("fit", str(path), "--y", "loss", "--x", "depth - 1,width", "--over", "seed")
    assert "power: loss =" in text and "80 values of 4 units, intervals by t and profile" in text
    fields = json.loads(printed("fit", str(path), "--y", "loss", "--x", "depth,width", "--json"))
    assert {row["form"] for row in fields["rows"]} == {"power", "power_floor"} and fields["inflation"] == pytest.approx(
        1
    )
    table().to_parquet(tmp_path / "losses.parquet")
    assert "power" in printed("fit", str(tmp_path / "losses.parquet"), "--y", "loss", "--x", "depth")
    assert "no column 'widht' (did you mean 'width'?)" in refused("fit", str(path), "--y", "loss", "--x", "depth,widht")
    assert "expected one of .csv" in refused("fit", str(tmp_path / "x.txt"), "--y", "loss")
    assert "cannot be read" in refused("fit", str(tmp_path / "none.csv"), "--y", "loss")
    assert "is not an arithmetic expression" in refused("fit", str(path), "--y", "loss", "--x", "depth,import os")


def test_infinite_numbers_are_null_in_json(tmp_path: Path) -> None:
    frame = table().assign(width=lambda rows: 16 * rows["depth"] * (1 + 1e-6 * rows["width"]))
    frame.to_csv(tmp_path / "losses.csv", index=False)
    words = ("fit", str(tmp_path / "losses.csv"), "--y", "loss", "--x", "depth,width", "--over", "seed")
    (power, _) = json.loads(printed(*words, "--json"))["fits"]
    assert None in [*power["coefficients"], *power["coefficient_intervals"][0]]
    assert "depth and width are confounded" in printed(*words)


def test_wrong_tables_are_refused() -> None:
    frame = table().assign(name="a")
    for options, message in (
        ({"y": "name", "x": ["depth"]}, "column 'name' is not numeric"),
        ({"y": "loss", "x": ["depth"], "over": "sed"}, "no column 'sed'"),
        ({"y": "loss", "x": ["depth", "width", "seed + 1", "depth + width"]}, "at most 3 names"),
    ):
        with pytest.raises(FitError, match=message):
            depthrate.fit(frame, **options)


def test_a_sweep_fits_several_variables(tmp_path: Path) -> None:
    spec = {
        "name": "grid",
        "task": "collapse",
        "params": {"arch": "rn1", "samples_per_class": 2, "steps": 20},
        "grid": {"depth": [2, 3, 5], "width": [8, 16, 32]},
        "seeds": 3,
        "fit": [{"metric": "nc1", "x": ["depth", "width"]}],
    }
    path, store = tmp_path / "grid.yaml", str(tmp_path / "store")
    path.write_text(yaml.safe_dump(spec))
    assert "confounded" not in printed("plan", str(path), "--store", store)
    assert "power: nc1 =" in printed("run", str(path), "--store", store, "--workers", "1")
    rows = json.loads(printed("query", "select * from fits", "--store", store, "--json"))
    assert {(row["model"], row["x"]) for row in rows} == {
        (f, x) for f in ("power", "power_floor") for x in ("depth", "width")
    }
    assert all(row["variables"] == "depth, width" and row["n_seeds"] == 3 for row in rows)
    printed("report", "grid", "--store", store, "-o", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Several variables</h2>" in page and "NC1 over depth, width" in page
    assert re.search(r"power: nc1 = \S+ depth<sup>.\d\.\d\d</sup> width<sup>", page)
    again = printed("fit", "grid", "--metric", "nc1", "--x", "depth - 1,width", "--store", store)
    assert "(depth - 1)^" in again and "not saved" in again
    narrow = spec | {"name": "narrow", "grid": {"depth": [2, 3, 5]}, "derive": {"width": "8 * depth"}}
    (tmp_path / "narrow.yaml").write_text(yaml.safe_dump(narrow))
    plan = printed("plan", str(tmp_path / "narrow.yaml"), "--store", store)
    assert "depth and width are confounded in this grid (one follows from the others)" in " ".join(plan.split())
    for change, message in (
        ({"x": ["depth", "width", "lr", "steps"]}, "expected at most 3 different variables"),
        ({"x": ["depth", "depth"]}, "expected at most 3 different variables"),
        ({"x": ["depth", "width"], "x_min": 3}, "x_min and target apply to one variable without model"),
        ({"x": ["depth", "widht"]}, "did you mean 'width'"),
    ):
        path.write_text(yaml.safe_dump(spec | {"fit": [{"metric": "nc1"} | change]}))
        assert message in refused("plan", str(path), "--store", store)


def test_a_sweep_fits_the_forms_it_names(tmp_path: Path) -> None:
    bound = "1 / (8 / depth + 4 * log(depth) ** 2 / (depth * width))"
    fits = [{"metric": "nc1", "x": bound, "model": "proportional"}]
    fits += [
        {"metric": "nc1", "x": ["depth", "width"], "model": ["power", "power_log2"], "loss": "huber", "huber": 0.1}
    ]
    spec = {
        "name": "forms",
        "task": "collapse",
        "params": {"arch": "rn1", "samples_per_class": 2, "steps": 20},
        "grid": {"depth": [2, 3, 5], "width": [8, 16, 32]},
        "seeds": 3,
        "fit": fits,
    }
    path, store = tmp_path / "forms.yaml", str(tmp_path / "store")
    path.write_text(yaml.safe_dump(spec))
    text = printed("run", str(path), "--store", store, "--workers", "1")
    assert "proportional: nc1 =" in text and "c in [" in text and "power_log2: nc1 =" in text and "loss huber" in text
    assert "corrected for 8 tests (Holm)" in text, "of all fits of the sweep"
    rows = json.loads(printed("query", "select * from fits where model = 'proportional'", "--store", store, "--json"))
    assert [(row["x"], row["exponent"], row["ci_low"]) for row in rows] == [(bound, 1.0, None)]
    for change, message in (
        ({"model": "powr"}, "did you mean 'power'"),
        ({"model": "exponential"}, "form 'exponential' takes one variable, and there are 2: expected some of power, "),
        ({"loss": "l1"}, "expected one of log, y, huber"),
        ({"loss": "huber"}, "huber is a loss with a threshold"),
        ({"x": "depth", "model": "power_floor", "target": 0.1}, "x_min and target apply to one variable"),
    ):
        path.write_text(yaml.safe_dump(spec | {"fit": [{"metric": "nc1", "x": ["depth", "width"]} | change]}))
        assert message in refused("plan", str(path), "--store", store)


def test_contours_residuals_and_local_exponents_are_those_of_the_values() -> None:
    rng = np.random.default_rng(0)
    frame = table().assign(loss=lambda rows: 2 * rows["depth"] ** -0.5 * rows["width"] ** -0.3)
    frame["loss"] *= np.exp(rng.normal(0, 0.02, 4)[frame["seed"]] + rng.normal(0, 1e-3, len(frame)))
    figure = depthrate.fit(frame, "loss", ["depth", "width"], "seed", forms=["power"]).plot().figure
    contours, residuals, in_depth, in_width = figure.facets
    lines = [mark for mark in contours.marks if isinstance(mark, Series) and mark.width]
    assert len(lines) >= 5
    for line in lines:
        x, y = np.array(line.x), np.array(line.y)
        predicted = 2 * x**-0.5 * y**-0.3
        assert predicted[np.isfinite(y)] == pytest.approx(float(line.name), rel=0.02), "a line of equal values"
    dots = [mark for mark in contours.marks if isinstance(mark, Series) and not mark.width]
    assert sum(len(mark.x) for mark in dots) == 20
    values = [value for mark in residuals.marks for value in mark.y]
    assert np.abs(values).max() < 3e-3
    for facet, exponent in ((in_depth, 0.5), (in_width, 0.3)):
        local = [mark for mark in facet.marks if isinstance(mark, Series) and mark.symbol]
        assert all(np.array(mark.y) == pytest.approx(exponent, abs=0.01) for mark in local)
        bands = [mark for mark in facet.marks if isinstance(mark, Range)]
        covered = [low <= exponent <= high for band in bands for low, high in zip(band.low, band.high, strict=True)]
        assert np.mean(covered) > 0.8
    apart = pd.DataFrame({"x": np.arange(2.0, 30), "z": rng.uniform(1, 9, 28)}).assign(y=lambda rows: rows["x"] ** -1)
    with pytest.raises(FitError, match="no two values of x, z differ in one variable only"):
        depthrate.fit(apart, "y", ["x", "z"], forms=["power"]).plot()


def test_bands_of_local_exponents_are_over_the_means_of_units() -> None:
    frame = table()
    twice = pd.concat([frame.assign(loss=frame["loss"] * factor) for factor in (1.2, 1 / 1.2)])
    bands = [
        [mark for facet in fit.plot().figure.facets for mark in facet.marks if isinstance(mark, Range)]
        for fit in (depthrate.fit(rows, "loss", ["depth", "width"], "seed", forms=["power"]) for rows in (frame, twice))
    ]
    assert bands[0]
    for one, two in zip(*bands, strict=True):
        assert one.low == pytest.approx(two.low) and one.high == pytest.approx(two.high)


def test_a_unit_without_neighbours_has_no_band(recwarn: pytest.WarningsRecorder) -> None:
    frame = table().query("not (depth == 3 and width == 16 and seed > 0)")
    figure = depthrate.fit(frame, "loss", ["depth", "width"], "seed", forms=["power"]).plot().figure
    band, *_ = [mark for mark in figure.facets[2].marks if isinstance(mark, Range)]
    assert np.isnan(band.low).tolist() == [True, True, False, False] and not recwarn.list
