"""Metrics with names that are no identifiers pass plan, run, report, LaTeX, figure files, queries and exporters."""

import json
from pathlib import Path

import pytest

import depthrate
from depthrate.orchestrator.export.latex import latex
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.storage.tables.schema import TableError
from depthrate.sweeps.load import load_sweep
from tests.support.here import printed

NAMES = ["val/loss", "a'b $x_1$", "select", "[1] <b>λ</b>", "n" * 60]
TASK = f"""
import depthrate

NAMES = {NAMES!r}

@depthrate.task(version=1, measurements=DECLARED)
def t(*, depth: int, seed: int = 0):
    values = {{name: place * depth**-0.5 for place, name in enumerate(NAMES, 1)}}
    return {{"metrics": [{{"layer": depth, **values}}], "curves": [{{"step": 1, "loss": 1.0}}]}}
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_sweep(declared: str, fits: list[str]) -> None:
    Path("t.py").write_text(TASK.replace("DECLARED", declared))
    figures = [{"kind": "curve", "metric": name, "x": "depth"} for name in fits]
    spec = {"name": "s", "task": "./t.py:t", "grid": {"depth": [2, 4, 8, 16]}, "fit": [{"metric": m} for m in fits]}
    Path("s.yaml").write_text(json.dumps({**spec, "figures": figures}))


@pytest.mark.slow
@pytest.mark.parametrize("declared", ["[]", "[depthrate.Metric(name) for name in NAMES]"])
def test_any_printable_name_passes_every_view(declared: str) -> None:
    write_sweep(declared, NAMES)
    assert "4 trials" in printed("plan", "s.yaml")
    fitted = printed("run", "s.yaml", "--workers", "1")
    assert all(name in fitted for name in NAMES) and fitted.count("depth^-0.5") >= len(NAMES)
    printed("report", "s", "--figures", "figures", "--latex", "tex")
    page, table = Path("report.html").read_text(), Path("tex/fits.tex").read_text()
    assert "cannot draw" not in page and "<b>λ</b>" not in page
    assert all(latex(name) in table for name in NAMES) and "\n[" not in table
    assert list(Path("figures").glob("*val-loss*.svg"))
    rows = depthrate.open("results").sql('select "val/loss", "select" from results order by depth').fetchall()
    assert rows[1] == pytest.approx((0.5, 1.5))
    printed("export", "s", "events", "--tensorboard")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ('a"b', "has a quotation mark"),
        ("n" * 61, "more than 60"),
        ("a\nb", "cannot be printed"),
        ("NC1", "'nc1' have the same|exists in every table"),
    ],
)
def test_names_that_no_column_has_are_refused(name: str, message: str) -> None:
    write_sweep("[]", [name])
    with pytest.raises(TableError, match=message):
        check_sweep(load_sweep("s.yaml"))
    write_sweep(f"[depthrate.Metric({name!r})]", [])
    with pytest.raises(TableError, match=message):
        check_sweep(load_sweep("s.yaml"))
