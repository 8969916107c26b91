"""The explorer: its data are those of the store, its fits those of `depthrate fit`; a browser filters and restores it."""

import gzip
import io
import json
import math
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import depthrate
from depthrate.orchestrator.analysis.fit_requests import fit_requests
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.api.fit import fit_sweep
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.explorer.columns import MAX_VALUES, Column, metric_column, pack, parameter_column
from depthrate.orchestrator.explorer.data import SweepData
from depthrate.orchestrator.explorer.page import SCRIPT, explorer_page
from depthrate.orchestrator.launch.launch_plan import CheckedSweep, check_sweep
from depthrate.orchestrator.monitor.status import sweep_status
from depthrate.orchestrator.report.figures.surfaces import surface_figure
from depthrate.orchestrator.report.sheet_html import sheet_panel
from depthrate.orchestrator.sheet.value_sheets import surface_sheet
from depthrate.storage.catalog.fits import ADDED_LATER, parse_fits
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import FITS
from depthrate.sweeps.spec import FitRequest
from depthrate.sweeps.trial import Trial, Trials
from tests.support.browser import Browser, browser
from tests.support.tests_rows import commit_rows

MARKUP = "<img src=x onerror=alert(1)>"
ENDING = "</script><script>alert(2)</script>"
TURNED = "abc\u202edef"
SWEEP: dict[str, Any] = {
    "name": "s",
    "task": "collapse",
    "grid": {"depth": [2, 3, 5, 9], "width": [8, 16]},
    "seeds": 3,
    "params": {"arch": "rn1", "samples_per_class": 2, "steps": 100},
    "fit": [{"metric": "nc1", "by": ["width"]}],
}


def commit(
    store: Store,
    checked: CheckedSweep,
    trials: list[Trial],
    values: dict[str, Any] | None = None,
    attempt_id: str = "a",
) -> None:
    """Commit trials whose NC1 falls like a power of depth, with a curve and all layers."""
    store.write_format()
    store.write("attempts/sweep=s/a.json", b"{}")
    contents, fields = {}, {}
    for trial in trials:
        depth, width, seed = (trial.params.get(name, 1) for name in ("depth", "width", "seed"))
        exponent = (0.5 if width == 8 else 0.8) + 0.01 * seed
        nc1 = (values or {}).get(trial.trial_id, depth**-exponent)
        layers = [{"step": 100, "layer": layer, "nc1": 1 / (1 + layer)} for layer in range(depth)]
        steps = [1, 10, 25, 50, 75, 100]
        curves = [{"step": s, "loss": 1.0 / s, "objective": 1 + 1 / s, "objective_gap": 1.0} for s in steps]
        contents[trial.trial_id] = {"metrics": [*layers, {"step": 100, "layer": depth, "nc1": nc1}], "curves": curves}
        row = {"task": trial.task, "task_version": trial.task_version, "params": json.dumps(dict(trial.params))}
        fields[trial.trial_id] = {**row, "steps": 100, "wall_s": 2.0}
    commit_rows(store, attempt_id, contents, fields=fields.__getitem__)


def read(store: Store, checked: CheckedSweep) -> SweepData:
    results = results_of(store, checked.task)
    state = sweep_status("s", checked.trials.ids, results.snapshot, store)
    fits = fit_requests(results, checked.sweep.fit, list(checked.trials), checked.task).curves
    return SweepData(checked.sweep, checked.trials, checked.task, state, fits, results, results)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the header and the tables, as the page reads them: column -> values."""
    raw = gzip.decompress(data)
    length, version = struct.unpack("<II", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    assert version == 1 and length % 8 == 0
    types = {"f64": "<f8", "f32": "<f4", "i32": "<i4", "u16": "<u2", "u8": "u1"}
    tables = {}
    for name, table in header["tables"].items():
        columns = {}
        for column in table["columns"]:
            assert column["offset"] % 8 == 0
            array = np.frombuffer(raw, types[column["type"]], table["n"], 8 + length + column["offset"])
            columns[column["name"]] = [column["values"][i] for i in array] if "values" in column else array.tolist()
        tables[name] = columns
    return header, tables


@pytest.fixture
def checked(folder: Store) -> CheckedSweep:
    """A sweep of 24 trials; the last one is pending."""
    checked = check_sweep(depthrate.Sweep(**SWEEP)._spec)
    commit(folder, checked, list(checked.trials)[:-1])
    return checked


def hostile_sweep(store: Store) -> CheckedSweep:
    """Trials with markup, turned and long texts as names and values, other types, and metrics that are no numbers."""
    checked = check_sweep(depthrate.Sweep(**SWEEP)._spec)
    texts = [MARKUP, ENDING, TURNED, "x" * 10_000, "=cmd()", None, True, 0.1]
    trials = []
    for number, text in enumerate(texts):
        for depth in (2, 3, 5, 9):
            params = {"depth": depth, MARKUP: text, "seed": 0, "rate": 0.003 * (number + 1), "list": [number % 2]}
            trials.append(Trial(f"{number:08x}{depth:08x}", "collapse", 1, params))
    values = {
        trials[0].trial_id: math.inf,
        trials[1].trial_id: math.nan,
        trials[2].trial_id: -1.0,
        trials[3].trial_id: 1e-60,
    }
    commit(store, checked, trials, values)
    sweep = checked.sweep.replace(fit=(FitRequest("nc1", "depth", (MARKUP,)),))
    return CheckedSweep(sweep, checked.task, Trials(trials))


# The data


def test_columns_come_back_as_they_went() -> None:
    columns = [
        Column("a", np.array([1.5, math.nan])),
        parameter_column("b", ["x", None]),
        metric_column("c", np.array([1.0, 2.0])),
    ]
    header, tables = unpack(pack({"name": MARKUP}, {"t": columns, "none": []}))
    assert header["name"] == MARKUP and list(tables) == ["t"]
    assert tables["t"]["b"] == ["x", None] and tables["t"]["c"] == [1.0, 2.0] and math.isnan(tables["t"]["a"][1])


def test_parameters_keep_their_types_and_digits() -> None:
    values = [0.003, 1, True, None, "word", [1, 2], 1.0, "a"]
    column = parameter_column("p", values)
    assert column.facts["values"] == [0.003, 1.0, 1, True, "[1,2]", "a", "word", None]
    assert [column.facts["values"][code] for code in column.array] == [0.003, 1, True, None, "word", "[1,2]", 1.0, "a"]
    many = [0.1 * number for number in range(MAX_VALUES + 1)]
    assert parameter_column("p", [*many, None]).array.tolist()[:-1] == many, "of a search, without a dictionary"
    assert parameter_column("p", [f"w{number}" for number in range(300)]).array.dtype == np.uint16


def test_metrics_outside_float32_stay() -> None:
    assert metric_column("m", np.array([1e-60, 1.0])).array[0] == 1e-60
    assert metric_column("m", np.array([0.0, math.inf, 1.0])).array.dtype == np.float32


def test_data_are_those_of_the_store(checked: CheckedSweep, folder: Store) -> None:
    header, tables = unpack(read(folder, checked).packed())
    trials = tables["trials"]
    assert header["trial_ids"] == checked.trials.ids and header["sweep"]["planned"] == 24
    assert (header["sweep"]["x"], header["sweep"]["y"], header["sweep"]["colour"]) == ("depth", "nc1", "width")
    assert trials["depth"] == [trial.params["depth"] for trial in checked.trials]
    assert trials["state"] == ["ok"] * 23 + ["pending"] and math.isnan(trials["nc1"][-1])
    stored = dict(results_of(folder).sql("select trial_id, nc1 from results").fetchall())
    assert trials["nc1"][:-1] == pytest.approx([stored[trial_id] for trial_id in checked.trials.ids[:-1]], rel=1e-6)
    assert tables["curves"]["step"][:6] == [1, 10, 25, 50, 75, 100] and len(tables["curves"]["trial"]) == 23 * 6
    depths = trials["depth"][:-1]
    assert tables["layers"]["trial"] == [n for n, depth in enumerate(depths) for _ in range(depth + 1)]


def test_fits_are_those_of_depthrate_fit(checked: CheckedSweep, folder: Store) -> None:
    header, _ = unpack(read(folder, checked).packed())
    fitted = [curve.power for curve in fit_sweep(checked, folder, None).curves]
    for row, fit in zip(header["fits"], fitted, strict=True):
        assert fit is not None and (row["exponent"], row["ci_low"], row["ci_high"]) == (
            fit.exponent,
            fit.ci_low,
            fit.ci_high,
        )
        assert row["why"] == "" and row["is_plain"]
    states = results_of(folder).sql("select state from fits where model = 'power'").fetchall()
    assert states == [(row["state"],) for row in header["fits"]], "the home page counts groups by this column"


def test_fits_of_earlier_versions_are_read(folder: Store) -> None:
    sink = io.BytesIO()
    former = pa.schema([field for field in FITS if field.name not in ADDED_LATER])
    pq.write_table(pa.Table.from_pylist([{"sweep": "s", "model": "power"}], schema=former), sink)
    (read,) = parse_fits(sink.getvalue()).to_pylist()
    assert all(read[name] is None for name in ADDED_LATER)
    sink, row = io.BytesIO(), {"sweep": "s", "model": "log2_product", "preferred": "sum or log2_product"}
    pq.write_table(pa.Table.from_pylist([row], schema=FITS), sink)
    (read,) = parse_fits(sink.getvalue()).to_pylist()
    assert (read["model"], read["preferred"]) == ("power_log2", "power_floor or power_log2")


def test_a_thousand_trials_fit_into_five_megabytes(folder: Store) -> None:
    checked = check_sweep(depthrate.Sweep(**SWEEP)._spec)
    rng, base = np.random.default_rng(0), dict(checked.trials[0].params)
    trials = [Trial(f"{n:016x}", "collapse", 1, base | {"depth": 24, "lr": float(rng.random())}) for n in range(1000)]
    steps = range(1, 301)
    names = ("loss", "objective", "objective_gap", "accuracy", "grad_norm", "lr", "perplexity")
    curves = {
        t.trial_id: [{"step": s, **dict(zip(names, rng.random(7), strict=True))} for s in steps] for t in trials[:60]
    }
    contents = {
        t.trial_id: {
            "curves": curves[trials[n % 60].trial_id],
            "metrics": [
                {"step": 300, "layer": layer, "nc1": rng.random(), "nc2a": rng.random()} for layer in range(25)
            ],
        }
        for n, t in enumerate(trials)
    }
    folder.write_format()
    folder.write("attempts/sweep=s/a.json", b"{}")
    params = {t.trial_id: json.dumps(dict(t.params)) for t in trials}
    commit_rows(folder, "a", contents, fields=lambda i: {"task": "collapse", "task_version": 1, "params": params[i]})
    data = read(folder, CheckedSweep(checked.sweep.replace(fit=()), checked.task, Trials(trials))).packed()
    assert len(explorer_page("s", data).encode()) < 5e6
    _, tables = unpack(data)
    assert len(set(tables["curves"]["trial"])) == len(set(tables["layers"]["trial"])) == 1000


def test_the_command_writes_one_file(checked: CheckedSweep, folder: Store, tmp_path: Path) -> None:
    fit_sweep(checked, folder, None)
    sweep = tmp_path / "s.yaml"
    sweep.write_text(json.dumps(SWEEP))
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(sweep), "--store", folder.url, "--interactive", "-o", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "default-src 'none'" in text and "src=" not in text.replace("-src", "") and text.count("<script") == 2


def test_the_script_cannot_end_its_element() -> None:
    assert "</script" not in SCRIPT.lower() and "<!--" not in SCRIPT
    assert "innerHTML" not in SCRIPT and "insertAdjacentHTML" not in SCRIPT and "eval(" not in SCRIPT


# In a browser


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def show(window: Browser, page: Path, width: int = 1280, *, hash_text: str = "") -> None:
    window.open(page, width)
    if hash_text:
        window.run(f"location.hash = {json.dumps(hash_text)}")
    window.wait("window.explorer && document.querySelector('#rates .label, #rates .figure text')")


@pytest.fixture
def page(checked: CheckedSweep, folder: Store, tmp_path: Path) -> Path:
    path = tmp_path / "page.html"
    path.write_text(explorer_page("s", read(folder, checked).packed()), encoding="utf-8")
    return path


COUNTS = """
return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done({
  shown: document.querySelector('#count').textContent, rows: Number(explorer.count),
  rates: explorer.rates.cells.reduce((sum, cell) => sum + cell.trials.length, 0),
  curves: document.querySelector('#curves .note').textContent, layers: document.querySelector('#layers .note').textContent,
  chips: document.querySelectorAll('#active .active').length,
}))))
"""


@pytest.mark.browser
def test_a_brush_reaches_every_panel_and_the_address(window: Browser, page: Path) -> None:
    window.messages()
    show(window, page)
    window.run("document.documentElement.style.zoom = 0.5")  # all panels in sight
    window.wait("document.querySelector('#layers .note').textContent.startsWith('23 trials')")
    before = window.run(COUNTS)
    assert (before["rows"], before["rates"], before["chips"]) == (24, 23, 0)
    window.run("document.documentElement.style.zoom = 1; document.querySelector('#parallel').scrollIntoView()")
    box = window.run(
        "const b = document.querySelector('#parallel .figure').getBoundingClientRect(); return [b.left, b.top, b.height]"
    )
    left, top, _ = box
    window.drag((left + 40, top + 40), (left + 40, top + 150))  # the upper half of the first axis, depth
    window.run("document.documentElement.style.zoom = 0.5")
    window.run("scrollTo(0, 0)")
    window.wait("explorer.rates.cells[0].trials.length < 12")
    after = window.run(COUNTS)
    assert after["rows"] == 12 and after["rates"] == 11 and after["chips"] == 1
    assert after["curves"].startswith("11 trials") and after["layers"].startswith("11 trials")
    assert after["shown"] == "12 of 24 trials"
    address = window.run("return location.hash")
    assert address == "#depth=5,9"
    show(window, page, hash_text=address[1:])
    window.wait("explorer.count === 12")
    assert window.run(COUNTS)["shown"] == "12 of 24 trials"
    assert window.messages() == []


ZOOMED = (
    "return [...explorer.panels.find((panel) => panel.host.closest('#NAME')).areas[0]].map(({ lo, hi }) => [lo, hi])"
)


@pytest.mark.browser
@pytest.mark.parametrize("name", ["rates", "curves", "layers", "scatter"])
def test_a_figure_is_zoomed(window: Browser, page: Path, name: str) -> None:
    def ranges() -> list[list[float]]:
        window.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return window.run(ZOOMED.replace("NAME", name))

    show(window, page)
    window.messages()
    window.run(f"document.querySelector('#{name}').scrollIntoView()")
    window.wait(f"explorer.panels.find((panel) => panel.host.closest('#{name}')).areas.length")
    whole = ranges()
    figure = f"const figure = document.querySelector('#{name} .figure'), b = figure.getBoundingClientRect();"
    left, top = window.run(figure + "return [b.left, b.top]")
    window.hold("\ue008")  # Shift
    window.drag((left + 60, top + 60), (left + 120, top + 150))
    window.release("\ue008")
    window.wait(f"location.hash.includes('{name}Zoom=')")
    zoomed, address = ranges(), window.run("return location.hash")
    assert all(low <= a < b <= high for (a, b), (low, high) in zip(zoomed, whole, strict=True)) and zoomed != whole
    assert window.run("return explorer.count") == 24, "a zoom is no filter"
    window.run("explorer.filterBy('depth', { lo: 3, hi: 9 })")
    assert ranges() == zoomed, "a filter keeps it"
    window.run("explorer.filterBy('depth', null)")
    show(window, page, hash_text=address[1:])
    window.run(f"document.querySelector('#{name}').scrollIntoView()")
    window.wait(f"explorer.panels.find((panel) => panel.host.closest('#{name}')).areas.length")
    assert ranges() == zoomed, "the address keeps it"
    window.run(f"{figure} figure.focus()")
    window.press("0")
    window.wait("!location.hash.includes('Zoom')")
    assert ranges() == whole
    window.press("++")
    assert ranges() != whole
    window.run(f"{figure} figure.dispatchEvent(new MouseEvent('dblclick', {{ bubbles: true }}))")
    assert ranges() == whole
    assert name == "rates" or window.run(f"{figure} {DRAWN}"), "the canvas is seen"
    assert window.messages() == []


DRAWN = """
const canvas = figure.querySelector('canvas.ground'), { width, height } = canvas;
return canvas.checkVisibility() && canvas.getContext('2d').getImageData(0, 0, width, height).data.some((value) => value > 0);
"""


@pytest.mark.browser
def test_wrong_zooms_in_an_address_are_ignored(window: Browser, page: Path) -> None:
    for text in ("1..", "0..5,0..1", "5..2,1..2", "-1..2,NaN..3", "1..Infinity,1..2", "x"):
        show(window, page, hash_text=f"ratesZoom={text}&scatterZoom={text}")
        assert window.run(ZOOMED.replace("NAME", "rates"))[0] == [2, 9], text


@pytest.mark.browser
def test_a_notebook_shows_the_explorer(window: Browser, checked: CheckedSweep, folder: Store, tmp_path: Path) -> None:
    pytest.importorskip("anywidget", reason="needs pip install 'depthrate[notebook]'")
    widget = depthrate.Sweep(**SWEEP).explore(folder.url, "#depth=5,9")
    data = widget.data
    commit(folder, checked, [checked.trials[-1]], attempt_id="b")
    widget.refresh()
    assert widget.data != data, "the last trial is there"
    parts = {"esm": widget._esm, "first": list(data), "next": list(widget.data), "view": widget.view}
    path = tmp_path / "cell.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><title>cell</title><p>outside</p><div id=cell></div><script type=module>"
        f"const parts = {json.dumps(parts).replace('</', '<' + chr(92) + '/')};{CELL}</script>"
    )
    window.messages()
    window.open(path, 1280)
    window.wait(f"{ROOT}?.querySelector('#rates .label')")
    assert window.run(f"return {ROOT}.querySelector('#count').textContent") == "12 of 24 trials"
    window.run(f"{ROOT}.querySelector('#theme').focus()")
    window.press("/depth=9")
    window.wait("window.model.values.view.includes('expression')")
    window.run("window.model.send(window.parts.next)")
    window.wait(f"{ROOT}.querySelector('#progress').textContent === '24 of 24 done'")
    assert window.run(f"return {ROOT}.querySelector('#count').textContent") == "6 of 24 trials", "the filter stays"
    assert window.run("return location.hash") == "", "the page's address is not the view's"
    outside = window.run("const p = getComputedStyle(document.querySelector('p')); return [p.fontSize, p.margin]")
    assert outside == ["16px", "16px 0px"], "no style reaches the notebook"
    assert window.messages() == []


CELL = """
window.parts = parts;
const handlers = {}, bytes = (list) => new DataView(Uint8Array.from(list).buffer);
window.model = {
  values: { data: bytes(parts.first), view: parts.view },
  get(name) { return this.values[name]; },
  set(name, value) { this.values[name] = value; handlers[`change:${name}`]?.(); },
  save_changes() {},
  on(name, act) { handlers[name] = act; },
  send(list) { this.set('data', bytes(list)); },
};
const url = URL.createObjectURL(new Blob([parts.esm], { type: 'text/javascript' }));
const { default: widget } = await import(url);
await widget.render({ model, el: document.querySelector('#cell') });
"""
ROOT = "document.querySelector('#cell').firstElementChild?.shadowRoot"


def test_a_notebook_without_anywidget_says_what_it_needs(
    checked: CheckedSweep, folder: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "depthrate.orchestrator.notebook.explorer", raising=False)
    with pytest.raises(ValueError, match=r"pip install 'depthrate\[notebook\]'"):
        depthrate.Sweep(**SWEEP).explore(folder.url)


@pytest.mark.browser
def test_the_page_shows_the_fits_of_the_command(
    window: Browser, page: Path, checked: CheckedSweep, folder: Store
) -> None:
    show(window, page)
    fitted = [curve.power for curve in fit_sweep(checked, folder, None).curves]
    exponents = window.run("return explorer.rates.cells.map((cell) => cell.fit.a)")
    assert exponents == [fit.exponent for fit in fitted if fit is not None]
    note = window.run("return document.querySelector('#rates .note').textContent")
    assert "Exponents, intervals and states: depthrate fit" in note
    window.run("explorer.setView({ drop: '2' })")
    window.wait("explorer.rates.cells[0].fit.row === undefined")
    assert "computed in this page" in window.run("return document.querySelector('#rates .note').textContent")
    local = window.run("return explorer.rates.cells.map((cell) => cell.fit.a)")
    assert local[0] == pytest.approx(exponents[0], rel=1e-6), "powers of depth, without one of them"
    assert local[1] == pytest.approx(0.805, rel=1e-6), "whole seeds alone: of seed 2 a trial is pending"


@pytest.mark.browser
def test_keys_alone_filter_pin_and_sort(window: Browser, page: Path) -> None:
    show(window, page)
    window.press("/depth>=5")
    window.wait("explorer.count === 12")
    window.press("\ue00c")  # Escape leaves the field
    window.run("document.querySelector('#trials .scroll').focus()")
    window.press("\ue015\ue015\ue007")  # down, down, Enter
    pinned = window.run("return location.hash")
    assert "pin=" in pinned and window.run("return document.querySelector('#pin').checkVisibility()")
    window.press("\ue014")  # right
    window.wait(f"location.hash !== {json.dumps(pinned)}")
    window.run("document.querySelector('#trials th button').focus()")
    window.press("\ue007")
    window.wait("location.hash.includes('sort=depth')")
    assert window.run("return document.activeElement.dataset.sort") == "depth", "the focus stays"
    window.run("document.querySelector('.tick').focus()")
    window.press("\ue007")
    window.wait("location.hash.includes('drop=5')")
    window.press("c\ue00c")
    window.wait("explorer.count === 24")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_hostile_texts_stay_texts(window: Browser, folder: Store, tmp_path: Path, width: int) -> None:
    path = tmp_path / "page.html"
    path.write_text(explorer_page(MARKUP, read(folder, hostile_sweep(folder)).packed()), encoding="utf-8")
    window.messages()
    show(window, path, width)
    for name in ("colour", "facet", "sc", "pc", "layerColour", "curveFacet"):
        window.run(f"explorer.setView({{ {name}: {json.dumps(MARKUP)} }})")
    window.run("explorer.setView({ sx: 'rate' }); document.documentElement.style.zoom = 0.3")
    window.run("return new Promise((done) => setTimeout(done, 500))")
    window.run("explorer.setPin(0)")
    assert window.run("return document.querySelectorAll('img, main script').length") == 0
    text = window.run("return document.body.textContent")
    assert MARKUP in text and "\u202e" not in text and "abc\\u202edef" in text and "x" * 100 not in text
    window.run("document.documentElement.style.zoom = 1")
    window.wait("document.documentElement.scrollWidth <= innerWidth")
    assert window.messages() == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_fits_in_several_variables_are_shown(
    window: Browser, folder: Store, checked: CheckedSweep, tmp_path: Path, width: int
) -> None:
    data, request = read(folder, checked), FitRequest("nc1", ("depth", "width"))
    (surface,) = fit_requests(data.results, [request], list(checked.trials), checked.task).surfaces
    panel = sheet_panel(surface_sheet(surface), surface_figure(surface))
    assert (
        panel["title"] == "nc1 over depth, width"
        and [row[0] for row in panel["rows"]] == ["power"] * 2 + ["power_floor"] * 2
    )
    hostile = {"title": MARKUP, "header": [MARKUP], "rows": [[MARKUP]], "notes": [MARKUP, TURNED], "pictures": []}
    path = tmp_path / "page.html"
    path.write_text(explorer_page("s", replace(data, sections=[panel, hostile]).packed()), encoding="utf-8")
    window.messages()
    show(window, path, width)
    window.wait("document.querySelector('#several img').naturalWidth > 0")
    assert window.run("return document.querySelectorAll('#several details[open] tbody tr').length") == 4
    assert window.run("return document.querySelectorAll('img, main script').length") == 1, "markup stays text"
    light = window.run("return document.querySelector('#several img').src")
    window.run("document.querySelectorAll('#several summary')[1].click()")
    window.press("t")
    dark = window.run("return document.querySelector('#several img').src")
    assert dark != light and window.run("return document.querySelectorAll('#several details[open]').length") == 2
    text = window.run("return document.querySelector('#several').textContent")
    assert MARKUP in text and "\u202e" not in text
    window.wait("document.documentElement.scrollWidth <= innerWidth")
    assert window.messages() == []


@pytest.mark.browser
def test_panels_are_saved(window: Browser, page: Path) -> None:
    show(window, page)
    saved = """
    const texts = [], make = URL.createObjectURL;
    URL.createObjectURL = (blob) => { texts.push(blob); return make(blob); };
    for (const kind of ['svg', 'csv', 'png']) {
      for (const select of document.querySelectorAll('#rates .save, #scatter .save')) {
        select.value = kind;
        select.dispatchEvent(new Event('change'));
      }
    }
    const read = () => Promise.all(texts.map(async (blob) => [blob.type, await blob.text()]));
    return new Promise((done) => setTimeout(async () => done(await read()), 800));
    """
    window.run("document.querySelector('#scatter').scrollIntoView()")
    window.wait("document.querySelector('#scatter svg')")
    files = window.run(saved)
    kinds = [kind for kind, _ in files]
    assert sorted(kinds) == ["image/png"] * 2 + ["image/svg+xml"] * 2 + ["text/csv"] * 2
    rates, _ = [text for kind, text in files if kind == "text/csv"]
    assert rates.splitlines()[0].startswith("group,depth,mean") and len(rates.splitlines()) == 9
    assert all(text.startswith("<svg") for kind, text in files if kind == "image/svg+xml")
